"""Whether speculation pays, and with which draft length: predicted speedups by draft length and concurrency.

A round with c requests in flight takes a forward of the target over c (k + 1) tokens and k forwards of the draft over c
tokens.

- The target's forward over n tokens takes as long as a step without speculation at concurrency n, measured at the levels of
  the server without speculation and drawn between and beyond them on a line.
- The draft's forward is what a measured round takes beyond that, divided by the draft length that was measured.
- The tokens of a round follow from the acceptance by position. Beyond the measured positions, each further token is accepted
  at the conditional rate of the last measured ones.
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

    def line(self, chooser: np.random.Generator | None = None) -> "Line":
        """Return the line through the means, or through the means of blocks that are drawn again with replacement."""
        points = []
        for concurrency, values in sorted(self.by_concurrency.items()):
            drawn = np.asarray(values) if chooser is None else chooser.choice(values, len(values))
            points.append((float(concurrency), float(drawn.mean())))
        return Line(tuple(points))


@dataclass(frozen=True)
class Line:
    """A function that is linear between points, and beyond them has the slope of all points."""

    points: tuple[tuple[float, float], ...]

    def at(self, x: float) -> float:
        """Return the value at x."""
        xs, ys = (np.array(part) for part in zip(*self.points, strict=True))
        if xs[0] <= x <= xs[-1] or len(xs) == 1:
            return float(np.interp(x, xs, ys))
        slope = max(float(np.polyfit(xs, ys, 1)[0]), 0.0)
        return float(ys[-1] + slope * (x - xs[-1])) if x > xs[-1] else float(ys[0] - slope * (xs[0] - x))


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
    grid = [(length, concurrency) for concurrency in concurrencies for length in lengths]
    whole = _speedups(off.line(), on, on.rounds.line(), grid)
    chooser = np.random.default_rng(0)
    drawn = np.array(
        [_speedups(off.line(chooser), on, on.rounds.line(chooser), grid) for _ in range(RESAMPLES)]
    )  # (resamples, grid)
    low, high = np.percentile(drawn, QUANTILES, axis=0)
    return [
        PredictedSpeedup(length, concurrency, Estimate(float(value), float(a), float(b)))
        for (length, concurrency), value, a, b in zip(grid, whole, low, high, strict=True)
    ]


def _speedups(off: Line, on: MeasuredSpeculation, rounds: Line, grid: Sequence[tuple[int, int]]) -> np.ndarray:
    out = []
    for length, concurrency in grid:
        draft = max((rounds.at(concurrency) - off.at(concurrency * (on.length + 1))) / on.length, 0.0)
        seconds = off.at(concurrency * (length + 1)) + length * draft
        out.append(on.tokens_per_round(length) * off.at(concurrency) / seconds)
    return np.array(out)


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
