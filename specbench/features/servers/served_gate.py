"""Snapshots of served configurations: results, and the requests that measure them again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specbench.errors import ConfigError
from specbench.features.gate.verdict import GateLimits, GateVerdict
from specbench.features.servers.exactness.server_verification import verify_server
from specbench.features.servers.exactness.stored_verdict import ServerVerification
from specbench.features.servers.exactness.verify_request import ServerVerifyRequest
from specbench.features.servers.load.server_load import run_servers
from specbench.features.servers.load.server_run import ServerRun, ServerRunRequest
from specbench.features.servers.served_comparison import compare_served
from specbench.features.servers.served_results import Result, as_stored, results_in
from specbench.observer import Observer
from specbench.reporting.escaping import json_text

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ServedSnapshot:
    """Results of `specbench server`: a part of a snapshot file."""

    runs: list[ServerRun]
    verifications: list[ServerVerification]

    @property
    def results(self) -> list[Result]:
        """All results."""
        return [*self.runs, *self.verifications]

    def text(self) -> str:
        """Return JSON."""
        return json_text(msgspec.to_builtins(self, str_keys=True), indent=1)


def parsed(table: dict[str, Any], path: Path, outdated: bool = False) -> ServedSnapshot:
    """Return the results in a snapshot file, of this or an earlier revision. Raises ConfigError if they are damaged."""
    return as_stored(table, ServedSnapshot, str(path))


def results_of(path: Path) -> list[Result]:
    """Return the results in a folder. Raises ConfigError if there are none."""
    found = results_in(path)
    if not found:
        raise ConfigError(f"{path} contains no result of `specbench server`")
    return found


def recorded(earlier: ServedSnapshot | None, folders: Sequence[Path]) -> ServedSnapshot:
    """Return a snapshot of the results in folders, added to an earlier one. Raises ConfigError if a folder has none."""
    found = [*(earlier.results if earlier else []), *(result for folder in folders for result in results_of(folder))]
    return ServedSnapshot(
        runs=_without_repeats([each for each in found if isinstance(each, ServerRun)]),
        verifications=_without_repeats([each for each in found if isinstance(each, ServerVerification)]),
    )


def check(snapshot: ServedSnapshot, out: Path, limits: GateLimits, observer: Observer) -> list[GateVerdict]:
    """Measure the requests of a snapshot again, and compare. Raises ConfigError and MissingAsset."""
    return compare_served(snapshot.results, measured_again(snapshot, out, observer), limits)


def update(snapshot: ServedSnapshot, out: Path, observer: Observer) -> ServedSnapshot:
    """Measure the requests of a snapshot again, and return a snapshot of the results."""
    measured_again(snapshot, out, observer)
    return recorded(None, [out])


def measured_again(snapshot: ServedSnapshot, out: Path, observer: Observer) -> list[Result]:
    """Measure the requests of a snapshot again into a folder, and return the results.

    Raises ConfigError, before anything is measured, for a result of an earlier revision, which has no request.
    """
    for request in _without_repeats([_request_of(each) for each in snapshot.results]):
        asyncio.run(_measure(request.again(), out, observer))
    return results_in(out)


def _request_of(result: Result) -> ServerVerifyRequest | ServerRunRequest:
    if result.request is None:
        raise ConfigError(
            f"{result.name}: an earlier version recorded it without its request, so it can be compared, but not measured"
            " again; help: specbench server, then specbench gate record --served"
        )
    return result.request


async def _measure(request: ServerVerifyRequest | ServerRunRequest, out: Path, observer: Observer) -> None:
    """Measure a request into a folder in `out`, which has the result."""
    if isinstance(request, ServerRunRequest):
        await run_servers(request, out, observer)
    else:
        await verify_server(request, out, observer)


def _without_repeats(results: Sequence[T]) -> list[T]:
    """Return the results without equal ones, in order."""
    out: list[T] = []
    for result in results:
        if result not in out:
            out.append(result)
    return out
