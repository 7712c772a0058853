"""Paired comparisons of two methods, of one run or of runs on the same prompts, over the prompts that both completed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specbench.analysis.acceptance import acceptance_by_model
from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import Estimate, interval
from specbench.analysis.method_records import complete, rounds_of
from specbench.analysis.metric import Pairing, metric_of, ratio_to
from specbench.analysis.points import Point
from specbench.analysis.quality import score_change, scores_by_prompt, scores_of
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import context_of
from specbench.machine.hardware import bandwidth_of
from specbench.runs.record import Record
from specbench.runs.run_folder import Scores, load

PROPOSERS = "proposer_acceptance"
FEWEST_REJECTIONS = 30


class Comparison(NamedTuple):
    """A ratio or difference of two values with its 95 % interval, and its value if the two are equal: 1 or 0."""

    value: float
    low: float
    high: float
    equal: float


@dataclass(frozen=True)
class _Count:
    """The records of a method by prompt, and a value as a function of records."""

    rows: Mapping[str, list[Record]]
    number: Callable[[list[Record]], float]

    def over(self, prompts: Sequence[str]) -> Estimate:
        """Return the value over these prompts with its interval."""
        return interval(np.arange(len(prompts))[:, None], lambda part: self._at(prompts, part))

    def minus(self, other: "_Count", factor: float, prompts: Sequence[str]) -> Estimate:
        """Return the difference from `factor` x another value over these prompts, which both have, with its interval."""
        return interval(
            np.arange(len(prompts))[:, None],
            lambda part: self._at(prompts, part) - factor * other._at(prompts, part),
        )

    def _at(self, prompts: Sequence[str], part: np.ndarray) -> float:
        """Return the value over the prompts with these indices (n, 1)."""
        return self.number([row for i in part[:, 0] for row in self.rows[prompts[int(i)]]])


class Comparisons:
    """Compares the points of some runs. The records of a run are read once, when they are needed."""

    def __init__(self, summaries: Iterable[RunSummary] = ()) -> None:
        self._summaries = {summary.run: summary for summary in summaries}
        self._records: dict[str, tuple[list[Record], Scores]] = {}

    def between(self, point: Point, other: Point, value: str, factor: float = 1.0) -> Comparison | None:
        """Compare a value of two points: on the same prompts where possible, else as independent estimates.

        Counts are also compared on the same prompts across runs, such as runs at two temperatures. Speeds, scores and curves
        are compared on the same prompts within a run only. Values of groups of prompts are always independent. The other
        value is multiplied by `factor`. Returns None if neither curve reaches its condition, or if a value is missing.
        """
        ours, theirs = point.values.get(value), other.values.get(value)
        if point.group or other.group:
            return independent(self.estimate(point, value), self.estimate(other, value), factor)
        if isinstance(ours, CurveChoice) and isinstance(theirs, CurveChoice):
            if ours.value is None and theirs.value is None:
                return None
            change = ours.minus(theirs, factor) if point.run == other.run else None
            if change is not None and change.value is not None:
                return _comparison(change.value, change.low, change.high, 0.0)
        if point.run == other.run and point.run in self._summaries and metric_of(value).is_ratio:
            ratio = self._ratio(point, other, value)
            return None if ratio is None else _comparison(ratio.value, ratio.low, ratio.high, factor)
        difference = self._difference(point, other, value, factor) if self._same_prompts(point, other) else None
        if difference is not None:
            return _comparison(difference.value, difference.low, difference.high, 0.0)
        return independent(self.estimate(point, value), self.estimate(other, value), factor)

    def estimate(self, point: Point, value: str) -> Estimate | None:
        """Return a value of a point with its interval; None if it has none.

        A number without an interval gets one over prompts, from the records. Exact numbers have an interval of width zero.
        A curve that does not reach its condition counts as 0, as in resamples.
        """
        content, number = point.values.get(value), point.number(value)
        if point.group:
            return content if isinstance(content, Estimate) else None
        if isinstance(content, CurveChoice):
            return Estimate(content.value or 0.0, content.low, content.high)
        if isinstance(content, Estimate) or number is None:
            return content if isinstance(content, Estimate) else None
        if metric_of(value).is_exact:
            return Estimate(number, number, number)
        count = self._count(point, value)
        return Estimate(number, None, None) if count is None else count.over(list(count.rows))

    def few_rejections(self, value: str, *points: Point) -> str:
        """Return how many drafted tokens a target rejected, if a value is a variance and they are too few; else empty."""
        for point in points if metric_of(value).needs_rejections else ():
            if point.run not in self._summaries or point.group:
                continue
            records, _ = self._read(self._summaries[point.run])
            rounds = list(rounds_of(complete(records, point.name)))
            tested = sum(each.tested for each in rounds)
            rejected = tested - sum(each.accepted for each in rounds)
            if tested and rejected < FEWEST_REJECTIONS:
                return f"with {point.method}, the target rejects {rejected} of {tested:,} drafted tokens"
        return ""

    def _ratio(self, point: Point, other: Point, value: str) -> Estimate | None:
        """Return the ratio of two methods' speeds over the generations that both completed; None without one."""
        summary = self._summaries[point.run]
        records, _ = self._read(summary)
        ours, theirs = complete(records, point.name), complete(records, other.name)
        context = context_of(point.name, summary.spec, records, bandwidth_of(summary.environment))
        return ratio_to(metric_of(value), ours, theirs, context)

    def _difference(self, point: Point, other: Point, value: str, factor: float) -> Estimate | None:
        """Return the difference of two methods' scores or counts over the same prompts; None for other values."""
        _, scores = self._read(self._summaries[point.run])
        if value == "score" or value in {entry["name"] for entry in scores["metrics"]}:
            if point.run != other.run:
                return None
            return score_change(point.name, other.name, scores, "" if value == "score" else value, factor)
        ours, theirs = self._count(point, value), self._count(other, value)
        if ours is None or theirs is None:
            return None
        both = [prompt for prompt in ours.rows if prompt in theirs.rows]
        return ours.minus(theirs, factor, both) if both else None

    def _same_prompts(self, point: Point, other: Point) -> bool:
        """Return whether the runs of two points decoded the same prompts."""
        runs = [self._summaries.get(side.run) for side in (point, other)]
        return len({run and run.spec.task.data.prompts_sha256 for run in runs}) == 1 and None not in runs

    def _count(self, point: Point, value: str) -> "_Count | None":
        """Return a value that the records of a point determine without times; None for other values."""
        summary = self._summaries.get(point.run)
        compute = metric_of(value).compute
        if summary is None or (value != PROPOSERS and metric_of(value).pairing is not Pairing.difference):
            return None
        records, _ = self._read(summary)
        rows = complete(records, point.name)
        if not rows:
            return None
        by_prompt: dict[str, list[Record]] = defaultdict(list)
        for row in rows:
            by_prompt[row.prompt].append(row)
        context = context_of(point.name, summary.spec, records, bandwidth_of(summary.environment))

        def number(records: list[Record]) -> float:
            if value == PROPOSERS:
                return acceptance_by_model(records)[point.proposer]
            assert compute
            result = compute(records, context)
            if isinstance(result, Estimate):
                return result.value
            return float(result) if isinstance(result, int | float) else float("nan")

        return _Count(by_prompt, number)

    def _read(self, summary: RunSummary) -> tuple[list[Record], Scores]:
        if summary.run not in self._records:
            folder = Path(summary.folder)
            records = load(folder).records
            self._records[summary.run] = (
                records,
                scores_by_prompt(scores_of(folder), {r.sample: r.prompt for r in records}),
            )
        return self._records[summary.run]


def independent(ours: Estimate | None, theirs: Estimate | None, factor: float = 1.0) -> Comparison | None:
    """Return ours - factor x theirs for independent estimates; None if one is missing."""
    if ours is None or theirs is None:
        return None
    change = ours.minus(theirs, factor)
    return _comparison(change.value, change.low, change.high, 0.0)


def _comparison(value: float, low: float | None, high: float | None, equal: float) -> Comparison:
    return Comparison(value, *Estimate(value, low, high).bounds, equal)
