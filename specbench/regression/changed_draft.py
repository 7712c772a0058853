"""Findings on a lossless method whose draft model or head was replaced: outputs, acceptance, and the cost of a draft forward.

Its speed is judged as for other methods. A lower acceptance or a higher cost alone is no regression, since a cheaper draft
can make up for rejected tokens, and a better one for its cost.
"""

from collections.abc import Sequence

from specbench.analysis.intervals import FEWEST, by_prompt, paired_test
from specbench.regression.checks import TOLERANCE, Finding, effect, share, shared
from specbench.regression.measurement import Generation, Measured
from specbench.regression.verdict import Limits, Status

DECIDED = (Status.regression, Status.improved, Status.same)
Aspect = tuple[str, Finding]


def findings(
    base: Measured, new: Measured, method: str, parts: Sequence[str], limits: Limits, timed: Sequence[Finding]
) -> list[Aspect]:
    """Return the findings on outputs, acceptance and cost.

    `parts` are the replaced models and heads, and `timed` the findings on speed.
    """
    a, b = shared(base.generations[method], new.generations[method])
    if not a:
        return [("decoding", Finding(Status.incomparable, "nothing to compare", "no generation is on both sides", "–"))]
    is_timed = any(each.status in DECIDED for each in timed)
    found = [("decoding", _outputs(base, a, b)), ("acceptance", _acceptance(a, b, limits, is_timed))]
    return found if limits.counters_only else [*found, ("cost", _cost(base, new, method, parts, is_timed))]


def _outputs(base: Measured, a: Sequence[Generation], b: Sequence[Generation]) -> Finding:
    """Return whether the outputs are equal, which a lossless method guarantees at T = 0."""
    if base.spec.decoding.temperature > 0.0:
        detail = f"{len(a)} generations, sampled with another draft; their distribution is the target's"
        return Finding(Status.same, "sampled outputs", detail, "sampled")
    ids = sum(x.ids != y.ids for x, y in zip(a, b, strict=True))
    differ = f"{ids} of {len(a)} generations have different tokens at T = 0, although the method is lossless"
    if ids:
        return Finding(Status.regression, "decoding changed", differ, f"{ids} of {len(a)} outputs have other tokens")
    return Finding(Status.same, "same outputs", f"{len(a)} generations, token for token", "same outputs")


def _acceptance(a: Sequence[Generation], b: Sequence[Generation], limits: Limits, is_timed: bool) -> Finding:
    """Return the finding on the acceptance rate."""
    before, after = (by_prompt((x.accepted, x.tested, x.prompt) for x in side) for side in (a, b))
    change, p = paired_test(before, after, share)
    text = effect(a, b)
    is_within = abs(change) <= TOLERANCE * share(before)
    if not is_within and len(before) < FEWEST:
        detail = f"{text}; too few prompts for a verdict ({len(before)})"
        return Finding(Status.skipped if is_timed else Status.inconclusive, "acceptance differs", detail, text)
    if is_within or p >= limits.alpha:
        return Finding(Status.same, "same acceptance", f"{text}; p = {p:.2g}", text)
    if change > 0.0:
        return Finding(Status.improved, "higher acceptance", f"{text}; p = {p:.2g}", text)
    undecided = "the speed decides" if is_timed else "a cheaper draft may make up for it, which needs times"
    status = Status.skipped if is_timed else Status.inconclusive
    return Finding(status, "lower acceptance", f"{text}; p = {p:.2g}; {undecided}", text)


def _cost(base: Measured, new: Measured, method: str, parts: Sequence[str], is_timed: bool) -> Finding:
    """Return the seconds of a forward of the replaced parts, and their ratio to one of the baseline's model."""
    (target, *_) = base.spec.methods[base.spec.baseline].traits.roles
    texts = []
    for part in parts:
        sides = [(_forward(run, method, part), _forward(run, method, target)) for run in (base, new)]
        if not all(value for side in sides for value in side):
            return Finding(
                Status.skipped, "no times of forwards", f"{part} has no recorded times on one side", "no times"
            )
        (draft, over), (draft_after, over_after) = sides
        texts.append(
            f"{part} forward {1e3 * draft:.3f} → {1e3 * draft_after:.3f} ms,"
            f" cost ratio {draft / over:.3f} → {draft_after / over_after:.3f}"
        )
    text = ", ".join(texts)
    if not is_timed:
        return Finding(Status.skipped, "other conditions for cost", f"{text}; times are not comparable", text)
    return Finding(Status.same, "cost of a draft forward", f"{text}; the speed decides", text)


def _forward(run: Measured, method: str, role: str) -> float:
    """Return the mean seconds of a decoding forward of a model or head; 0 if none was recorded."""
    forwards, seconds = run.costs.get(method, {}).get(role, (0, 0.0))
    return seconds / forwards if forwards else 0.0
