"""The expectations of a suite, checked in every run."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

from specbench.analysis.points import Choice, Point
from specbench.config.suite import Suite
from specbench.config.suite_layout import Expectation
from specbench.report.columns import column_of

Span = tuple[float, float, float]  # a value and its interval
NOT_REACHED: Span = (-math.inf, -math.inf, -math.inf)  # of a curve, below every value


class Outcome(StrEnum):
    """How an expectation came out in a run."""

    confirmed = "confirmed"
    alike = "cannot be distinguished"
    expected = "on the expected side within the noise"
    other = "on the other side within the noise"
    contradicted = "contradicted"


def expectations(suite: Suite, points: Sequence[Point]) -> list[str]:
    """Return a line for each expectation: the number of runs with each outcome."""
    return [_line(each, points) for each in suite.expect]


def outcome_counts(suite: Suite, points: Sequence[Point]) -> list[str]:
    """Return a sentence that counts the outcomes of all expectations; none without an expectation."""
    counts = Counter(
        outcome for each in suite.expect for group in _groups(each, points) for outcome, _ in _outcomes(each, group)
    )
    if not counts:
        return []
    if counts.total() == 1:
        return [f"The expected outcome {_verb(next(iter(counts)))}{next(iter(counts))}."]
    texts = [f"{counts[outcome]} {_verb(outcome, counts[outcome])}{outcome}" for outcome in Outcome if counts[outcome]]
    return [f"Of {counts.total()} expected outcomes, {', '.join(texts)}."]


def _verb(outcome: Outcome, count: int = 1) -> str:
    return "" if outcome is Outcome.alike else "is " if count == 1 else "are "


def _line(expected: Expectation, points: Sequence[Point]) -> str:
    places: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
    for group in _groups(expected, points):
        for outcome, place in _outcomes(expected, group):
            places[outcome].append(place)
    if not any(places.values()):
        return f"{expected.says}: not measured side by side (of one pair, task and temperature)"
    counts = ", ".join(f"{outcome} {len(where)}" for outcome, where in places.items() if where)
    contradicted = places[Outcome.contradicted]
    is_mixed = 0 < len(contradicted) < sum(map(len, places.values()))
    against = f" (contradicted: {'; '.join(dict.fromkeys(contradicted))})" if is_mixed else ""
    why = f". {expected.because}" if expected.because and (contradicted or places[Outcome.other]) else ""
    return f"{expected.says}: {counts}{against}{why}"


def _groups(expected: Expectation, points: Sequence[Point]) -> list[list[Point]]:
    """Return the points to compare with each other, without those of groups of prompts.

    Points are compared within a run, with two exceptions. The best of several settings is chosen over the runs of one place
    if its bound is a number, since settings with different baselines are measured in different runs. If the bound names a
    temperature, runs at all temperatures are compared. Runs on different machines are never compared.
    """
    keys: tuple[str, ...] = ("run",)
    if not isinstance(expected.bound, dict):
        keys = ("pair", "task", "T", "simulated", "data", "machine") if expected.best else keys
    elif "T" in expected.bound:
        keys = ("pair", "task", "simulated", "data", "machine")
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        if not point.group:
            groups[point.at(keys)].append(point)
    return list(groups.values())


def _outcomes(expected: Expectation, points: Sequence[Point]) -> list[tuple[Outcome, str]]:
    """Return the outcome for each pair of a point and its bound, with the point's place."""
    return [
        (_compare(expected, value, limit), _place(point))
        for point in _chosen(points, expected.of, expected)
        for value, limit in _compared(expected, point, points)
    ]


def _compared(expected: Expectation, point: Point, points: Sequence[Point]) -> list[tuple[Span, Span]]:
    """Return a point's value with each of its bounds; curves of one run as their difference and 0."""
    bound, value = expected.bound, _span(point, expected.value)
    if isinstance(bound, dict):
        others = [other for other in _chosen(points, bound, expected) if other.at(expected.by) == point.at(expected.by)]
        return [_difference(point, other, expected.value) or (value, _span(other, expected.value)) for other in others]
    if isinstance(bound, str):
        return [(value, _span(point, bound))] if point.values.get(bound) is not None else []
    return [(value, (float(bound),) * 3)]


def _difference(point: Point, other: Point, value: str) -> tuple[Span, Span] | None:
    """Return the difference of two curves of one run, and 0. None for other values, and if neither has a value."""
    ours, theirs = point.values[value], other.values[value]
    if point.run != other.run or not isinstance(ours, Choice) or not isinstance(theirs, Choice):
        return None
    found = ours.minus(theirs)
    if found is None or found.value is None or found.low is None or found.high is None:
        return None
    return (found.value, found.low, found.high), (0.0, 0.0, 0.0)


def _chosen(points: Sequence[Point], wanted: Mapping[str, object], expected: Expectation) -> list[Point]:
    """Return the points with the wanted dimensions that have the value; on request only the best of each place."""
    chosen = [p for p in points if p.matches(wanted) and p.values.get(expected.value) is not None]
    if not expected.best:
        return chosen
    places: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in chosen:
        places[point.at(expected.by)].append(point)
    sign = -1.0 if column_of(expected.value).lower_is_better else 1.0
    return [max(each, key=lambda p: sign * _span(p, expected.value)[0]) for each in places.values()]


def _span(point: Point, value: str) -> Span:
    number, bounds = point.number(value), point.bounds(value)
    return NOT_REACHED if number is None or bounds is None else (number, *bounds)


def _compare(expected: Expectation, ours: Span, limit: Span) -> Outcome:
    """Return on which side of its bound a value lies, and whether their intervals overlap."""
    (value, low, high), (bound, below, above) = ours, limit
    if expected.equals is not None:
        overlap = ours == limit or (low <= above and below <= high)
        return Outcome.alike if overlap else Outcome.contradicted
    if expected.at_most is not None:
        (value, low, high), (bound, below, above) = (-value, -high, -low), (-bound, -above, -below)
    if value >= bound:
        return Outcome.confirmed if low >= above > -math.inf else Outcome.expected
    return Outcome.other if high >= below else Outcome.contradicted


def _place(point: Point) -> str:
    words = [word for word in (point.pair, point.task, point.method, point.setting) if word]
    return f"{' '.join(words)} at T = {point.T:g}"
