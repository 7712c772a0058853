"""Checks of one method of one run, BASE against NEW: decoding, quality and speed."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from specbench import scoring
from specbench.analysis.intervals import FEWEST, by_prompt, paired_test, student_tails
from specbench.features.gate.snapshot import GenerationSummary, MeasuredRun, Timings
from specbench.features.gate.verdict import Finding, GateLimits, Status, sides
from specbench.scoring import Scored

TOLERANCE = 0.02  # relative, of acceptance, between machines whose last bits differ
FEWEST_ROUNDS = 3
PARTS = (("accepted", "tested"), ("tokens", "rounds"))  # acceptance rate, accepted length
TESTED = "tested tokens"
SHARES = ("mean", "macro", "pass@1")  # how values of 0 and 1 are combined

Generations = Sequence[GenerationSummary]


def shared(base: Generations, new: Generations) -> tuple[list[GenerationSummary], list[GenerationSummary]]:
    """Return the generations that are on both sides, in the same order."""
    ours, theirs = ({(row.sample, row.repeat): row for row in side} for side in (base, new))
    keys = sorted(ours.keys() & theirs.keys())
    return [ours[key] for key in keys], [theirs[key] for key in keys]


def decoding(base: Generations, new: Generations, inexact: str, alpha: float, across: bool = False) -> Finding:
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
    return _about(a, b, f"{differ}; {inexact}", alpha, across) if inexact else _exactly(a, b, ids, differ)


def other_tokens(base: Generations, new: Generations, finding: Finding) -> Finding:
    """Return the finding on decoding on another processor: inconclusive if no loss was found but an output has other tokens.

    Either the processor's arithmetic or a change of the code may be the cause, and the counters do not tell which.
    """
    a, b = shared(base, new)
    ids = sum(x.ids != y.ids for x, y in zip(a, b, strict=True))
    if not ids or finding.status not in (Status.same, Status.improved):
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

    If acceptance rate and accepted length change in opposite directions, drafting changed: longer drafts commit more tokens
    per round, but a smaller share of them is accepted.
    """
    if not any(row.tested for row in (*a, *b)):
        return "decoding changed"
    (rate, length), (rate_after, length_after) = ([_ratio(side, *parts) for parts in PARTS] for side in (a, b))
    by_rate, by_length = rate_after - rate, length_after - length
    moved = abs(by_rate) > TOLERANCE * rate or abs(by_length) > TOLERANCE * length
    if not moved:
        return "decoding changed" if ids else "drafting changed"
    return "drafting changed" if by_rate * by_length < 0.0 else "acceptance changed"


def _about(a: Generations, b: Generations, differ: str, alpha: float, across: bool) -> Finding:
    """Return the worst finding on decoding between machines or settings, by paired t-tests over prompts.

    Compares the forwards per token of each model; fewer are better. If no model has a finding, compares the acceptance rate
    and the accepted length.
    """
    roles = sorted({role for row in (*a, *b) for role in row.forwards})
    ratios = [_Ratio(partial(_forwards_of, role), attrgetter("tokens"), -1) for role in roles]
    moves = [_moved(a, b, ratio, differ, alpha) for ratio in ratios]
    if all(move is None for move in moves):
        moves = [_moved(a, b, _Ratio(attrgetter(up), attrgetter(down), 1), differ, alpha) for up, down in PARTS]
    findings = [move for move in moves if move is not None]
    if across and {Status.regression, Status.improved} <= {finding.status for finding in findings}:
        detail = f"{differ}; some models run more often and some less; their times decide"
        return Finding(Status.inconclusive, "other mix of forwards", detail, effect(a, b))
    same = Finding(Status.same, "same decoding effort", differ, "within tolerance")
    order = (Status.regression, Status.inconclusive, Status.improved)
    return min(findings, key=lambda finding: order.index(finding.status), default=same)


def _forwards_of(role: str, row: GenerationSummary) -> int:
    return row.forwards.get(role, 0)


Quantity = Callable[[GenerationSummary], float]


class _Ratio(NamedTuple):
    """A ratio of sums over generations. `better` is the sign of an improvement."""

    numerator: Quantity
    denominator: Quantity
    better: int


def _moved(a: Generations, b: Generations, ratio: _Ratio, differ: str, alpha: float) -> Finding | None:
    """Return the finding on the change of a ratio; None if it is within tolerance or not significant."""
    before, after = (
        by_prompt((ratio.numerator(row), ratio.denominator(row), row.prompt) for row in side) for side in (a, b)
    )
    change, p = paired_test(before, after, share)
    if abs(change) <= TOLERANCE * share(before):
        return None
    title = _title(a, b, ids=1)
    if len(before) < FEWEST:
        detail = f"{differ}; too few prompts for a verdict ({len(before)})"
        return Finding(Status.inconclusive, title, detail, f"differs: {effect(a, b)}")
    if p >= alpha:
        return None
    status = Status.improved if change * ratio.better > 0.0 else Status.regression
    return Finding(status, title, f"{differ}; p = {p:.2g}", f"{title}: {effect(a, b)}")


