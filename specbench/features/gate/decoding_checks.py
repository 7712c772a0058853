"""Checks of one method of one run, BASE against NEW: decoding, quality and speed."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from specbench import scoring
from specbench.analysis.metric import METRICS, Direction, metric_of
from specbench.analysis.number_format import SCORE, TIMES
from specbench.features.gate.changes import Blocks, Comparable, Paired, judge, ratio
from specbench.features.gate.snapshot import GenerationSummary, MeasuredRun, Timings
from specbench.features.gate.verdict import Finding, GateLimits, Quantity, Status, sides
from specbench.scoring import Scored

PARTS = (("accepted", "tested"), ("tokens", "rounds"))  # acceptance rate, mean acceptance length
TESTED = "tested tokens"
SHARES = ("mean", "macro", "pass@1")  # how values of 0 and 1 are combined

Generations = Sequence[GenerationSummary]


def shared(base: Generations, new: Generations) -> tuple[list[GenerationSummary], list[GenerationSummary]]:
    """Return the generations that are on both sides, in the same order."""
    ours, theirs = ({(row.sample, row.repeat): row for row in side} for side in (base, new))
    keys = sorted(ours.keys() & theirs.keys())
    return [ours[key] for key in keys], [theirs[key] for key in keys]


def decoding(base: Generations, new: Generations, inexact: str, limits: GateLimits, across: bool = False) -> Finding:
    """Return the finding on decoding: token for token, or within tolerance if `inexact` is a reason why bits may differ.

    Token for token, any difference is a regression, except fewer forwards or tested tokens for the same output. With
    `inexact`, changes of the means over prompts decide. With `across`, for settings that differ on purpose, more forwards of
    one model and fewer of another are inconclusive.
    """
    a, b = shared(base, new)
    if not a:
        return Finding(Status.incomparable, "nothing to compare", "no generation is on both sides", "–")
    ids = sum(x.ids != y.ids for x, y in zip(a, b, strict=True))
    counters = sum(x.counters != y.counters for x, y in zip(a, b, strict=True))
    if not ids and not counters:
        return Finding(Status.same, "same decoding", f"{len(a)} generations, token for token", "same")
    differ = f"{ids} of {len(a)} generations have different tokens, {counters} different counters; {effect(a, b)}"
    return _about(a, b, f"{differ}; {inexact}", limits, across) if inexact else _exactly(a, b, ids, differ)


def other_tokens(base: Generations, new: Generations, finding: Finding) -> Finding:
    """Return the finding on decoding on another processor: inconclusive if no loss was found but an output has other tokens.

    Either the processor's arithmetic or a change of the code may be the cause, and the counters do not tell which.
    """
    a, b = shared(base, new)
    ids = sum(x.ids != y.ids for x, y in zip(a, b, strict=True))
    if not ids or finding.status is Status.regression:
        return finding
    cause = "another processor's arithmetic may be the cause; help: compare on the recorded machine"
    return Finding(
        Status.inconclusive,
        "other tokens",
        f"{finding.detail}; {cause}",
        f"{ids} of {len(a)} outputs have other tokens",
    )


def _exactly(a: Generations, b: Generations, ids: int, differ: str) -> Finding:
    """Return the finding on unequal decoding: an improvement if the same tokens took fewer forwards or tested tokens."""
    before, after = [{**_forwards(rows), TESTED: sum(row.tested for row in rows)} for rows in (a, b)]
    cheaper = before != after and all(after.get(key, 0.0) <= before.get(key, 0.0) for key in before | after)
    status = Status.improved if cheaper and not ids else Status.regression
    title = _title(a, b, ids)
    return Finding(status, title, differ, f"{title}: {effect(a, b)}")


def _title(a: Generations, b: Generations, ids: int) -> str:
    """Return what changed: acceptance, drafting or decoding.

    If acceptance rate and mean acceptance length change in opposite directions, drafting changed: longer drafts commit more
    tokens per round, but a smaller share of them is accepted.
    """
    if not any(row.tested for row in (*a, *b)):
        return "decoding changed"
    (rate, length), (rate_after, length_after) = ([_ratio(side, *parts) for parts in PARTS] for side in (a, b))
    by_rate, by_length = rate_after - rate, length_after - length
    limit = GateLimits().of(Quantity.acceptance)
    if limit.contains(by_rate / rate if rate else 0.0) and limit.contains(by_length / length if length else 0.0):
        return "decoding changed" if ids else "drafting changed"
    return "drafting changed" if by_rate * by_length < 0.0 else "acceptance changed"


def _about(a: Generations, b: Generations, differ: str, limits: GateLimits, across: bool) -> Finding:
    """Return the worst finding on decoding between machines or settings, by paired t-tests over prompts.

    Compares the forwards per token of each model; fewer are better. If no model has a finding, compares the acceptance rate
    and the mean acceptance length.
    """
    roles = sorted({role for row in (*a, *b) for role in row.forwards})
    ratios = [
        _Ratio(f"{role} forwards/token", partial(_forwards_of, role), attrgetter("tokens"), LOWER) for role in roles
    ]
    moves = [_moved(a, b, ratio, differ, limits) for ratio in ratios]
    if all(move is None for move in moves):
        moves = [_moved(a, b, ratio, differ, limits) for ratio in ACCEPTANCE]
    findings = [move for move in moves if move is not None]
    if across and {Status.regression, Status.improved} <= {finding.status for finding in findings}:
        detail = f"{differ}; some models run more often and some less; their times decide"
        return Finding(Status.inconclusive, "other mix of forwards", detail, effect(a, b))
    same = Finding(Status.same, "same decoding effort", differ, "within tolerance")
    order = (Status.regression, Status.inconclusive, Status.improved)
    return min(findings, key=lambda finding: order.index(finding.status), default=same)


def _forwards_of(role: str, row: GenerationSummary) -> int:
    return row.forwards.get(role, 0)


class _Ratio(NamedTuple):
    """A ratio of sums over generations, and which values are better."""

    name: str
    numerator: Callable[[GenerationSummary], float]
    denominator: Callable[[GenerationSummary], float]
    better: Direction

    def of(self, rows: Generations) -> Comparable:
        """Return the ratio over some generations."""
        samples = ratio([(self.numerator(row), self.denominator(row), row.prompt) for row in rows])
        return Comparable(name=self.name, quantity=Quantity.acceptance, samples=samples, better=self.better)


LOWER = Direction.lower
ACCEPTANCE = (
    _Ratio("acceptance rate", attrgetter("accepted"), attrgetter("tested"), Direction.higher),
    _Ratio("mean acceptance length", attrgetter("tokens"), attrgetter("rounds"), Direction.higher),
)


def _moved(a: Generations, b: Generations, of: _Ratio, differ: str, limits: GateLimits) -> Finding | None:
    """Return the finding on the change of a ratio; None if it is within the limit or not significant."""
    found = judge(of.of(a), of.of(b), limits)
    if found.status is Status.same:
        return None
    title, text = _title(a, b, ids=1), effect(a, b)
    doubt = "differs" if found.status is Status.inconclusive else title
    return Finding(found.status, title, f"{differ}; {found.detail}", f"{doubt}: {text}")


def _ratio(rows: Generations, numerator: str, denominator: str) -> float:
    below: int = sum(getattr(row, denominator) for row in rows)
    return sum(getattr(row, numerator) for row in rows) / below if below else 0.0


def _forwards(rows: Generations) -> dict[str, float]:
    """Return the forwards per token of each model."""
    tokens = sum(row.tokens for row in rows)
    roles = sorted({role for row in rows for role in row.forwards})
    return {role: sum(row.forwards.get(role, 0) for row in rows) / tokens for role in roles} if tokens else {}


def effect(a: Generations, b: Generations) -> str:
    """Return the changes as text: of forwards per token, and of acceptance, or of tokens if nothing was drafted."""
    before, after = _forwards(a), _forwards(b)
    changes = [
        f"{role} forwards/token {before.get(role, 0.0):.3f} → {after.get(role, 0.0):.3f}"
        for role in dict.fromkeys([*before, *after])
        if before.get(role) != after.get(role)
    ]
    if not any(row.tested for row in (*a, *b)):
        return ", ".join([*changes, f"{sum(row.tokens for row in a)} → {sum(row.tokens for row in b)} tokens"])
    rates, lengths = ([_ratio(side, *parts) for side in (a, b)] for parts in PARTS)
    tested = [sum(row.tested for row in side) for side in (a, b)]
    if tested[0] != tested[1] and rates[0] == rates[1]:
        changes.append(f"{tested[0]} → {tested[1]} tested tokens")
    changes.append(
        f"acceptance {rates[0]:.3f} → {rates[1]:.3f}, mean acceptance length {lengths[0]:.2f} → {lengths[1]:.2f}"
    )
    return ", ".join(changes)


def quality(base: MeasuredRun, new: MeasuredRun, method: str, name: str, limits: GateLimits) -> Finding | None:
    """Return the finding on one metric of one method; None if neither side has it."""
    theirs = {entry["name"]: entry for entry in new.metrics}
    ours = next(entry for entry in base.metrics if entry["name"] == name)
    rows = shared(base.generations[method], new.generations[method])
    scored = [[row for row in side if name in row.values] for side in rows]
    if not any(scored):
        return None
    if name not in theirs or theirs[name]["signature"] != ours["signature"]:
        other = theirs.get(name, {}).get("signature", "not at all")
        detail = f"{name} is computed differently: {sides(ours['signature'], other)}"
        return Finding(Status.incomparable, "other metric", detail, f"{name}: other metric")
    if not all(scored):
        return Finding(Status.incomparable, "one side unscored", f"{name} is scored on one side only", f"{name}: –")
    both = shared(*scored)
    a, b = (
        scoring.table(
            ours["combine"], [Scored(row.values[name], row.prompt, base.groups.get(row.sample, "")) for row in side]
        )
        for side in both
    )
    whole = scoring.combiner(ours["combine"]).whole
    if math.isnan(whole(a)) or math.isnan(whole(b)):
        return None
    is_binary = ours["combine"] in SHARES and set(np.concatenate([a[:, 0], b[:, 0]]).tolist()) <= {0.0, 1.0}
    before, after = (
        Comparable(
            name=name, quantity=Quantity.quality, samples=Paired(rows, whole, is_binary), format=SCORE,
            better=metric_of(name).better if name in METRICS else Direction.higher,
            words=("quality dropped", "quality rose", "same quality"),
        )
        for rows in (a, b)
    )  # fmt: skip
    return judge(before, after, limits)


def log_ratios(session: Timings, method: str, over: str) -> list[float]:
    """Return for each round the logarithm of the method's tokens per second / another method's."""
    return [
        math.log((tokens / seconds) / (theirs / their_seconds))
        for (tokens, seconds), (theirs, their_seconds) in zip(
            session.get(method, []), session.get(over, []), strict=True
        )
    ]


def within(sessions: Sequence[Timings], method: str, over: str) -> float | None:
    """Return a method's speed relative to another's over all rounds of one run; None if one was not timed."""
    speeds = []
    for name in (method, over):
        rounds = [timing for session in sessions for timing in session.get(name, [])]
        if not rounds:
            return None
        speeds.append(sum(tokens for tokens, _ in rounds) / sum(seconds for _, seconds in rounds))
    return speeds[0] / speeds[1]


def speed(base: Sequence[Timings], new: Sequence[Timings], method: str, over: str, limits: GateLimits) -> Finding:
    """Return the finding on a method's speed relative to `over`, over the repeats of all sessions."""
    before, after = (
        Comparable(
            name=f"{method} over {over}", quantity=Quantity.speed, format=TIMES,
            samples=Blocks([log_ratios(session, method, over) for session in sessions]),
            words=("slower", "faster", "same speed"),
        )
        for sessions in (base, new)
    )  # fmt: skip
    return judge(before, after, limits)
