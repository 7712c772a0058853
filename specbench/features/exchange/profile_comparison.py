"""Whether two acceptance profiles differ: the mean length of a round, and the survival at each position."""

from collections.abc import Sequence

from specbench.analysis.acceptance_profile import AcceptanceProfile
from specbench.features.gate.changes import Comparable, Moments, judge
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Quantity, Status


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
    """Compare the mean lengths, and name the position whose conditional rate differs most.

    Rounds are taken as independent. Rounds of one prompt are alike, so the true p is larger. A lower acceptance alone is no
    regression: a cheaper draft may make up for it.
    """
    before, after = (
        Comparable(
            name="mean acceptance length",
            quantity=Quantity.acceptance,
            samples=Moments(side.mean_length, side.deviation, side.rounds or 0),
            decides=False,
            words=("lower acceptance", "higher acceptance", "same acceptance"),
        )
        for side in (base, new)
    )
    found = judge(before, after, limits)
    if len(base.survival) != len(new.survival):
        text = f"{found.short}; the draft lengths differ: {len(base.survival)} and {len(new.survival)}"
        return Finding(Status.incomparable, "other draft length", text, found.short)
    return found._replace(detail=f"{found.detail}{_worst(base, new)}")


def _concurrency(profile: AcceptanceProfile) -> object:
    return profile.conditions.get("concurrency")


def _worst(base: AcceptanceProfile, new: AcceptanceProfile) -> str:
    """Return the position at which the conditional rates differ most, in words; empty without positions."""
    changes = [(abs(b - a), i, a, b) for i, (a, b) in enumerate(zip(base.conditional, new.conditional, strict=True), 1)]
    if not changes:
        return ""
    _, position, one, two = max(changes)
    return f"; the largest change of a conditional rate is at position {position}: {one:.3f} → {two:.3f}"
