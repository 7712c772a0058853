"""Paired comparisons of two methods of one run, over the prompts that both completed."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Choice, Point
from specbench.analysis.quality import by_prompt, score_change, scores_of
from specbench.analysis.rows import Rows, complete, paired
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.speed import (
    completion_speedup,
    end_to_end_speedup,
    geometric_mean_speedup,
    papers_speedup,
    relative_latency,
    speedup,
)
from specbench.runs.record import Record
from specbench.runs.run_folder import load
from specbench.runs.scores import Scores

RATIOS: dict[str, Callable[[Rows, Rows], Estimate]] = {  # values over a baseline, which two methods of a run share
    "speedup": speedup,
    "end_to_end_speedup": end_to_end_speedup,
    "geometric_mean_speedup": geometric_mean_speedup,
    "relative_latency": relative_latency,
    "over_sd": completion_speedup,
}
UNKNOWN = float("inf")  # half the width of the interval of an estimate from too few prompts


class Comparison(NamedTuple):
    """A ratio or difference of two values with its 95 % interval, and what it is if the values are equal, 1 or 0."""

    value: float
    low: float
    high: float
    equal: float


class Comparisons:
    """Compares the points of some runs. The records of a run are read once, when they are needed."""

    def __init__(self, summaries: Iterable[RunSummary] = ()) -> None:
        self._summaries = {summary.run: summary for summary in summaries}
        self._records: dict[str, tuple[list[Record], Scores]] = {}

    def between(self, point: Point, other: Point, value: str, factor: float = 1.0) -> Comparison | None:
        """Compare a value of two points, neither of a group: on the same prompts if they are of one run, else as independent.

        The other value is multiplied by `factor`. None if neither curve reaches its condition, or a value is missing.
        """
        ours, theirs = point.values.get(value), other.values.get(value)
        if isinstance(ours, Choice) and isinstance(theirs, Choice):
            if ours.value is None and theirs.value is None:
                return None
            found = ours.minus(theirs) if point.run == other.run and factor == 1.0 else None
            if found is not None and found.value is not None:
                return _comparison(found.value, found.low, found.high, 0.0)
        estimate = self._paired(point, other, value)
        if estimate is not None and value != "score":
            return _comparison(estimate.value, estimate.low, estimate.high, factor)
        if estimate is not None and factor == 1.0:
            return _comparison(estimate.value, estimate.low, estimate.high, 0.0)
        return independent(span(point, value), span(other, value), factor)

    def _paired(self, point: Point, other: Point, value: str) -> Estimate | None:
        """Return the ratio or difference over the prompts of one run; None for values that are not compared in pairs."""
        summary = self._summaries.get(point.run)
        if summary is None or point.run != other.run or value not in (*RATIOS, "papers_speedup", "score"):
            return None
        records, scores = self._read(summary)
        if value == "score":
            return score_change(point.name, other.name, scores)
        ours, theirs = complete(records, point.name), complete(records, other.name)
        if not paired(ours, theirs)[0]:
            return None
        if value == "papers_speedup":
            return papers_speedup(ours, theirs, summary.data.later_turns > 0)
        return RATIOS[value](ours, theirs)

    def _read(self, summary: RunSummary) -> tuple[list[Record], Scores]:
        if summary.run not in self._records:
            folder = Path(summary.folder)
            records = load(folder).records
            self._records[summary.run] = records, by_prompt(scores_of(folder), {r.sample: r.prompt for r in records})
        return self._records[summary.run]


def independent(ours: Estimate | None, theirs: Estimate | None, factor: float = 1.0) -> Comparison | None:
    """Return ours - factor x theirs for independent estimates, with Zou & Donner's interval (2008). None without a value."""
    if ours is None or theirs is None:
        return None
    (low, high), (below, above) = _bounds(ours), _bounds(theirs)
    value = ours.value - factor * theirs.value
    down = float(np.hypot(ours.value - low, factor * (above - theirs.value)))
    up = float(np.hypot(high - ours.value, factor * (theirs.value - below)))
    return Comparison(value, value - down, value + up, 0.0)


def span(point: Point, value: str) -> Estimate | None:
    """Return a value of a point as an estimate; None if it has none.

    A number that is not estimated has an interval of width zero. A curve that does not reach its condition counts as 0, as in
    resamples.
    """
    found, number = point.values.get(value), point.number(value)
    if isinstance(found, Choice):
        return Estimate(found.value or 0.0, found.low, found.high)
    if isinstance(found, Estimate):
        return found
    return None if number is None else Estimate(number, number, number)


def _bounds(estimate: Estimate) -> tuple[float, float]:
    """Return the interval of an estimate; the whole line where it has none."""
    return -UNKNOWN if estimate.low is None else estimate.low, UNKNOWN if estimate.high is None else estimate.high


def _comparison(value: float, low: float | None, high: float | None, equal: float) -> Comparison:
    return Comparison(value, *_bounds(Estimate(value, low, high)), equal)
