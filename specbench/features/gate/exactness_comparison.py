"""Compare two verifications of one subject: whether it is no longer exact, or is now."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError
from specbench.features.exactness.exactness_verdict import ExactnessResult
from specbench.features.exactness.outcome import Outcome
from specbench.features.gate.run_differences import tables
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Status
from specbench.files import checked

KINDS = ("verification", "enumeration")  # of results that `verify --json` and `enumerate --json` print
WHAT = ("pair", "tasks", "temperature", "options")  # what is verified: results that differ in it are not comparable
WHERE = ("device", "dtype", "engine", "seed")  # a change of these is named


@dataclass(frozen=True, kw_only=True)
class StoredVerification(ExactnessResult):
    """A verification of a method as JSON holds it, with what was verified and where; an enumeration has none of these."""

    pair: str = ""
    tasks: Sequence[str] = ()
    temperature: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    dtype: str = ""
    engine: str = ""
    seed: int = 0

    def values(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return some of its values, by name."""
        return {key: getattr(self, key) for key in keys}


def verifications_in(path: Path) -> list[StoredVerification]:
    """Return the verification of a method in a JSON file; empty for another file or a folder."""
    try:
        table = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(table, dict) or table.get("kind") not in KINDS:
        return []
    return [checked(table, StoredVerification, str(path))]


def compare_verifications(
    base: Sequence[StoredVerification], new: Sequence[StoredVerification], limits: GateLimits
) -> list[GateVerdict]:
    """Return the verdicts on verifications of methods. Raises ConfigError if the sides verify different ones."""
    others = {(each.kind, each.subject): each for each in new}
    verdicts = []
    for one in base:
        other = others.get((one.kind, one.subject))
        if other is None:
            found = ", ".join(f"the {each.kind} of {each.subject}" for each in new)
            raise ConfigError(f"BASE is the {one.kind} of {one.subject}, and NEW {found}")
        verdicts.append(GateVerdict(one.subject, "", "decoding", *_finding(one, other)))
        if changes := "; ".join(tables("", one.values(WHERE), other.values(WHERE))):
            finding = Finding(Status.same, "verified elsewhere", changes, changes)
            verdicts.append(GateVerdict(one.subject, "", "comparability", *finding))
    return verdicts


def _finding(base: StoredVerification, new: StoredVerification) -> Finding:
    if differences := tables("", base.values(WHAT), new.values(WHAT)):
        return Finding(Status.incomparable, "other verification", "; ".join(differences), "other verification")
    return exactness_finding(base, new, _failing(base), _failing(new))


def exactness_finding(
    base: ExactnessResult,
    new: ExactnessResult,
    before: Iterable[str],
    after: Iterable[str],
    changes: Sequence[str] = (),
) -> Finding:
    """Return what changed. What fails in NEW alone is a regression.

    Args:
        base: The earlier result.
        new: The later result.
        before: What failed in `base`, in words.
        after: What failed in `new`, in words.
        changes: In what the subjects differ, in words.
    """
    if base.reference != new.reference:
        text = f"the references differ: {base.reference} in BASE, {new.reference} in NEW"
        return Finding(Status.incomparable, "other reference", text, "other reference")
    short = f"{base.outcome} → {new.outcome}"
    detail = f"{short}; {new.line}" + (f"; {'; '.join(changes)}" if changes else "")
    if added := sorted(set(after) - set(before)):
        text = f"{short}; failed in NEW only: {'; '.join(added)}; {new.line}"
        return Finding(Status.regression, "no longer exact", text, short)
    if new.outcome is Outcome.differs and base.outcome is not Outcome.differs:
        return Finding(Status.regression, "no longer exact", detail, short)
    if new.outcome in (Outcome.inconclusive, Outcome.undeclared):
        return Finding(Status.inconclusive, "exactness undecided", detail, short)
    if new.outcome.rank < base.outcome.rank:
        title = "exact now" if new.outcome is Outcome.exact else "no difference found"
        return Finding(Status.improved, title, detail, short)
    return Finding(Status.same, "same exactness", detail, short)


def _failing(result: ExactnessResult) -> set[str]:
    """Return the failed checks, by name."""
    return {check.name for check in result.checks if check.is_failed}
