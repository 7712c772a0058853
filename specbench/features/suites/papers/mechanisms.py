"""Split the ratio of two speeds of a contradicted claim into tokens per round, time per round, and the rest.

Times are relative to a token of the baseline of the same run. What is left is time outside rounds, such as reading the
prompt, and the length of outputs. Named are all factors with which at 1 the claim would hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from specbench.analysis.points import Point
from specbench.features.suites.papers.expectation import Expectation
from specbench.features.suites.papers.expectations import ExpectationVerdict, Outcome
from specbench.features.suites.papers.stand_ins import LENGTHS, SPEEDS

OVER_SD = "over_sd"  # a speedup over speculative decoding
Sides = tuple[Point, Point]


@dataclass(frozen=True)
class Factors:
    """The factors of the ratio of two speeds; their product is the ratio.

    `tokens` is the ratio of the tokens per round, `time` that of the rounds per second, `rest` all else.
    """

    tokens: float
    time: float
    rest: float

    @property
    def ratio(self) -> float:
        """The ratio of the speeds."""
        return self.tokens * self.time * self.rest

    def sufficient(self, needed: float) -> list[str]:
        """Return the factors each of which would let the ratio reach the needed one if it were 1, in the words of a page."""
        named = {
            "the tokens per round": self.tokens, "the time per round": self.time,
            "what is outside rounds": self.rest,
        }  # fmt: skip
        sign = 1.0 if self.ratio < needed else -1.0
        return [name for name, factor in named.items() if sign * (self.ratio / factor - needed) >= 0.0]


def mechanism_lines(verdicts: Sequence[ExpectationVerdict], points: Sequence[Point]) -> list[str]:
    """Return a line for each contradicted claim about speeds or accepted lengths, with the numbers of both sides."""
    whole = [point for point in points if not point.group and not point.is_curve]
    baselines = {point.run: point for point in whole if point.baseline}
    of_sd = {point.run: point for point in whole if point.method == "sd"}
    lines = []
    for verdict in verdicts:
        contradicted = [each for each in verdict.outcomes if each.outcome is Outcome.contradicted]
        against = of_sd if verdict.expected.value == OVER_SD else baselines
        pairs: dict[tuple[str, str], list[Sides]] = {}
        for each in contradicted:
            ours, theirs = each.sides[0], each.sides[1] if len(each.sides) > 1 else against.get(each.sides[0].run)
            if theirs is not None:
                pairs.setdefault(_names(ours, theirs), []).append((ours, theirs))
        reasons = [
            text for names, sides in pairs.items() for text in _reasons(names, sides, verdict.expected, baselines)
        ]
        if reasons:
            share = f"{len(contradicted)} of {len(verdict.outcomes)} contradicted"
            lines.append(f"{verdict.expected.says} ({share}): {'; '.join(reasons)}")
    return lines


def factors_of(sides: Sides, value: str, baselines: Mapping[str, Point]) -> Factors | None:
    """Return the factors of the ratio of two points' speeds; None if a number is missing."""
    tokens, speeds = _ratio(sides, "accepted_length"), _ratio(sides, value)
    times = [_time(point, baselines.get(point.run)) for point in sides]
    if tokens is None or speeds is None or not all(times):
        return None
    mine, other = times
    time = other / mine  # type: ignore[operator]  # both are positive
    return Factors(tokens, time, speeds / tokens / time)


def _reasons(
    names: tuple[str, str], sides: Sequence[Sides], expected: Expectation, baselines: Mapping[str, Point]
) -> Iterator[str]:
    """Yield what two methods differ in, as geometric means over the contradicted comparisons."""
    ours, theirs = names
    accepted = _accepted(names, sides)
    if expected.value in LENGTHS and accepted:
        yield accepted
    if expected.value not in (*SPEEDS, OVER_SD):
        return
    found = [factors for each in sides if (factors := factors_of(each, expected.value, baselines)) is not None]
    if not found:
        return
    mean = Factors(*(geometric_mean(getattr(each, key) for each in found) for key in ("tokens", "time", "rest")))
    text = (
        f"a round of {ours} has {mean.tokens:.2f} times the tokens of one of {theirs} and takes"
        f" {1.0 / mean.time:.2f} times as long; time outside rounds, such as reading prompts, and lengths of outputs are a"
        f" factor of {mean.rest:.2f}"
    )
    enough = mean.sufficient(_needed(expected, mean.ratio))
    reason = f"the claim would hold without the difference in {' or in '.join(enough)}"
    yield ", ".join(
        filter(None, (text, reason if enough else "no single factor suffices to change the outcome", accepted))
    )


def _needed(expected: Expectation, ratio: float) -> float:
    """Return the ratio at which a claim would hold; of a claim with a margin, the nearer end of it."""
    needed = expected.factor * (expected.bound if isinstance(expected.bound, int | float) else 1.0)
    return needed * (1.0 - expected.margin if ratio < needed else 1.0 + expected.margin)


def _accepted(names: tuple[str, str], sides: Sequence[Sides]) -> str:
    """Return the acceptance rates of two methods in words; empty without any."""
    texts = []
    for name, points in zip(names, zip(*sides, strict=True), strict=True):
        rates = [rate for point in points if (rate := point.number("acceptance_rate")) is not None]
        if rates:
            low, high = f"{min(rates):.2f}", f"{max(rates):.2f}"
            texts.append(f"{name} accepts {low if low == high else f'{low} to {high}'} of the drafted tokens")
    return ", ".join(texts)


def _names(ours: Point, theirs: Point) -> tuple[str, str]:
    """Return names that distinguish two points: their methods, else their settings, else their tasks."""
    if ours.method != theirs.method:
        return ours.method, theirs.method
    if ours.name != theirs.name:
        return ours.name, theirs.name
    return f"{ours.method} on {ours.task}", f"{theirs.method} on {theirs.task}"


def _time(point: Point, baseline: Point | None) -> float | None:
    """Return the time of a round over that of a round of the baseline; None if a number is missing."""
    rounds = [each.values.get("round_milliseconds") for each in (point, baseline) if each is not None]
    totals = [sum(parts.values()) for parts in rounds if isinstance(parts, Mapping)]
    return totals[0] / totals[1] if len(totals) == len((point, baseline)) and all(totals) else None


def _ratio(sides: Sides, value: str) -> float | None:
    """Return the ratio of a value of two points; None if a number is missing or zero."""
    first, second = (point.number(value) for point in sides)
    return first / second if first and second else None
