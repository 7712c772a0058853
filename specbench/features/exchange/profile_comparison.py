"""Whether two acceptance profiles differ: the mean length of a round, and the survival at each position."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from specbench.analysis.acceptance_profile import AcceptanceProfile
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Status

LEAST_CHANGE = 0.01  # relative, of the mean length; a smaller change is no finding
NORMAL = NormalDist()


def compare_profiles(
    base: Sequence[AcceptanceProfile], new: Sequence[AcceptanceProfile], limits: GateLimits
) -> list[GateVerdict]:
    """Return a verdict on each profile of BASE, compared with the one of NEW that has its method, or with the only one."""
    verdicts = []
    for one in base:
        same = [each for each in new if each.method == one.method] or list(new)
        if len(same) != 1:
            names = ", ".join(each.source for each in same)
            finding = Finding(Status.incomparable, "several profiles", f"NEW has several: {names}", "several")
        else:
            finding = _compared(one, same[0], limits)
        verdicts.append(GateVerdict(one.source, "", "acceptance", *finding))
    return verdicts


def _compared(base: AcceptanceProfile, new: AcceptanceProfile, limits: GateLimits) -> Finding:
    """Compare the mean lengths by a z-test over rounds, and name the position whose survival differs most.

    Rounds are taken as independent. Rounds of one prompt are alike, so that the true p is larger.
    """
    before, after = base.mean_length, new.mean_length
    relative = after / before - 1.0
    short = f"tokens per round {before:.3f} → {after:.3f}"
    if len(base.survival) != len(new.survival):
        text = f"{short}; the draft lengths differ: {len(base.survival)} and {len(new.survival)}"
        return Finding(Status.incomparable, "other draft length", text, short)
    if not base.rounds or not new.rounds:
        text = f"{short} ({relative:+.1%}); a side does not say how many rounds it has, so nothing is tested"
        return Finding(Status.inconclusive, "acceptance undecided", text, short)
    p = _p(after - before, math.hypot(base.deviation / math.sqrt(base.rounds), new.deviation / math.sqrt(new.rounds)))
    test = f"z-test over {base.rounds:,} and {new.rounds:,} rounds, p = {p:.2g}"
    detail = f"{short} ({relative:+.1%}; {test}){_worst(base, new)}"
    if p >= limits.alpha or abs(relative) <= LEAST_CHANGE:
        return Finding(Status.same, "same acceptance", detail, short)
    status, verb = (Status.regression, "dropped") if relative < 0.0 else (Status.improved, "rose")
    return Finding(status, f"acceptance {verb}", detail, short)


def _worst(base: AcceptanceProfile, new: AcceptanceProfile) -> str:
    """Return the position at which the conditional rates differ most, in words; empty without positions."""
    changes = [(abs(b - a), i, a, b) for i, (a, b) in enumerate(zip(base.conditional, new.conditional, strict=True), 1)]
    if not changes:
        return ""
    _, position, one, two = max(changes)
    return f"; the largest change of a conditional rate is at position {position}: {one:.3f} → {two:.3f}"


def _p(difference: float, error: float) -> float:
    if not error:
        return 1.0 if not difference else 0.0
    return 2.0 * (1.0 - NORMAL.cdf(abs(difference) / error))
