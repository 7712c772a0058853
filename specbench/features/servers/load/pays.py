"""Whether speculation pays, and with which draft length: predicted speedups by draft length and concurrency.

- A step without speculation takes what the time per token of the server without speculation is at that concurrency.
- A round takes more than a step. From runs at several draft lengths, this excess is a line in the draft length, fitted by
  least squares. With one length, it is unknown how much of the excess does not depend on the length: a share of FIXED is
  assumed, and the intervals cover FIXED_RANGE.
- The tokens of a round follow from the acceptance by position, over all blocks. Beyond the measured positions, each further
  token is accepted at the conditional rate of the last measured one.

The predicted speedup is that of the time per token. Between measured concurrencies, times are interpolated linearly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specbench.analysis.intervals import Estimate
from specbench.features.servers.load.load_metrics import FEWEST_VALUES
from specbench.features.servers.served import SpeculationCounts, total

LONGEST = 8  # draft tokens
FIXED, FIXED_RANGE = 0.25, (0.0, 0.5)  # of a round's excess over a step
RESAMPLES = 400
QUANTILES = (2.5, 97.5)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by concurrency, one value for each block."""

    by_concurrency: Mapping[int, Sequence[float]]

    @property
    def blocks(self) -> Iterable[Sequence[float]]:
        """The values of each concurrency."""
        return self.by_concurrency.values()

    def at(self, concurrency: int, chooser: np.random.Generator | None = None) -> float:
        """Return the mean at a concurrency, interpolated linearly between the measured ones.

        With `chooser`, the blocks are drawn again with replacement.
        """
        levels = sorted(self.by_concurrency)
        means = []
        for level in levels:
            values = np.asarray(self.by_concurrency[level])
            means.append(float((values if chooser is None else chooser.choice(values, len(values))).mean()))
        return float(np.interp(concurrency, levels, means))


@dataclass(frozen=True)
class MeasuredSpeculation:
    """What was measured at one draft length.

    Args:
        length: The draft length.
        steps: Seconds of a step without speculation, in the same run.
        rounds: Seconds of a round.
    """

    length: int
    steps: StepTimes
    rounds: StepTimes

    def excess(self, concurrency: int, chooser: np.random.Generator | None = None, scale: float = 1.0) -> float:
        """Return what a round takes beyond a step, in steps. With `chooser`, the blocks are drawn again.

        `scale` multiplies the seconds of a round, which are those of a token times the tokens of a round.
        """
        return max(scale * self.rounds.at(concurrency, chooser) / self.steps.at(concurrency, chooser) - 1.0, 0.0)


@dataclass(frozen=True)
class PredictedSpeedup:
    """The predicted speedup of a draft length at a concurrency, with its interval over blocks."""

    length: int
    concurrency: int
    speedup: Estimate


def predicted_speedups(
    measured: Sequence[MeasuredSpeculation],
    counts: Sequence[SpeculationCounts],
    concurrencies: Sequence[int],
    lengths: Sequence[int] = range(1, LONGEST + 1),
) -> list[PredictedSpeedup]:
    """Return the predicted speedup of each draft length at each concurrency.

    Args:
        measured: Runs at one or several draft lengths. The first one is the run that `counts` are of.
        counts: The speculation of each block, with positions.
        concurrencies: Where to predict.
        lengths: Draft lengths to predict.

    Times and acceptance are resampled over blocks. There is no interval for fewer than FEWEST_VALUES blocks.
    """
    chooser = np.random.default_rng(0)
    at = np.array(lengths, dtype=float)
    known = [each.length for each in measured]
    tokens, of_this = _tokens(counts, lengths), _tokens(counts, known[:1])
    fewest = min(len(rows) for each in measured for times in (each.steps, each.rounds) for rows in times.blocks)
    has_interval = min(fewest, len(counts)) >= FEWEST_VALUES

    def resampled(concurrency: int) -> np.ndarray:
        """Return speedups (lengths) of blocks that are drawn again. A round of this run has the tokens that are drawn."""
        drawn = [counts[i] for i in chooser.integers(len(counts), size=len(counts))]
        scales = [float(_tokens(drawn, known[:1])[0] / of_this[0]), *[1.0] * (len(measured) - 1)]
        excess = [each.excess(concurrency, chooser, scale) for each, scale in zip(measured, scales, strict=True)]
        return _tokens(drawn, lengths) / (1.0 + _excess_at(at, known, excess, chooser.uniform(*FIXED_RANGE)))

    out = []
    for concurrency in concurrencies:
        excess = _excess_at(at, known, [each.excess(concurrency) for each in measured], FIXED)
        values = tokens / (1.0 + excess)
        bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(lengths)
        if has_interval:
            rows = np.percentile([resampled(concurrency) for _ in range(RESAMPLES)], QUANTILES, axis=0)  # (2, lengths)
            bounds = [(float(low), float(high)) for low, high in rows.T]
        out += [
            PredictedSpeedup(length, concurrency, Estimate(float(value), *bound))
            for length, value, bound in zip(lengths, values, bounds, strict=True)
        ]
    return out


