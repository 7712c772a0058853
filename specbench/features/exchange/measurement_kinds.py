"""The kinds of measurements that can be compared: how each is recognized, read and compared.

A new kind is one entry of KINDS. Its comparison judges `Comparable` values (`specbench/features/gate/changes.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.features.exchange import profile_comparison, profile_sources
from specbench.features.gate import comparison, snapshot
from specbench.features.gate.verdict import GateLimits, GateVerdict
from specbench.features.servers import served_comparison, served_gate


@dataclass(frozen=True)
class MeasurementKind:
    """A kind of measurements.

    Args:
        name: What it is, for messages.
        recognizes: Whether a file or folder has measurements of this kind.
        read: Returns the measurements of a file or folder. Raises ConfigError if there are none.
        compare: Returns the verdicts on all measurements of BASE.
    """

    name: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path], Sequence[Any]]
    compare: Callable[[Any, Any, GateLimits], list[GateVerdict]]


KINDS = (
    MeasurementKind(
        "acceptance profile",
        profile_sources.is_profile,
        profile_sources.profiles_of,
        profile_comparison.compare_profiles,
    ),
    MeasurementKind(
        "result of a server", served_gate.is_served, served_gate.results_of, served_comparison.compare_served
    ),
    MeasurementKind("run", lambda path: True, snapshot.read_runs, comparison.compare),
)


def compare(base: Path, new: Path, limits: GateLimits) -> list[GateVerdict]:
    """Return the verdicts on two measurements, as the first kind that recognizes either of them.

    Runs and results of servers also have acceptance profiles, so they can be compared with a profile of another tool.
    """
    kind = next(each for each in KINDS if each.recognizes(base) or each.recognizes(new))
    return kind.compare(kind.read(base), kind.read(new), limits)