def share(rows: np.ndarray) -> float:
    """Return the ratio of the sums of two columns; 0 if the second sum is 0."""
    below = rows[:, 1].sum()
    return float(rows[:, 0].sum() / below) if below else 0.0


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
    changes.append(f"acceptance {rates[0]:.3f} → {rates[1]:.3f}, accepted length {lengths[0]:.2f} → {lengths[1]:.2f}")
    return ", ".join(changes)


def quality(base: MeasuredRun, new: MeasuredRun, method: str, name: str, limits: GateLimits) -> Finding | None:
    """Return the finding on one metric of one method; None if neither side has it.

    The test is McNemar's exact test if each prompt is right or wrong, otherwise a paired t-test over prompts. A change above
    the limit is inconclusive if there are too few prompts for a significant result.
    """
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
    if ours["combine"] in SHARES and set(np.concatenate([a[:, 0], b[:, 0]]).tolist()) <= {0.0, 1.0}:
        lost, won = int((a[:, 0] > b[:, 0]).sum()), int((a[:, 0] < b[:, 0]).sum())
        change, p, how = whole(b) - whole(a), mcnemar(lost, won), f"McNemar, {lost} lost, {won} won"
        can_decide = mcnemar(len(a), 0) < limits.alpha
    else:
        (change, p), how = paired_test(a, b, whole), "paired t-test"
        can_decide = len(a) >= FEWEST
    if not can_decide and 100.0 * abs(change) > limits.max_quality_drop:
        detail = f"{100 * whole(a):.1f} → {100 * whole(b):.1f} over too few prompts for a verdict ({len(a)})"
        return Finding(Status.inconclusive, "quality differs", f"{name} {detail}", f"{name}: too few prompts")
    status = _status(p < limits.alpha, 100.0 * change, limits.max_quality_drop)
    title = {Status.regression: "quality dropped", Status.improved: "quality rose"}.get(status, "same quality")
    short = f"{name} {100 * whole(a):.1f} → {100 * whole(b):.1f}"
    return Finding(status, title, f"{short} over {len(a)} prompts; {how}, p = {p:.2g}", short)


def _status(significant: bool, change: float, least: float) -> Status:
    if significant and change < -least:
        return Status.regression
    return Status.improved if significant and change > least else Status.same


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
    """Return the finding on a method's speed relative to `over`, by Welch's t-test over the rounds of all sessions.

    Rounds of one process share an offset that the test does not account for. So each session of NEW has to exceed the limit
    as well: changes of -8 % and -1 % in two sessions are no regression at a limit of 5 %.
    """
    before = [x for session in base for x in log_ratios(session, method, over)]
    after = [log_ratios(session, method, over) for session in new]
    fewest = min([len(before), *map(len, after)])
    if fewest < FEWEST_ROUNDS or not after:
        detail = f"{fewest if after else 0} of {FEWEST_ROUNDS} repeats on one side; help: --repeats {FEWEST_ROUNDS}"
        return Finding(Status.inconclusive, "too few repeats", detail, "too few repeats")
    test = welch(before, [x for session in after for x in session])
    changes = [100.0 * math.expm1(welch(before, session).difference) for session in after]
    change = 100.0 * math.expm1(test.difference)
    statuses = {_status(test.p < limits.alpha, percent, limits.max_slowdown) for percent in (change, *changes)}
    status = statuses.pop() if len(statuses) == 1 else Status.same
    x = [math.exp(sum(values) / len(values)) for values in (before, [x for session in after for x in session])]
    by = f" (by session {', '.join(f'{percent:+.1f}' for percent in changes)})" if len(changes) > 1 else ""
    by += (
        ", which do not agree" if len({_status(True, percent, limits.max_slowdown) for percent in changes}) > 1 else ""
    )
    rounds = sum(map(len, after))
    detail = (
        f"{method} over {over} {x[0]:.3f}x → {x[1]:.3f}x, {change:+.1f} %{by}, p = {test.p:.2g} over {rounds} rounds"
        f" (geometric means over repeats); limit {limits.max_slowdown:g} %"
    )
    unsure = status is Status.same and abs(change) > limits.max_slowdown
    title = {Status.regression: "slower", Status.improved: "faster"}.get(status, "same speed")
    title, doubt = ("no significant change", ", not significant") if unsure else (title, "")
    return Finding(status, title, detail, f"{x[0]:.2f}x → {x[1]:.2f}x over {over} ({change:+.1f} %{doubt})")


# Significance tests


class Welch(NamedTuple):
    """The difference of two means, NEW's minus BASE's, and its two-sided p-value."""

    difference: float
    p: float


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p-value of `lost` against `won` discordant pairs (McNemar 1947)."""
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, 2.0 * tail / 2.0**n)


def welch(base: Sequence[float], new: Sequence[float]) -> Welch:
    """Return Welch's t-test of two means with unequal variances. Both sides need at least two values."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    difference = float(b.mean() - a.mean())
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0.0:
        return Welch(difference, 0.0 if difference else 1.0)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return Welch(difference, student_tails(difference / math.sqrt(va + vb), float(freedom)))
