"""Whether speculation pays, and with which draft length: predicted speedups by draft length and concurrency.

- A step without speculation takes what TPOT of the server without speculation is at that concurrency.
- A round takes more than a step. From runs at several draft lengths, this excess is a line in the draft length, fitted by
  least squares. With one length, it is unknown how much of the excess does not depend on the length: a share of FIXED is
  assumed, and the intervals cover FIXED_RANGE.
- The tokens of a round follow from the acceptance by position at that concurrency. Beyond the measured positions, a token is
  accepted at the conditional rate of the last measured one.

The predicted speedup is that of TPOT.
"""

from collections.abc import Mapping, Sequence
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
class LevelTimes:
    """What pairs of blocks measured at one concurrency, one value for each pair.

    Args:
        off: Seconds of a token, which are those of a step, without speculation.
        on: Seconds of a token with speculation.
        counts: The speculation, with positions.
    """

    off: Sequence[float]
    on: Sequence[float]
    counts: Sequence[SpeculationCounts]

    def drawn(self, chooser: np.random.Generator) -> "LevelTimes":
        """Return as many pairs, drawn again with replacement. A pair's times and counts stay together."""
        picks = chooser.integers(len(self.off), size=len(self.off)).tolist()
        return LevelTimes(*([values[i] for i in picks] for values in (self.off, self.on, self.counts)))

    def tokens(self, length: int) -> float:
        """Return the expected tokens of a round that drafts `length` tokens."""
        whole = total(self.counts)
        return tokens_per_round(whole.shares_by_position if whole else (), length)

    def excess(self, length: int) -> float:
        """Return what a round beyond a step takes, in steps, at the measured draft length."""
        return max(self.tokens(length) * float(np.mean(self.on)) / float(np.mean(self.off)) - 1.0, 0.0)


@dataclass(frozen=True)
class MeasuredSpeculation:
    """What a run measured at its draft length, by concurrency."""

    length: int
    levels: Mapping[int, LevelTimes]


@dataclass(frozen=True)
class PredictedSpeedup:
    """The predicted speedup of a draft length at a concurrency, with its interval over pairs of blocks."""

    length: int
    concurrency: int
    speedup: Estimate


def predicted_speedups(
    this: MeasuredSpeculation,
    others: Sequence[MeasuredSpeculation] = (),
    lengths: Sequence[int] = range(1, LONGEST + 1),
) -> list[PredictedSpeedup]:
    """Return the predicted speedup of each draft length at each concurrency of a run.

    Pairs of blocks are resampled. There is no interval for fewer than FEWEST_VALUES pairs.

    Args:
        this: The run, whose acceptance is used.
        others: Runs at other draft lengths, which have at least its concurrencies.
        lengths: Draft lengths to predict.
    """
    chooser, at = np.random.default_rng(0), np.array(lengths, dtype=float)
    known = [each.length for each in (this, *others)]

    def speedups(levels: Sequence[LevelTimes], fixed: float) -> np.ndarray:
        """Return speedups (lengths) from the pairs at one concurrency, of this run and the others."""
        excess = [level.excess(length) for level, length in zip(levels, known, strict=True)]
        return np.array([levels[0].tokens(length) for length in lengths]) / (1.0 + _excess_at(at, known, excess, fixed))

    out = []
    for concurrency in sorted(this.levels):
        levels = [each.levels[concurrency] for each in (this, *others)]
        bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(lengths)
        if min(len(level.off) for level in levels) >= FEWEST_VALUES:
            drawn = [
                speedups([level.drawn(chooser) for level in levels], chooser.uniform(*FIXED_RANGE))
                for _ in range(RESAMPLES)
            ]
            bounds = [(float(low), float(high)) for low, high in np.percentile(drawn, QUANTILES, axis=0).T]
        out += [
            PredictedSpeedup(length, concurrency, Estimate(float(value), *bound))
            for length, value, bound in zip(lengths, speedups(levels, FIXED), bounds, strict=True)
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
