"""The kinds of measurements that can be compared: how each is found in a file or folder, and how it is compared.

A new kind is one entry of KINDS. Its comparison judges `Comparable` values (`specbench/features/gate/changes.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError
from specbench.features.exchange import profile_comparison, profile_sources
from specbench.features.exchange.snapshot_file import is_snapshot, load
from specbench.features.gate import comparison, exactness_comparison
from specbench.features.gate.snapshot import MeasuredRun, runs_of
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Status
from specbench.features.servers import served_comparison
from specbench.features.servers.served_results import Result, results_in
from specbench.runs.run_folder import runs_in


@dataclass(frozen=True)
class MeasurementKind:
    """A kind of measurements.

    Args:
        name: What it is, for messages.
        find: Returns the measurements of a file or folder; empty if it has none of this kind.
        compare: Returns the verdicts on all measurements of BASE.
    """

    name: str
    find: Callable[[Path], Sequence[Any]]
    compare: Callable[[Any, Any, GateLimits], list[GateVerdict]]


def _runs(path: Path) -> Sequence[MeasuredRun]:
    if is_snapshot(path):
        part = load(path).get("runs")
        return part.runs if part else []
    return runs_of(path) if path.is_dir() and runs_in(path) else []


def _results_of_servers(path: Path) -> Sequence[Result]:
    if is_snapshot(path):
        part = load(path).get("servers")
        return part.results if part else []
    return results_in(path)


KINDS = (
    MeasurementKind("run", _runs, comparison.compare),
    MeasurementKind("result of a server", _results_of_servers, served_comparison.compare_served),
    MeasurementKind("verification", exactness_comparison.verifications_in, exactness_comparison.compare_verifications),
)
PROFILES = MeasurementKind("acceptance profile", profile_sources.profiles_of, profile_comparison.compare_profiles)


def compare(base: Path, new: Path, limits: GateLimits) -> list[GateVerdict]:
    """Return the verdicts on all kinds of measurements that both sides have.

    Runs and results of servers also have acceptance profiles, which are compared if a side is a profile of another tool.
    Raises ConfigError if a side has no measurement, or if they have no kind in common.
    """
    found = [{kind.name: each for kind in KINDS if (each := kind.find(path))} for path in (base, new)]
    for path, kinds in zip((base, new), found, strict=True):
        if not kinds and not profile_sources.is_profile(path):
            raise ConfigError(f"{path} contains no run and is not a snapshot; help: specbench run")
    ours, theirs = found
    verdicts = [
        verdict
        for kind in KINDS
        if kind.name in ours and kind.name in theirs
        for verdict in kind.compare(ours[kind.name], theirs[kind.name], limits)
    ]
    if not verdicts and "verification" in (*ours, *theirs):
        sides = (f"{path}: {', '.join(kinds) or 'a profile'}" for path, kinds in zip((base, new), found, strict=True))
        raise ConfigError(f"no kind of measurement in common ({'; '.join(sides)})")
    if not verdicts:
        return PROFILES.compare(PROFILES.find(base), PROFILES.find(new), limits)
    lost = [name for name in ours if name not in theirs]
    missing = Finding(Status.incomparable, "missing in NEW", "NEW has no such measurement", "missing")
    return verdicts + [GateVerdict(f"every {name}", "", "comparability", *missing) for name in lost]
