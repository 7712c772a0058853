"""Snapshot files: measurements of every kind, and the requests that measure them again, under one schema with a checksum."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from specbench.errors import ConfigError
from specbench.experiment.batch import RequestBatch
from specbench.features.gate import gating
from specbench.features.gate import snapshot as run_snapshot
from specbench.features.gate.verdict import GateLimits, GateVerdict
from specbench.features.servers import served_gate
from specbench.files import CHECKSUM, checksum_of, read_json, write
from specbench.observer import Observer

SCHEMA = 4
EARLIER_RUNS, EARLIER_SERVED = 3, "served snapshot"  # the schema, or the kind, of files of earlier revisions


class Part(Protocol):
    """The measurements of one kind, with their requests."""

    def text(self) -> str:
        """Return JSON."""


@dataclass(frozen=True, kw_only=True)
class Remeasuring:
    """How requests are measured again: the settings of processes, the number of sessions, and an observer of progress."""

    batch: RequestBatch
    sessions: int | None = None
    observer: Observer


@dataclass(frozen=True)
class PartKind:
    """A kind of parts.

    Args:
        parsed: Returns a part from JSON, given the file, and whether a version with other numbers is accepted.
        check: Measures the requests of a part again into a folder, and returns the verdicts.
        update: Measures the requests of a part again into a folder, and returns the part of the results.
    """

    parsed: Callable[[dict[str, Any], Path, bool], Any]
    check: Callable[[Any, Path, Remeasuring, GateLimits], list[GateVerdict]]
    update: Callable[[Any, Path, Remeasuring], Any]


PARTS: dict[str, PartKind] = {
    "runs": PartKind(
        run_snapshot.parsed,
        lambda part, out, how, limits: gating.check(part, out, how.batch, limits),
        lambda part, out, how: gating.update(part, out, how.batch, how.sessions),
    ),
    "servers": PartKind(
        served_gate.parsed,
        lambda part, out, how, limits: served_gate.check(part, out, limits, how.observer),
        lambda part, out, how: served_gate.update(part, out, how.observer),
    ),
}


@dataclass(frozen=True)
class SnapshotFile:
    """The content of a snapshot file: parts by the keys of PARTS."""

    parts: Mapping[str, Part]

    def get(self, key: str) -> Any:
        """Return a part; None without it."""
        return self.parts.get(key)

    def with_part(self, key: str, part: Part) -> "SnapshotFile":
        """Return the content with another part."""
        return replace(self, parts={**self.parts, key: part})

    def save(self, path: Path) -> None:
        """Write the file with its checksum, creating its folder."""
        lines = [f'"schema": {SCHEMA}', *(f'"{key}": {part.text()}' for key, part in self.parts.items())]
        seal = checksum_of(json.loads("{" + ",".join(lines) + "}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, "{\n" + ",\n".join([*lines, f'"{CHECKSUM}": "{seal}"']) + "\n}\n")


def load(path: Path, outdated: bool = False) -> SnapshotFile:
    """Read a snapshot file, of this or an earlier revision.

    Raises ConfigError if the file is not a snapshot or is damaged. Also raises it, unless `outdated` is set, if the file was
    recorded by a version that defined its numbers differently, or was changed after it was written.
    """
    table = read_json(path, dict[str, Any]) if path.exists() else {}
    if not _is_table(table):
        raise ConfigError(f"{path} is not a snapshot; help: specbench gate record {path} -m METHOD ...")
    if table.get("schema", SCHEMA) not in (SCHEMA, EARLIER_RUNS):
        raise ConfigError(f"{path} was recorded by another version of specbench; help: specbench gate record")
    has_checksum = table.get("kind") != EARLIER_SERVED
    if has_checksum and table.pop(CHECKSUM, None) != checksum_of(table) and not outdated:
        raise ConfigError(
            f"{path}: damaged: changed after it was written; help: restore it, or specbench gate update {path}"
        )
    tables = _as_today(table)
    return SnapshotFile({key: kind.parsed(tables[key], path, outdated) for key, kind in PARTS.items() if key in tables})


def is_snapshot(path: Path) -> bool:
    """Return whether a file is a snapshot, of any revision."""
    try:
        return path.is_file() and _is_table(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return False


def _is_table(table: Any) -> bool:
    if not isinstance(table, dict):
        return False
    has_parts = any(key in table for key in PARTS)
    return table.get("kind") == EARLIER_SERVED or (has_parts and isinstance(table.get("schema"), int))


def _as_today(table: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of parts by key."""
    if table.get("kind") == EARLIER_SERVED:
        return {"servers": {key: table[key] for key in ("runs", "verifications")}}
    if table["schema"] == EARLIER_RUNS:
        return {"runs": {**table, "requests": table.get("commands", [])}}
    return {key: value for key, value in table.items() if key in PARTS}


def check(path: Path, out: Path, how: Remeasuring, limits: GateLimits) -> list[GateVerdict]:
    """Measure the requests of a snapshot file again, and compare."""
    parts = load(path).parts
    return [verdict for key, part in parts.items() for verdict in PARTS[key].check(part, out / key, how, limits)]


def update(path: Path, out: Path, how: Remeasuring) -> None:
    """Measure the requests of a snapshot file again, and write the file from the results."""
    parts = load(path, outdated=True).parts
    SnapshotFile({key: PARTS[key].update(part, out / key, how) for key, part in parts.items()}).save(path)
