"""Compare two measurements of a served configuration: exactness, acceptance, quality and speedup.

The speedup is compared, which is a ratio of two servers on one machine, and not the throughput. So the two measurements may
come from different machines of one kind.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from specbench.analysis.metric import METRICS, Direction, metric_of
from specbench.analysis.number_format import SCORE, TIMES
from specbench.features.gate.changes import Blocks, Comparable, Paired, judge, mean
from specbench.features.gate.exactness_comparison import exactness_finding
from specbench.features.gate.run_differences import tables
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Quantity, Status
from specbench.features.servers.exactness.stored_verdict import ServerVerification
from specbench.features.servers.load.server_run import Level, ServerRun
from specbench.features.servers.request_key import RequestKind
from specbench.features.servers.served import Description
from specbench.features.servers.served_results import Result
from specbench.note import warnings_of


def compare_served(base: Sequence[Result], new: Sequence[Result], limits: GateLimits) -> list[GateVerdict]:
    """Return the verdicts on all results of BASE. Each is compared with the most similar one of NEW."""
    verdicts: list[GateVerdict] = []
    others = list(new)
    for one in base:
        other = min(
            (each for each in others if _matches(one, each)),
            key=lambda each: len(_all_changes(one, each)),
            default=None,
        )
        if other is None:
            finding = Finding(Status.incomparable, "missing in NEW", "NEW has no such measurement", "missing")
            verdicts.append(GateVerdict(one.name, "", "comparability", *finding))
            continue
        others.remove(other)
        if isinstance(one, ServerRun) and isinstance(other, ServerRun):
            verdicts += _runs(one, other, limits)
        elif isinstance(one, ServerVerification) and isinstance(other, ServerVerification):
            verdicts += _verifications(one, other)
    return verdicts


def _matches(one: Result, other: Result) -> bool:
    if isinstance(one, ServerRun) and isinstance(other, ServerRun):
        return (one.load.task, one.load.sampling) == (other.load.task, other.load.sampling)
    return type(one) is type(other)


def _all_changes(one: Result, other: Result) -> list[str]:
    """Return all differences of what was measured."""
    if isinstance(one, ServerRun) and isinstance(other, ServerRun):
        return [*tables("load", asdict(one.load), asdict(other.load)), *_changes(one.on, other.on)]
    assert isinstance(one, ServerVerification) and isinstance(other, ServerVerification)
    return [*_changes(one.description, other.description), *tables("", {"of": one.reference}, {"of": other.reference})]


def _changes(base: Description, new: Description) -> list[str]:
    """Return in what two descriptions of a server differ, besides its address."""
    one, other = asdict(base), asdict(new)
    del one["url"], other["url"]
    return tables("", one, other)


def _runs(base: ServerRun, new: ServerRun, limits: GateLimits) -> list[GateVerdict]:
    def verdict(level: str, aspect: str, finding: Finding) -> GateVerdict:
        return GateVerdict(", ".join(filter(None, (base.name, level))), "", aspect, *finding)

    if changes := tables("load", asdict(base.load), asdict(new.load)):
        finding = Finding(Status.incomparable, "other load", "; ".join(changes), "other load")
        return [verdict("", "comparability", finding)]
    out = []
    if changes := [*_changes(base.on, new.on), *_changes(base.off, new.off)]:
        out.append(verdict("", "comparability", Finding(Status.same, "other servers", "; ".join(changes), "changed")))
    if found := warnings_of(new.notes):
        lines = "; ".join(note.line for note in found)
        finding = Finding(Status.skipped, "warnings of NEW", lines, f"{len(found)} warnings")
        out.append(verdict("", "comparability", finding))
    is_same_drafter = base.on.speculation == new.on.speculation and base.on.weights == new.on.weights
    by_level = {level.concurrency: level for level in new.levels}
    for level in base.levels:
        name = f"concurrency {level.concurrency}"
        other = by_level.get(level.concurrency)
        if other is None:
            finding = Finding(Status.incomparable, "level missing in NEW", "NEW has no such level", "missing")
            out.append(verdict(name, "comparability", finding))
            continue
        out.append(verdict(name, "acceptance", _acceptance(level, other, is_same_drafter, limits)))
        if not limits.counters_only:
            out.append(verdict(name, "speed", _speed(level, other, limits)))
    before, after = base.scores["on"], new.scores["on"]
    shared = [metric for metric in before if metric in after]
    return out + [verdict("", "quality", _quality(name, before[name], after[name], limits)) for name in shared]


def _acceptance(base: Level, new: Level, is_same_drafter: bool, limits: GateLimits) -> Finding:
    """Compare the acceptance of the prompts that both sides measured."""
    shared = sorted(base.accepted.keys() & new.accepted.keys())
    if not shared or base.accepted_unit != new.accepted_unit:
        return Finding(Status.skipped, "no acceptance", "no prompt has an acceptance on both sides", "–")
    before, after = (
        Comparable(
            name=base.accepted_unit,
            quantity=Quantity.acceptance,
            samples=Paired(np.array([[side.accepted[at]] for at in shared]), mean),  # (prompts, 1)
            decides=is_same_drafter,
            is_timed=not limits.counters_only,
            words=("acceptance dropped", "acceptance rose", "same acceptance"),
        )
        for side in (base, new)
    )
    return judge(before, after, limits)


def _speed(base: Level, new: Level, limits: GateLimits) -> Finding:
    """Compare the ratios of throughput of the pairs."""
    if not base.ratios or not new.ratios:
        status = Status.inconclusive if limits.require_speed else Status.skipped
        return Finding(status, "no speedup", "a side has no complete pair of blocks", "–")
    before, after = (
        Comparable(
            name="speedup", quantity=Quantity.speed, samples=Blocks([np.log(side.ratios).tolist()]), format=TIMES
        )
        for side in (base, new)
    )
    return judge(before, after, limits)


def _quality(metric: str, base: Mapping[int, float], new: Mapping[int, float], limits: GateLimits) -> Finding:
    """Compare a metric on the prompts that both sides scored."""
    shared = sorted(base.keys() & new.keys())
    if not shared:
        return Finding(
            Status.skipped, "no shared prompt", f"{metric}: no prompt was scored on both sides", f"{metric}: –"
        )
    rows = [np.array([[side[at]] for at in shared]) for side in (base, new)]  # (prompts, 1)
    is_binary = set(np.concatenate(rows)[:, 0].tolist()) <= {0.0, 1.0}
    before, after = (
        Comparable(
            name=metric,
            quantity=Quantity.quality,
            samples=Paired(each, mean, is_binary),
            better=metric_of(metric).better if metric in METRICS else Direction.higher,
            format=SCORE,
            words=("quality dropped", "quality rose", "same quality"),
        )
        for each in rows
    )
    return judge(before, after, limits)


def _verifications(base: ServerVerification, new: ServerVerification) -> list[GateVerdict]:
    """Compare two verdicts: a kind of requests that differs in NEW alone is a regression."""
    if missing := _labels({each.kind for each in base.kinds} - {each.kind for each in new.kinds}):
        text = f"NEW has not tested {', '.join(missing)}"
        finding = Finding(Status.incomparable, "kinds missing in NEW", text, "kinds missing")
        return [GateVerdict(base.name, "", "decoding", *finding)]
    before, after = (_labels(each.kind for each in side.kinds if each.differs) for side in (base, new))
    finding = exactness_finding(base, new, before, after, _changes(base.description, new.description))
    return [GateVerdict(base.name, "", "decoding", *finding)]


def _labels(kinds: Iterable[RequestKind]) -> list[str]:
    return sorted(kind.label for kind in kinds)
