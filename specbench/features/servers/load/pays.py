"""Whether speculation pays, and with which draft length: predicted speedups by draft length and concurrency.

- A step without speculation takes what the time per token of the server without speculation is at that concurrency.
- A round that drafts k tokens takes a step, and for each drafted token the same additional time: what a measured round takes
  beyond a step, divided by the draft length that was measured. So the model goes through both measurements.
- The tokens of a round follow from the acceptance by position. Beyond the measured positions, each further token is accepted
  at the conditional rate of the last measured one.

The predicted speedup is that of the time per token. Between measured concurrencies, times are drawn on lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specbench.analysis.intervals import Estimate

LONGEST = 8  # draft tokens
RESAMPLES = 400
QUANTILES = (2.5, 97.5)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by concurrency, one value for each block."""

    by_concurrency: Mapping[int, Sequence[float]]

    def at(self, concurrency: int, chooser: np.random.Generator | None = None) -> float:
        """Return the mean at a concurrency, on lines between the measured ones.

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
    """What was measured with speculation on.

    Args:
        length: The draft length.
        rounds: Seconds of a round by concurrency.
        by_position: The share of rounds in which the drafted token at each position was accepted.
    """

    length: int
    rounds: StepTimes
    by_position: tuple[float, ...]

    def tokens_per_round(self, length: int) -> float:
        """Return the expected tokens of a round that drafts `length` tokens."""
        shares = list(self.by_position[: self.length])
        total = 1.0
        for position in range(length):
            if position < len(shares):
                total += shares[position]
            else:
                before = shares[-2] if len(shares) > 1 else 1.0
                conditional = shares[-1] / before if before else 0.0
                total += shares[-1] * conditional ** (position - len(shares) + 1)
        return total


@dataclass(frozen=True)
class PredictedSpeedup:
    """The predicted speedup of a draft length at a concurrency, with its interval over blocks."""

    length: int
    concurrency: int
    speedup: Estimate


def predicted_speedups(
    off: StepTimes,
    on: MeasuredSpeculation,
    concurrencies: Sequence[int],
    lengths: Sequence[int] = range(1, LONGEST + 1),
) -> list[PredictedSpeedup]:
    """Return the predicted speedup of each draft length at each concurrency."""
    chooser = np.random.default_rng(0)
    out = []
    for concurrency in concurrencies:
        whole = _speedups(off.at(concurrency), on.rounds.at(concurrency), on, lengths)
        drawn = [
            _speedups(off.at(concurrency, chooser), on.rounds.at(concurrency, chooser), on, lengths)
            for _ in range(RESAMPLES)
        ]  # (resamples, lengths)
        low, high = np.percentile(np.array(drawn), QUANTILES, axis=0)
        out += [
            PredictedSpeedup(length, concurrency, Estimate(float(value), float(a), float(b)))
            for length, value, a, b in zip(lengths, whole, low, high, strict=True)
        ]
    return out


def _speedups(step: float, round_: float, on: MeasuredSpeculation, lengths: Sequence[int]) -> np.ndarray:
    """Return the speedup of each draft length, from the seconds of a step and of a measured round."""
    per_token = max(round_ - step, 0.0) / on.length
    return np.array([on.tokens_per_round(length) * step / (step + length * per_token) for length in lengths])


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
