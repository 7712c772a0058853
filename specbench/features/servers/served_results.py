"""Stored results of server commands, which `compare`, `gate` and profiles read: summary.json and verdict.json."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specbench import files
from specbench.errors import ConfigError
from specbench.features.servers.exactness.stored_verdict import VERIFICATION_KIND, ServerVerification
from specbench.features.servers.load.server_run import RUN_KIND, ServerRun
from specbench.reporting.escaping import json_text

RUN, VERIFICATION = "summary.json", "verdict.json"
WORDS = {  # keys of earlier revisions, with today's
    "dialect": "backend",
    "time to first token": "TTFT",
    "time per token": "TPOT",
    "time between chunks": "inter-chunk latency",
}
Result = ServerRun | ServerVerification
T = TypeVar("T")
R = TypeVar("R", ServerRun, ServerVerification)


class _Kind(msgspec.Struct):
    """What a JSON file says that it contains."""

    kind: str = ""


def results_in(path: Path) -> list[Result]:
    """Return the results in a folder or in the folders in it; empty if it contains none.

    Raises ConfigError for a result that cannot be read. Files that are no results are ignored.
    """
    found: list[Result] = []
    for folder in (path, *sorted(each for each in path.iterdir() if each.is_dir())) if path.is_dir() else ():
        if _kind_of(folder / RUN) == RUN_KIND:
            found.append(_read(folder / RUN, ServerRun))
        if _kind_of(folder / VERIFICATION) == VERIFICATION_KIND:
            found.append(_read(folder / VERIFICATION, ServerVerification))
    return found


def _read(path: Path, kind: type[R]) -> R:
    try:
        return read_stored(path, kind)
    except ConfigError as error:
        raise ConfigError(f"{error}; help: it may be of another version, so measure again") from None


def read_stored(path: Path, kind: type[T]) -> T:
    """Read a stored result, of this or an earlier revision. Raises ConfigError if it is damaged."""
    return as_stored(files.read_json(path, dict[str, Any]), kind, str(path))


def as_stored(table: dict[str, Any], kind: type[T], where: str) -> T:
    """Return a stored result from JSON, of this or an earlier revision. Raises ConfigError if it is damaged."""
    return files.parse_json(json_text(in_todays_words(table)), kind, where)


def in_todays_words(stored: Any) -> Any:
    """Return stored JSON with the keys that earlier revisions had under other names, such as `dialect` for `backend`."""
    if isinstance(stored, dict):
        return {WORDS.get(key, key): in_todays_words(value) for key, value in stored.items()}
    return [in_todays_words(each) for each in stored] if isinstance(stored, list) else stored


def as_json(result: Result) -> str:
    """Return a result as JSON."""
    return json_text(msgspec.to_builtins(result, str_keys=True), indent=2) + "\n"


def write_result(path: Path, result: Result) -> None:
    """Write a result to its file."""
    files.write(path, as_json(result))


def _kind_of(path: Path) -> str:
    try:
        return files.read_json(path, _Kind).kind if path.exists() else ""
    except ConfigError:
        return ""
