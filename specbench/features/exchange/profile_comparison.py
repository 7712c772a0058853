"""Whether two acceptance profiles differ: the mean length of a round, and the survival at each position."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from specbench.analysis.acceptance_profile import AcceptanceProfile
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Status

MARGIN = (
    0.05  # relative, of the mean length; profiles whose interval of the change is within it have the same acceptance
)
NORMAL = NormalDist()


def compare_profiles(
    base: Sequence[AcceptanceProfile], new: Sequence[AcceptanceProfile], limits: GateLimits
) -> list[GateVerdict]:
    """Return a verdict on each profile of BASE, compared with the one of NEW that has its method, length and concurrency.

    A side without the name of a method, such as a /metrics page, may have any method.
    """
    verdicts = []
    for one in base:
        same = [each for each in new if not (one.method and each.method) or one.method == each.method]
        same = [each for each in same if len(each.survival) == len(one.survival)] or same
        same = [each for each in same if _concurrency(each) == _concurrency(one)] or same
        if not same:
            finding = Finding(Status.incomparable, "no such method", f"NEW has no profile of {one.method}", "missing")
        elif len(same) != 1:
            names = ", ".join(each.source for each in same)
            finding = Finding(Status.incomparable, "several profiles", f"NEW has several: {names}", "several")
        else:
            finding = _compared(one, same[0], limits)
        verdicts.append(GateVerdict(one.source, "", "acceptance", *finding))
    return verdicts


def _compared(base: AcceptanceProfile, new: AcceptanceProfile, limits: GateLimits) -> Finding:
    """Compare the mean lengths by a z-test over rounds, and name the position whose conditional rate differs most.

    Rounds are taken as independent. Rounds of one prompt are alike, so the true p is larger. A lower acceptance alone is no
    regression: a cheaper draft may make up for it.
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
    error = math.hypot(base.deviation / math.sqrt(base.rounds), new.deviation / math.sqrt(new.rounds))
    p, half = _p(after - before, error), NORMAL.inv_cdf(0.975) * error / before
    low, high = relative - half, relative + half
    test = f"z-test over {base.rounds:,} and {new.rounds:,} rounds as if they were independent, p = {p:.2g}"
    detail = f"{short} ({relative:+.1%} [{low:+.1%}, {high:+.1%}]; {test}){_worst(base, new)}"
    if (low >= -MARGIN and high <= MARGIN) or base.survival == new.survival:
        return Finding(Status.same, "same acceptance", detail, short)
    if p >= limits.alpha:
        return Finding(Status.inconclusive, "acceptance undecided", f"{detail}; more rounds would decide", short)
    if relative > 0.0:
        return Finding(Status.improved, "higher acceptance", detail, short)
    return Finding(Status.inconclusive, "lower acceptance", f"{detail}; the speed decides", short)


def _concurrency(profile: AcceptanceProfile) -> object:
    return profile.conditions.get("concurrency")


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
