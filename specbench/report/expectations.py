"""The expectations of a suite, checked in every run."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

from specbench.analysis.points import Point
from specbench.config.suite import Expectation, Suite

Span = tuple[float, float, float]  # a value and its interval
NOT_REACHED: Span = (-math.inf, -math.inf, -math.inf)  # of a curve, below every value


class Outcome(StrEnum):
    """How an expectation came out in a run."""

    confirmed = "confirmed"
    expected = "on the expected side within the noise"
    other = "on the other side within the noise"
    contradicted = "contradicted"


def expectations(suite: Suite, points: Sequence[Point]) -> list[str]:
    """Return a line for each expectation: the number of runs with each outcome."""
    return [_line(each, points) for each in suite.expect]


def outcome_counts(suite: Suite, points: Sequence[Point]) -> list[str]:
    """Return a sentence that counts the outcomes of all expectations; none without an expectation."""
    counts = Counter(
        outcome for each in suite.expect for of_run in _by_run(points) for outcome, _ in _outcomes(each, of_run)
    )
    if not counts:
        return []
    texts = [f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]]
    return [f"Of {counts.total()} comparisons that the paper leads to expect, {', '.join(texts)}."]


def _line(expected: Expectation, points: Sequence[Point]) -> str:
    places: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
    for of_run in _by_run(points):
        for outcome, place in _outcomes(expected, of_run):
            places[outcome].append(place)
    if not any(places.values()):
        return f"{expected.says}: not measured side by side (of one pair, task and temperature)"
    counts = ", ".join(f"{outcome} {len(where)}" for outcome, where in places.items() if where)
    contradicted = places[Outcome.contradicted]
    against = f" (contradicted: {'; '.join(dict.fromkeys(contradicted))})" if contradicted else ""
    why = f". {expected.because}" if expected.because and (contradicted or places[Outcome.other]) else ""
    return f"{expected.says}: {counts}{against}{why}"


def _by_run(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points of each run, without those of groups of prompts."""
    runs: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if not point.group:
            runs[point.run].append(point)
    return list(runs.values())


def _outcomes(expected: Expectation, points: Sequence[Point]) -> list[tuple[Outcome, str]]:
    """Return the outcome for each pair of a point and its bound in one run, with the point's place."""
    at_least = expected.at_least is not None
    bound = expected.at_least if at_least else expected.at_most
    assert bound is not None
    sign = 1.0 if at_least else -1.0
    if isinstance(bound, dict):
        limits = [_span(point, expected.value) for point in _chosen(points, bound, expected)]
    else:
        limits = [(float(bound),) * 3]
    return [
        (_compare(_span(point, expected.value), limit, sign), _place(point))
        for point in _chosen(points, expected.of, expected)
        for limit in limits
    ]


def _chosen(points: Sequence[Point], wanted: Mapping[str, object], expected: Expectation) -> list[Point]:
    """Return the points with the wanted dimensions that have the value; on request only the best of them."""
    chosen = [p for p in points if p.matches(wanted) and p.values.get(expected.value) is not None]
    if expected.best and chosen:
        sign = 1.0 if expected.at_least is not None else -1.0
        return [max(chosen, key=lambda p: sign * _span(p, expected.value)[0])]
    return chosen


def _span(point: Point, value: str) -> Span:
    number, bounds = point.number(value), point.bounds(value)
    return NOT_REACHED if number is None or bounds is None else (number, *bounds)


def _compare(ours: Span, limit: Span, sign: float) -> Outcome:
    """On which side of its bound a value lies, and whether their intervals overlap. `sign` is -1 for upper bounds."""
    (value, low, high), (bound, below, above) = ours, limit
    if sign < 0:
        (value, low, high), (bound, below, above) = (-value, -high, -low), (-bound, -above, -below)
    if value >= bound:
        return Outcome.confirmed if low >= above > -math.inf else Outcome.expected
    return Outcome.other if high >= below else Outcome.contradicted


def _place(point: Point) -> str:
    words = [word for word in (point.pair, point.task, point.method, point.setting) if word]
    return f"{' '.join(words)} at T = {point.T:g}"
