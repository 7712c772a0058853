"""Sending of requests to one server: each finished one is logged, a dead server is noticed, and none is left running."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from specbench.errors import MissingAsset
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import LoggedRequest, RequestLog, failed, logged, storable
from specbench.features.servers.served import ServedRequest
from specbench.http_client import FailureKind, RequestFailed

DEAD_AFTER = 5  # failed connections in succession, after which a server counts as dead
DEAD = (FailureKind.connection, FailureKind.reset)


class ServerDied(MissingAsset):
    """The server at `url` no longer accepts connections; exit code 4."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url} accepts no more connections, and finished requests are kept; help: restart the server, then run the"
            " same command"
        )
        self.url = url


class Sender:
    """Sends requests to one server, and reports each as it finishes.

    Args:
        endpoint: The server.
        start: The time from which `started` of a log entry is counted, on `time.perf_counter`.
        on_finished: Called with each finished request.
    """

    def __init__(self, endpoint: Endpoint, start: float, on_finished: Callable[[LoggedRequest], None]) -> None:
        self.endpoint, self._start, self._on_finished = endpoint, start, on_finished
        self._lost = 0  # connections in succession

    @property
    def is_dead(self) -> bool:
        """Whether DEAD_AFTER requests in succession could not connect."""
        return self._lost >= DEAD_AFTER

    def check(self) -> None:
        """Raise ServerDied if the server is dead."""
        if self.is_dead:
            raise ServerDied(self.endpoint.description.url)

    async def send(
        self, key: RequestKey, request: ServedRequest, before: Callable[[ServedRequest], Awaitable[None]] | None = None
    ) -> LoggedRequest:
        """Send a request, and return its log entry. A failure is an entry with an error. `before` is awaited first."""
        sent = time.perf_counter()
        try:
            if before is not None:
                await before(request)
            entry = logged(key, await self.endpoint.complete(request), request)
            self._lost = 0
        except RequestFailed as error:
            entry = failed(key, error, request)
            self._lost = self._lost + 1 if error.kind in DEAD else 0
        entry.started = sent - self._start
        entry = storable(entry)
        self._on_finished(entry)
        return entry


async def send_all(
    endpoint: Endpoint,
    requests: Sequence[tuple[RequestKey, ServedRequest]],
    log: RequestLog,
    concurrency: int,
    advance: Callable[[], None],
    before: Callable[[ServedRequest], Awaitable[None]] | None = None,
) -> None:
    """Send the requests whose keys the log lacks, `concurrency` at a time, and log each as it finishes.

    Args:
        endpoint: The server.
        requests: Keys and requests.
        log: The log. Failed requests are logged too, and sent again by the next call.
        concurrency: The largest number of requests in flight.
        advance: Called after each request, also for those that the log has.
        before: Awaited before each request, such as to fill the server's cache.

    Raises:
        ServerDied: Several requests in succession could not connect.
    """
    waiting = iter([(key, request) for key, request in requests if not log.has(key)])
    for _ in range(sum(log.has(key) for key, _ in requests)):
        advance()
    sender = Sender(endpoint, time.perf_counter(), log.add)

    async def worker() -> None:
        for key, request in waiting:
            if sender.is_dead:
                return
            await sender.send(key, request, before)
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    sender.check()