def _excess_at(lengths: np.ndarray, known: Sequence[int], excess: Sequence[float], fixed: float) -> np.ndarray:
    """Return the excess of a round at draft lengths, in steps, from that at known lengths: a line that never falls."""
    x, y = np.array(known, dtype=float), np.array(excess)
    if len(known) == 1:
        return np.asarray(y[0] * (fixed + (1.0 - fixed) * lengths / x[0]))
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    intercept = float(y.mean() - slope * x.mean())
    if slope < 0.0:
        slope, intercept = 0.0, float(y.mean())
    elif intercept < 0.0:
        slope, intercept = float((x * y).sum() / (x * x).sum()), 0.0
    return intercept + slope * lengths


def _tokens(counts: Sequence[SpeculationCounts], lengths: Sequence[int]) -> np.ndarray:
    """Return the expected tokens of a round at draft lengths."""
    whole = total(counts)
    return np.array([tokens_per_round(whole.shares_by_position if whole else (), length) for length in lengths])


def tokens_per_round(by_position: Sequence[float], length: int) -> float:
    """Return the expected tokens of a round that drafts `length` tokens.

    `by_position` are the shares of rounds in which the drafted token at each position was accepted.
    """
    total = 1.0
    for position in range(length):
        if position < len(by_position):
            total += by_position[position]
        else:
            before = by_position[-2] if len(by_position) > 1 else 1.0
            conditional = by_position[-1] / before if before else 0.0
            total += by_position[-1] * conditional ** (position - len(by_position) + 1)
    return total


def best_length(predictions: Sequence[PredictedSpeedup], concurrency: int) -> int:
    """Return the draft length with the largest predicted speedup at a concurrency; 0 if none is above 1."""
    rows = [row for row in predictions if row.concurrency == concurrency]
    best = max(rows, key=lambda row: row.speedup.value)
    return best.length if best.speedup.value > 1.0 else 0


def break_even(speedups: Mapping[int, Estimate]) -> tuple[float, float | None, float | None] | None:
    """Return the concurrency at which a speedup that falls with concurrency crosses 1, and its interval.

    The crossing is drawn on a line between measured concurrencies, in logarithms. None if the speedup does not cross 1; a
    bound is None if the interval's bound does not.
    """
    crossing = _crossing({level: each.value for level, each in speedups.items()})
    if crossing is None:
        return None
    lows = {level: each.low for level, each in speedups.items() if each.low is not None}
    highs = {level: each.high for level, each in speedups.items() if each.high is not None}
    return crossing, _crossing(lows), _crossing(highs)


def _crossing(values: Mapping[int, float]) -> float | None:
    levels = sorted(values)
    for a, b in pairwise(levels):
        if values[a] >= 1.0 > values[b]:
            share = np.log(values[a]) / (np.log(values[a]) - np.log(values[b]))
            return float(np.exp(np.log(a) + share * (np.log(b) - np.log(a))))
    return None
