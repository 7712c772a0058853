"""The expectations of a suite, checked in every run.

One rule decides all of them. The ratio or difference of a value and its bound has a 95 % interval, over the same prompts
where the records allow it (`specbench.analysis.comparisons`). An expectation is confirmed or contradicted if the whole
interval lies on one side of equality, and within the noise otherwise. There is no correction for the number of comparisons,
nor for the choice of the best of several settings.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from specbench.analysis.comparisons import Comparison, Comparisons, independent
from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point
from specbench.config.suite import Expectation, Suite
from specbench.reporting.columns import column_of

SOURCES = {"paper": "the paper makes", "project": "this project adds"}
ERRORS = "Each is decided by a 95 % interval, without a correction for their number."
SELECTED = (
    "Where the best of several settings is compared, it is chosen on the same prompts on which it is judged. This favors it,"
    " and the intervals are not corrected for it."
)


class Outcome(StrEnum):
    """How an expectation came out for a point."""

    confirmed = "confirmed"
    alike = "cannot be distinguished"
    expected = "on the expected side within the noise"
    other = "on the other side within the noise"
    contradicted = "contradicted"
    undecided = "not decided, without an interval or any difference"
    certain = "not tested, because these models cannot contradict it"


NOT_COUNTED = (Outcome.undecided, Outcome.certain)


class PointOutcome(NamedTuple):
    """The outcome at a point. `prompts_needed` is the number of prompts that would decide an outcome within the noise."""

    outcome: Outcome
    setting: str
    prompts_needed: float | None = None


@dataclass(frozen=True)
class ExpectationVerdict:
    """An expectation with its outcomes, and those of its secondary value."""

    expected: Expectation
    outcomes: tuple[PointOutcome, ...]
    secondary: tuple[Outcome, ...] = ()

    @property
    def counted(self) -> list[Outcome]:
        """The outcomes at points that can contradict the expectation, and that have an interval."""
        return [point.outcome for point in self.outcomes if point.outcome not in NOT_COUNTED]

    @property
    def prompts_needed(self) -> int | None:
        """The number of prompts that would decide half of the outcomes within the noise, if the measured differences hold."""
        numbers = [point.prompts_needed for point in self.outcomes if point.prompts_needed is not None]
        median = statistics.median(numbers) if numbers else math.inf
        return ceil_to_two_digits(median) if math.isfinite(median) else None


def outcomes_of(
    suite: Suite, points: Sequence[Point], comparisons: Comparisons | None = None
) -> list[ExpectationVerdict]:
    """Return the verdict of each expectation of a suite. Without `comparisons`, estimates are compared as independent."""
    compare = comparisons or Comparisons()
    return [_verdict(expectation, points, compare) for expectation in suite.expect]


def outcome_lines(verdicts: Sequence[ExpectationVerdict]) -> list[str]:
    """Return a line for each expectation: the number of points with each outcome."""
    return list(map(_line, verdicts))


def outcome_counts(verdicts: Sequence[ExpectationVerdict], is_of_paper: bool = True) -> list[str]:
    """Return sentences that count the outcomes, those of the paper's comparisons and of this project's separately.

    `is_of_paper` says whether the suite reproduces a paper at all. Returns an empty list without an outcome.
    """
    by_source: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for verdict in verdicts:
        by_source[verdict.expected.source if is_of_paper else ""].update(verdict.counted)
    sentences = [_counts(by_source[source], source) for source in ("", *SOURCES) if by_source[source].total()]
    several = [ERRORS] if sum(counts.total() for counts in by_source.values()) > 1 else []
    return [
        *sentences,
        *several,
        *([SELECTED] if any(verdict.expected.best and verdict.counted for verdict in verdicts) else []),
    ]


def _counts(counts: Counter[Outcome], source: str) -> str:
    which = f"comparison that {SOURCES[source]}" if source else "expected outcome"
    if counts.total() == 1:
        (outcome,) = counts
        return f"The {which} {_verb(outcome)}{outcome}."
    texts = [f"{counts[outcome]} {_verb(outcome, counts[outcome])}{outcome}" for outcome in Outcome if counts[outcome]]
    return f"Of {counts.total()} {which.replace(' ', 's ', 1) if source else f'{which}s'}, {', '.join(texts)}."


def _verb(outcome: Outcome, count: int = 1) -> str:
    return "" if outcome is Outcome.alike else "is " if count == 1 else "are "


def _line(verdict: ExpectationVerdict) -> str:
    expected, settings = verdict.expected, defaultdict[Outcome, list[str]](list)
    says = f"{expected.says}{' (added by this project)' if expected.source == 'project' else ''}"
    for decided in verdict.outcomes:
        settings[decided.outcome].append(decided.setting)
    if not settings:
        return f"{says}: not compared, since no run has both sides"
    counts = _counted(point.outcome for point in verdict.outcomes)
    needed = (
        f"; about {verdict.prompts_needed:,} prompts would decide half of those within the noise"
        if verdict.prompts_needed
        else ""
    )
    contradicted = settings[Outcome.contradicted]
    is_mixed = 0 < len(contradicted) < len(verdict.outcomes)
    against = f" (contradicted: {'; '.join(dict.fromkeys(contradicted))})" if is_mixed else ""
    secondary = f"; by {column_of(expected.beside).title}: {_counted(verdict.secondary)}" if verdict.secondary else ""
    why = f". {expected.because}" if expected.because and (contradicted or settings[Outcome.other]) else ""
    return f"{says}: {counts}{against}{needed}{secondary}{why}"


def _counted(outcomes: Sequence[Outcome] | Iterator[Outcome]) -> str:
    """Return `2 of 3 confirmed, 1 of 3 contradicted`; a single outcome without numbers."""
    counts = Counter(outcomes)
    if counts.total() == 1:
        return str(next(iter(counts)))
    return ", ".join(f"{counts[outcome]} of {counts.total()} {outcome}" for outcome in Outcome if counts[outcome])


def _verdict(expected: Expectation, points: Sequence[Point], compare: Comparisons) -> ExpectationVerdict:
    outcomes = tuple(result for group in _groups(expected, points) for result in _outcomes(expected, group, compare))
    if not expected.beside:
        return ExpectationVerdict(expected, outcomes)
    other = replace(expected, value=expected.beside, beside="")
    secondary = (result.outcome for group in _groups(other, points) for result in _outcomes(other, group, compare))
    return ExpectationVerdict(expected, outcomes, tuple(outcome for outcome in secondary if outcome not in NOT_COUNTED))


def _groups(expected: Expectation, points: Sequence[Point]) -> list[list[Point]]:
    """Return the points to compare with each other, without those of groups of prompts.

    Points are compared within a run, with three exceptions. If the bound is a number, the best of several settings is chosen
    over all runs under the same conditions. If the bound fixes `x`, the swept value, all runs under the same conditions are
    compared, since settings with different baselines are measured in different runs. If the bound names a temperature, runs
    at all temperatures are compared. Runs on different machines are never compared.
    """
    keys: tuple[str, ...] = ("run",)
    conditions = ("pair", "task", "simulated", "data", "machine")
    if isinstance(expected.bound, dict):
        if "x" in expected.bound:
            keys = (*conditions, "T")
        if "T" in expected.bound:
            keys = conditions
    elif expected.best:
        keys = (*conditions, "T")
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        if not point.group:
            groups[point.at(keys)].append(point)
    return list(groups.values())


def _outcomes(expected: Expectation, points: Sequence[Point], compare: Comparisons) -> Iterator[PointOutcome]:
    """Yield the outcome for each pair of a point and its bound."""
    for point in _chosen(points, expected.of, expected):
        for comparison in _compared(expected, point, points, compare):
            is_certain = any((point.number(k) or 0.0) >= least for k, least in expected.cannot_fail_from.items())
            outcome = Outcome.certain if is_certain else _outcome(expected, comparison)
            in_noise = outcome in (Outcome.expected, Outcome.other)
            yield PointOutcome(
                outcome, _setting_text(point), _needed(comparison, point.number("prompts")) if in_noise else None
            )


def _needed(comparison: Comparison, prompts: float | None) -> float | None:
    """Return how many prompts would exclude equality, if widths of intervals fall with the square root of their number."""
    value, low, high, equal = comparison
    if not prompts or not math.isfinite(high - low):
        return None
    width = value - low if value >= equal else high - value
    return prompts * (width / abs(value - equal)) ** 2 if value != equal else math.inf


def ceil_to_two_digits(number: float) -> int:
    """Return a number rounded up to two digits: 231 as 240."""
    unit: int = 10 ** max(len(str(math.ceil(number))) - 2, 0)
    return math.ceil(number / unit) * unit


def _compared(
    expected: Expectation, point: Point, points: Sequence[Point], compare: Comparisons
) -> Iterator[Comparison]:
    """Yield the comparison of a point with each of its bounds. None of a curve that neither side reaches."""
    bound, value = expected.bound, expected.value
    if isinstance(bound, dict):
        others = [other for other in _chosen(points, bound, expected) if other.at(expected.by) == point.at(expected.by)]
        comparisons = [compare.between(point, other, value, expected.factor) for other in others]
    elif isinstance(bound, str):
        comparisons = [independent(compare.estimate(point, value), compare.estimate(point, bound), expected.factor)]
    else:
        comparisons = [independent(compare.estimate(point, value), Estimate(bound, bound, bound), expected.factor)]
    yield from (comparison for comparison in comparisons if comparison is not None)


def _chosen(points: Sequence[Point], dimensions: Mapping[str, object], expected: Expectation) -> list[Point]:
    """Return the points with these dimensions that have the value; on request only the best of each group of `by`."""
    chosen = [p for p in points if p.matches(dimensions) and p.values.get(expected.value) is not None]
    if not expected.best:
        return chosen
    candidates: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in chosen:
        candidates[point.at(expected.by)].append(point)
    sign = -1.0 if column_of(expected.value).lower_is_better else 1.0
    return [max(members, key=lambda p: _signed(p, expected.value, sign)) for members in candidates.values()]


def _signed(point: Point, value: str, sign: float) -> float:
    number = point.number(value)
    return -math.inf if number is None else sign * number


def _outcome(expected: Expectation, comparison: Comparison) -> Outcome:
    """Return on which side of equality a comparison lies, and whether its whole interval does.

    A comparison without an interval, or of values that are equal on every prompt, is undecided.
    """
    value, low, high, equal = comparison
    if not math.isfinite(high - low) or low == high == equal:
        return Outcome.undecided
    if expected.equals is not None:
        return Outcome.alike if low <= equal <= high else Outcome.contradicted
    if expected.at_most is not None:
        value, low, high, equal = -value, -high, -low, -equal
    if value >= equal:
        return Outcome.confirmed if low >= equal else Outcome.expected
    return Outcome.contradicted if high < equal else Outcome.other


def _setting_text(point: Point) -> str:
    words = [word for word in (point.pair, point.task, point.method, point.setting) if word]
    return f"{' '.join(words)} at T = {point.T:g}"
