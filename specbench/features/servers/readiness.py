"""Waiting for a server that loads its model: it answers with an error status, or accepts no connection yet."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from specbench.errors import MissingAsset
from specbench.http_client import FailureKind, HttpClient, RequestFailed
from specbench.observer import Observer

T = TypeVar("T")
POLL_SECONDS = 0.5
PROBE_SECONDS = 30.0  # of one try; a server that takes longer is tried again


class NotReady(MissingAsset):
    """A server that did not become ready in time; exit code 4."""


def _is_running() -> None:
    """Do nothing, for a server whose process is not ours."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server is waited for.

    Args:
        seconds: The longest wait.
        is_starting: Whether it may accept no connection yet.
        check: Raises MissingAsset if it will never be ready, such as when its process has ended.
        observer: Receives that the server is loading.
    """

    seconds: float
    is_starting: bool = False
    check: Callable[[], None] = _is_running
    observer: Observer = field(default_factory=Observer)

    def means_loading(self, error: RequestFailed) -> bool:
        """Return whether a failure is one of a server that is not ready yet."""
        early = (FailureKind.connection, FailureKind.reset, FailureKind.timeout)
        return error.is_loading or (self.is_starting and error.kind in early)


async def when_ready(client: HttpClient, describe: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Return what `describe` returns once the server at `client` is ready.

    Raises:
        NotReady: It is not ready within the seconds of `patience`.
        MissingAsset: Its check failed.
        RequestFailed: It answers, but not as a model server.
    """
    deadline = time.monotonic() + patience.seconds
    try:
        return await _tried(client, describe, patience)
    except RequestFailed as error:
        if not patience.means_loading(error):
            raise
        last = error
    url = client.server.root
    with patience.observer.status(f"wait for {url}, which is loading, for at most {patience.seconds:g} s"):
        while time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            try:
                return await _tried(client, describe, patience)
            except RequestFailed as error:
                if not patience.means_loading(error):
                    raise
                last = error
    patience.check()
    raise NotReady(
        f"{url} was not ready within {patience.seconds:g} s: {last}; help: wait until it has loaded its model"
    )


async def _tried(client: HttpClient, describe: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Return what `describe` returns, while the check holds. Raises RequestFailed and MissingAsset."""
    task = asyncio.ensure_future(describe())
    limit = time.monotonic() + PROBE_SECONDS
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=POLL_SECONDS)
            patience.check()  # at once, also while a request hangs
            if not task.done() and patience.is_starting and time.monotonic() > limit:
                raise RequestFailed(FailureKind.timeout, f"no answer within {PROBE_SECONDS:g} s")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def is_healthy(client: HttpClient) -> bool:
    """Return whether the server's `/health` says that it is ready; False if it has none.

    Raises RequestFailed if the server accepts no connection, or says that it is loading.
    """
    try:
        await client.get("/health")
    except RequestFailed as error:
        if error.is_loading or not error.status:
            raise
        return False
    return True
