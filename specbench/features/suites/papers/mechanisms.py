"""Why comparisons were contradicted, computed from the same measurements.

The ratio of two speeds is that of the tokens per round, divided by that of the times per round, times what is left: time
outside of rounds, such as reading the prompt, and outputs of other lengths. The factor that is worst for the expectation
decides. Of scores and accepted lengths, the numbers on which they depend are named.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import Literal

from specbench.analysis.points import Point
from specbench.features.suites.papers.expectation import Expectation
from specbench.features.suites.papers.expectations import ExpectationVerdict, Outcome, PointOutcome
from specbench.features.suites.papers.stand_ins import SPEEDS

OVER_SD = "over_sd"  # a speedup over speculative decoding
LENGTHS = ("accepted_length", "average_tokens")
CHECKED = "target_calls"  # forwards of the target per token
Factor = Literal["tokens", "time", "rest"]


@dataclass(frozen=True)
class Factors:
    """The factors of the ratio of two speeds: tokens per round, rounds per time, and what is outside of rounds.

    `part` is the model or `host` whose time per round differs most, with its milliseconds per round in both methods.
    """

    tokens: float
    time: float
    rest: float
    part: tuple[str, float, float]

    def decisive(self, is_too_slow: bool) -> Factor:
        """Return the factor that lowers the ratio most, or raises it most."""
        numbers: dict[Factor, float] = {"tokens": self.tokens, "time": self.time, "rest": self.rest}
        return (min if is_too_slow else max)(numbers, key=lambda name: numbers[name])


def factors_of(ours: Point, theirs: Point, value: str) -> Factors | None:
    """Return the factors of the ratio of two points' speeds; None if a number is missing."""
    tokens, speeds = _ratio(ours, theirs, "accepted_length"), _ratio(ours, theirs, value)
    mine, other = (point.values.get("round_milliseconds") for point in (ours, theirs))
    if tokens is None or speeds is None or not isinstance(mine, Mapping) or not isinstance(other, Mapping):
        return None
    total, others = sum(mine.values()), sum(other.values())
    if not total or not others:
        return None
    parts = [(name, mine.get(name, 0.0), other.get(name, 0.0)) for name in dict.fromkeys((*mine, *other))]
    return Factors(
        tokens=tokens, time=others / total, rest=speeds * total / others / tokens,
        part=max(parts, key=lambda part: abs(part[1] - part[2])),
    )  # fmt: skip


def mechanism_lines(verdicts: Sequence[ExpectationVerdict], points: Sequence[Point]) -> list[str]:
    """Return a sentence for each expectation that was contradicted: which measured numbers decide it."""
    whole = [point for point in points if not point.group and not point.is_curve]
    baselines = {(point.run, ""): point for point in whole if point.baseline}
    baselines |= {(point.run, OVER_SD): point for point in whole if point.method == "sd"}
    lines = []
    for verdict in verdicts:
        contradicted = [each for each in verdict.outcomes if each.outcome is Outcome.contradicted]
        if contradicted and (reason := " ".join(_reasons(verdict, contradicted, baselines))):
            share = f"{len(contradicted)} of {len(verdict.outcomes)} contradicted"
            lines.append(f"{verdict.expected.says} ({share}): {reason}")
    return lines


def _reasons(
    verdict: ExpectationVerdict, contradicted: Sequence[PointOutcome], baselines: Mapping[tuple[str, str], Point]
) -> Iterator[str]:
    """Yield a sentence for each pair of methods of the contradicted comparisons."""
    value = verdict.expected.value
    pairs: dict[tuple[str, str], list[tuple[Point, Point]]] = {}
    for each in contradicted:
        ours, *others = each.sides
        key = (ours.run, OVER_SD if value == OVER_SD else "")
        theirs = others[0] if others else baselines.get(key)
        if theirs is not None:
            pairs.setdefault(_names(ours, theirs), []).append((ours, theirs))
    for (ours_name, theirs_name), sides in pairs.items():
        if value in (*SPEEDS, OVER_SD):
            yield from _of_speeds(ours_name, theirs_name, sides, verdict.expected)
        elif value in LENGTHS:
            yield from _of_lengths(ours_name, theirs_name, sides)
        else:
            yield from _of_checks(ours_name, theirs_name, sides)


def _names(ours: Point, theirs: Point) -> tuple[str, str]:
    """Return names that distinguish two points: their methods, else their settings, else their tasks."""
    if ours.method != theirs.method:
        return ours.method, theirs.method
    if ours.name != theirs.name:
        return ours.name, theirs.name
    return f"{ours.method} on {ours.task}", f"{theirs.method} on {theirs.task}"


def _of_speeds(ours: str, theirs: str, sides: Sequence[tuple[Point, Point]], expected: Expectation) -> Iterator[str]:
    """Yield the sentence on the factor that decides the speeds of two methods most often, with the geometric means."""
    found: list[tuple[Factors, bool]] = []  # with whether the first method is too slow for the expectation
    for one, two in sides:
        ratio, factors = _ratio(one, two, expected.value), factors_of(one, two, expected.value)
        if ratio is not None and factors is not None:
            found.append((factors, ratio < 1.0 if expected.is_two_sided else expected.at_least is not None))
    if not found:
        return
    ((decisive, _),) = Counter(factors.decisive(is_slow) for factors, is_slow in found).most_common(1)
    tokens = geometric_mean(factors.tokens for factors, _ in found)
    time = geometric_mean(factors.time for factors, _ in found)
    rest = geometric_mean(factors.rest for factors, _ in found)
    rounds = (
        f"a round of {ours} commits {tokens:.2f} times the tokens of one of {theirs} and takes {1.0 / time:.2f} times as"
        " long"
    )
    names = Counter(factors.part[0] for factors, _ in found)
    ((part, _),) = names.most_common(1)
    of_part = [factors.part for factors, _ in found if factors.part[0] == part]
    mine, other = fmean(each[1] for each in of_part), fmean(each[2] for each in of_part)
    details = {
        "tokens": "; the tokens per round decide",
        "time": f"; the time decides, most of all that of {part} ({mine:.1f} against {other:.1f} ms per round)",
        "rest": f"; the time outside of rounds, such as reading the prompt, decides (a factor of {rest:.2f})",
    }
    yield f"{rounds}{details[decisive]}."


def _of_lengths(ours: str, theirs: str, sides: Sequence[tuple[Point, Point]]) -> Iterator[str]:
    mine, other = _numbers(sides, "acceptance_rate")
    if mine:
        yield f"{ours} accepts {_range(mine)} of the drafted tokens{f', {theirs} {_range(other)}' if other else ''}."


def _of_checks(ours: str, theirs: str, sides: Sequence[tuple[Point, Point]]) -> Iterator[str]:
    mine, other = _numbers(sides, CHECKED)
    if mine and other:
        yield f"{ours} runs the target {_range(mine)} times per token, {theirs} {_range(other)} times."


def _numbers(sides: Sequence[tuple[Point, Point]], value: str) -> tuple[list[float], list[float]]:
    """Return a value of the first and of the second points, where they have it."""
    first, second = ([n for p in side if (n := p.number(value)) is not None] for side in zip(*sides, strict=True))
    return first, second


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.2f}", f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"


def _ratio(ours: Point, theirs: Point, value: str) -> float | None:
    """Return the ratio of a value of two points; None if a number is missing or zero."""
    first, second = ours.number(value), theirs.number(value)
    return first / second if first and second else None
