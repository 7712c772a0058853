"""Snapshots of served configurations: results, and the commands that measure them again."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from specbench import files
from specbench.errors import ConfigError
from specbench.features.gate.verdict import GateLimits, GateVerdict
from specbench.features.servers.exactness.stored_verdict import VerificationResult
from specbench.features.servers.load.server_run import ServerRun
from specbench.features.servers.served_comparison import compare_served
from specbench.features.servers.served_results import Result, read_stored, results_in
from specbench.reporting.escaping import json_text

T = TypeVar("T")
KIND = "served snapshot"
OUTPUT = ("-o", "--out", "--page", "--plots", "--plot-format")  # options of a recorded command that a check replaces
ATTACHED = ("-o", *(f"{option}=" for option in OUTPUT))  # with their values
Measure = Callable[[Sequence[str], Path], None]  # runs a command of specbench with another output folder


class ServedSnapshot(msgspec.Struct, kw_only=True):
    """The content of a snapshot file."""

    kind: str
    runs: list[ServerRun]
    verifications: list[VerificationResult]

    @property
    def results(self) -> list[Result]:
        """All results."""
        return [*self.runs, *self.verifications]


def _read(path: Path) -> ServedSnapshot:
    """Read a snapshot. Raises ConfigError if it is damaged."""
    return read_stored(path, ServedSnapshot)


def is_served(path: Path) -> bool:
    """Return whether a file is a snapshot of served configurations, or a folder has results of server commands."""
    if path.is_dir():
        return bool(results_in(path))
    try:
        return isinstance(table := json.loads(path.read_bytes()), dict) and table.get("kind") == KIND
    except (OSError, ValueError, RecursionError):
        return False


def results_of(path: Path) -> list[Result]:
    """Return the results in a snapshot file or a folder. Raises ConfigError if there are none."""
    found = results_in(path) if path.is_dir() else _read(path).results
    if not found:
        raise ConfigError(f"{path} contains no result of `specbench server`")
    return found


def record_served(path: Path, folders: Sequence[Path], add: bool = False) -> None:
    """Write a snapshot of the results in folders, or add them to it. Raises ConfigError if a folder has none."""
    before = _read(path).results if add and path.exists() else []
    found = [*before, *(result for folder in folders for result in results_of(folder))]
    snapshot = ServedSnapshot(
        kind=KIND,
        runs=_without_repeats([each for each in found if isinstance(each, ServerRun)]),
        verifications=_without_repeats([each for each in found if isinstance(each, VerificationResult)]),
    )
    files.write(path, json_text(msgspec.to_builtins(snapshot, str_keys=True), indent=1) + "\n")


def _without_repeats(results: Sequence[T]) -> list[T]:
    """Return the results without equal ones, in order."""
    out: list[T] = []
    for result in results:
        if result not in out:
            out.append(result)
    return out


def check_served(path: Path, out: Path, limits: GateLimits, measure: Measure) -> list[GateVerdict]:
    """Run the commands of a snapshot again, and compare."""
    snapshot = _read(path)
    for words in dict.fromkeys(tuple(each.command) for each in snapshot.results):
        measure(without_output(words), out)
    return compare_served(snapshot.results, results_in(out), limits)


def update_served(path: Path, out: Path, measure: Measure) -> None:
    """Run the commands of a snapshot again, and write the file from the results."""
    for words in dict.fromkeys(tuple(each.command) for each in _read(path).results):
        measure(without_output(words), out)
    record_served(path, [out])


def without_output(words: Sequence[str]) -> list[str]:
    """Return the words of a command without its output options."""
    out: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in OUTPUT:
            skip = True
        elif not word.startswith(ATTACHED):
            out.append(word)
    return out
