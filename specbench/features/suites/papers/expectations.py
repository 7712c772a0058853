"""The expectations of a suite, checked in every run.

One rule decides each outcome. The ratio or difference of a value and its bound has a 95 % interval, over the same prompts
where the records allow it (`comparisons.py`). A one-sided expectation is confirmed or contradicted if the whole interval
lies on one side of equality. One with a margin is decided if the whole interval lies inside or outside the margin.
Everything else is within the noise. There is no correction for the number of comparisons, nor for the choice of the best of
several settings. Two more rules say which outcomes are not counted: those that follow from a stand-in's costs and acceptance
(`stand_ins.py`), and comparisons of variances with too few rejections.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from specbench.analysis.intervals import Estimate
from specbench.analysis.metric import metric_of
from specbench.analysis.points import Point
from specbench.features.suites.papers.comparisons import Comparison, Comparisons, independent
from specbench.features.suites.papers.expectation import Expectation, Take
from specbench.features.suites.papers.stand_ins import StandIns
from specbench.features.suites.suite import Suite


class Outcome(StrEnum):
    """How an expectation came out for a point."""

    confirmed = "confirmed"
    expected = "inconclusive with a trend for it"
    other = "inconclusive with a trend against it"
    contradicted = "contradicted"
    undecided = "not decided: no interval or no difference"
    stand_in = "not counted, since it follows from the stand-ins"
    few_rejections = "not counted, with too few rejections"


NOT_COUNTED = (Outcome.undecided, Outcome.stand_in, Outcome.few_rejections)
DECIDED = (Outcome.confirmed, Outcome.contradicted)
PLACES = ("pair", "task", "T")  # of a run


class Measured(NamedTuple):
    """A comparison of a value with its bound, and with the two ends of the margin around it.

    `ratio` is the value divided by the bound of an expectation with a margin, if both are numbers.
    """

    comparison: Comparison
    least: Comparison
    most: Comparison
    ratio: float | None = None

    @property
    def is_inside(self) -> bool:
        """Whether the value lies inside the margin."""
        return self.least.value >= self.least.equal and self.most.value <= self.most.equal

    @property
    def is_surely_inside(self) -> bool:
        """Whether the whole interval lies inside the margin."""
        return self.least.low >= self.least.equal and self.most.high <= self.most.equal

    @property
    def is_surely_outside(self) -> bool:
        """Whether the whole interval lies outside the margin."""
        return self.least.high < self.least.equal or self.most.low > self.most.equal


class PointOutcome(NamedTuple):
    """The outcome at a point.

    `sides` are the point and that of its bound, if the bound is one. `prompts_needed` is the number of prompts that would
    decide an outcome within the noise. `reason` says by which numbers an outcome is not counted, and `found` what it would
    be.
    """

    outcome: Outcome
    sides: tuple[Point, ...]
    measured: Measured
    prompts_needed: float | None = None
    reason: str = ""
    found: Outcome | None = None

    @property
    def setting(self) -> str:
        """The pair, task, method, setting and temperature of the point."""
        point = self.sides[0]
        words = [word for word in (point.pair, point.task, point.method, point.setting) if word]
        return f"{' '.join(words)} at T = {point.T:g}"


@dataclass(frozen=True)
class ExpectationVerdict:
    """An expectation with its outcomes, and the counted outcomes of its secondary value `beside`."""

    expected: Expectation
    outcomes: tuple[PointOutcome, ...]
    secondary: tuple[Outcome, ...] = ()

    @property
    def counted(self) -> list[Outcome]:
        """The outcomes without those that are not counted or have no interval."""
        return [point.outcome for point in self.outcomes if point.outcome not in NOT_COUNTED]

    @property
    def prompts_needed(self) -> int | None:
        """The number of prompts that would decide half of the outcomes within the noise, if the measured differences hold."""
        numbers = [point.prompts_needed for point in self.outcomes if point.prompts_needed is not None]
        median = statistics.median(numbers) if numbers else math.inf
        return ceil_to_two_digits(median) if math.isfinite(median) else None


def outcomes_of(
    suite: Suite,
    points: Sequence[Point],
    comparisons: Comparisons | None = None,
    stand_ins: StandIns | None = None,
) -> list[ExpectationVerdict]:
    """Return the verdict of each expectation of a suite.

    Without `comparisons`, estimates are compared as independent. Without `stand_ins`, every outcome is counted.
    """
    judge = _Judge(comparisons or Comparisons(), stand_ins or StandIns((), ()))
    return [_verdict(expectation, points, judge) for expectation in suite.expect]


class _Judge(NamedTuple):
    """What decides an outcome: comparisons of measured values, and whether a stand-in alone decides it."""

    compare: Comparisons
    stand_ins: StandIns


def _verdict(expected: Expectation, points: Sequence[Point], judge: _Judge) -> ExpectationVerdict:
    outcomes = tuple(result for group in _groups(expected, points) for result in _outcomes(expected, group, judge))
    if not expected.beside:
        return ExpectationVerdict(expected, outcomes)
    other = replace(expected, value=expected.beside, beside="")
    secondary = (result.outcome for group in _groups(other, points) for result in _outcomes(other, group, judge))
    return ExpectationVerdict(expected, outcomes, tuple(outcome for outcome in secondary if outcome not in NOT_COUNTED))


def _groups(expected: Expectation, points: Sequence[Point]) -> list[list[Point]]:
    """Return the points to compare with each other.

    Points are compared within a run, with two exceptions. If the bound names a pair, a task, a temperature or the swept
    value `x`, points of all runs are compared that agree in the other conditions. If the bound is a number, the best or the
    lowest of several points is chosen over all runs under the same conditions. Runs on different machines are never
    compared. Points of groups of prompts are compared only if the expectation names the groups.
    """
    bound = expected.bound if isinstance(expected.bound, dict) else {}
    keys: tuple[str, ...] = ("run",)
    if bound.keys() & {*PLACES, "x"} or (isinstance(expected.bound, int | float) and expected.take != "each"):
        keys = tuple(key for key in (*PLACES, "simulated", "data", "machine") if key not in bound)
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        if bool(point.group) == ("group" in expected.of):
            groups[point.at(keys)].append(point)
    return list(groups.values())


def _outcomes(expected: Expectation, points: Sequence[Point], judge: _Judge) -> Iterator[PointOutcome]:
    """Yield the outcome for each pair of a point and its bound."""
    for point in _chosen(_of_enough_score(expected, points), expected.of, expected, expected.take):
        for other, measured in _compared(expected, point, points, judge.compare):
            outcome, sides = _outcome(expected, measured), (point,) if other is None else (point, other)
            left_out, reason = _not_counted(expected, sides, outcome, judge)
            if left_out is not None:
                yield PointOutcome(left_out, sides, measured, None, reason, outcome)
                continue
            in_noise = outcome in (Outcome.expected, Outcome.other)
            needed = _needed(expected, measured, point.number("prompts")) if in_noise else None
            yield PointOutcome(outcome, sides, measured, needed)


def _not_counted(
    expected: Expectation, sides: Sequence[Point], outcome: Outcome, judge: _Judge
) -> tuple[Outcome | None, str]:
    """Return why an outcome is not counted, and by which numbers; None and empty if it is, as checks of the implementation.

    The rules are the same for an outcome that could not be a contradiction and for one that could not be a confirmation.
    """
    if expected.source == "identity" or outcome is Outcome.undecided:
        return None, ""
    if few := judge.compare.few_rejections(expected.value, *sides):
        return Outcome.few_rejections, few
    if expected.is_two_sided or isinstance(expected.bound, str):
        return None, ""
    number = expected.bound if isinstance(expected.bound, int | float) else 1.0
    is_above = (outcome in (Outcome.confirmed, Outcome.expected)) == (expected.at_most is None)
    is_best = expected.take == "best" and expected.bound_take in (None, "best")
    reason = judge.stand_ins.decides(sides, expected.factor * number, expected.value, is_above, is_best)
    return (Outcome.stand_in, reason) if reason else (None, "")


def _needed(expected: Expectation, measured: Measured, prompts: float | None) -> float | None:
    """Return how many prompts would decide, if widths of intervals fall with the square root of their number."""
    sides = (measured.least, measured.most) if expected.is_two_sided else (measured.comparison,)
    value, low, high, limit = min(sides, key=lambda side: abs(side.value - side.equal))
    if not prompts or not math.isfinite(high - low):
        return None
    width = value - low if value >= limit else high - value
    return prompts * (width / abs(value - limit)) ** 2 if value != limit else math.inf


def ceil_to_two_digits(number: float) -> int:
    """Return a number rounded up to two digits: 231 as 240."""
    unit: int = 10 ** max(len(str(math.ceil(number))) - 2, 0)
    return math.ceil(number / unit) * unit


def _compared(
    expected: Expectation, point: Point, points: Sequence[Point], compare: Comparisons
) -> Iterator[tuple[Point | None, Measured]]:
    """Yield the comparison of a point with each of its bounds, and the point of the bound if it is one.

    None of a curve that neither side reaches.
    """
    bound, value = expected.bound, expected.value
    if isinstance(bound, dict):
        take = expected.bound_take or expected.take
        for other in _chosen(points, bound, expected, take):
            if other.at(expected.by) == point.at(expected.by) and other is not point:
                between = partial(compare.between, point, other, value)
                for measured in _measured(expected, between, point.number(value), other.number(value)):
                    yield other, measured
        return
    theirs = compare.estimate(point, bound) if isinstance(bound, str) else Estimate(bound, bound, bound)
    between = partial(independent, compare.estimate(point, value), theirs)
    for measured in _measured(expected, between, point.number(value), theirs.value if theirs else None):
        yield None, measured


def _measured(
    expected: Expectation, between: Callable[[float], Comparison | None], ours: float | None, theirs: float | None
) -> Iterator[Measured]:
    """Yield a comparison with `factor` x a bound and the ends of its margin; none if a side is missing."""
    factor, margin = expected.factor, expected.margin
    found = [between(end) for end in (factor, factor * (1.0 - margin), factor * (1.0 + margin))]
    if None not in found:
        center, least, most = (side for side in found if side is not None)
        ratio = ours / (factor * theirs) if expected.is_two_sided and ours is not None and theirs else None
        yield Measured(center, least, most, ratio)


def _of_enough_score(expected: Expectation, points: Sequence[Point]) -> Sequence[Point]:
    """Return the points with at least the score of those that `at_score_of` names; all points without it."""
    if not expected.at_score_of:
        return points
    scores = [p.number("score") for p in points if p.matches(expected.at_score_of)]
    least = (1.0 - expected.score_margin) * max((score for score in scores if score is not None), default=math.inf)
    return [p for p in points if (score := p.number("score")) is not None and score >= least]


def _chosen(
    points: Sequence[Point], dimensions: Mapping[str, object], expected: Expectation, take: Take
) -> list[Point]:
    """Return the points with these dimensions that have the value; on request only the best or lowest of each group."""
    chosen = [p for p in points if p.matches(dimensions) and p.values.get(expected.value) is not None]
    sign = metric_of(expected.value).better.sign
    if take in ("best", "lowest best"):
        keys = expected.by if take == "best" else (*PLACES, *expected.by)
        chosen = _extreme(chosen, expected.value, keys, sign)
    if take in ("lowest", "lowest best"):
        chosen = _extreme(chosen, expected.value, expected.by, -1.0)
    return chosen


def _extreme(points: Sequence[Point], value: str, keys: Sequence[str], sign: float) -> list[Point]:
    """Return the point with the largest value times `sign` for each value of the dimensions `keys`."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.at(keys)].append(point)
    return [max(members, key=lambda p: _signed(p, value, sign)) for members in groups.values()]


def _signed(point: Point, value: str, sign: float) -> float:
    number = point.number(value)
    return -math.inf if number is None else sign * number


def _outcome(expected: Expectation, measured: Measured) -> Outcome:
    """Return on which side of its limits a comparison lies, and whether its whole interval does.

    A comparison without an interval, or of values that are equal on every prompt, is undecided.
    """
    value, low, high, equal = measured.comparison
    if not math.isfinite(high - low) or low == high == equal:
        return Outcome.undecided
    if expected.is_two_sided:
        wants_inside = expected.near is not None
        if measured.is_surely_inside or measured.is_surely_outside:
            return Outcome.confirmed if measured.is_surely_inside == wants_inside else Outcome.contradicted
        return Outcome.expected if measured.is_inside == wants_inside else Outcome.other
    if expected.at_most is not None:
        value, low, high, equal = -value, -high, -low, -equal
    if value >= equal:
        return Outcome.confirmed if low >= equal else Outcome.expected
    return Outcome.contradicted if high < equal else Outcome.other
