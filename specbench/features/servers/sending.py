"""Sending of many requests to one server: at most so many in flight, each finished one logged, none left running."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from specbench.errors import MissingAsset
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.request_log import LoggedRequest, RequestLog, failed, logged
from specbench.features.servers.served import ServedRequest
from specbench.http_client import FailureKind, RequestFailed

DEAD_AFTER = 5  # failed connections in succession, after which a server counts as dead
DEAD = (FailureKind.connection, FailureKind.reset)


class ServerDied(MissingAsset):
    """A server that no longer accepts connections; exit code 4. `last` is the request during which it died."""

    def __init__(self, url: str, last: ServedRequest | None) -> None:
        super().__init__(
            f"{url} accepts no more connections, and finished requests are kept; help: restart the server, then run the"
            " same command"
        )
        self.last = last


async def send_all(
    endpoint: Endpoint,
    requests: Sequence[tuple[str, ServedRequest]],
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
        before: Called before each request, such as to fill the server's cache.

    Raises:
        ServerDied: DEAD_AFTER requests in succession could not connect.
    """
    waiting = iter([(key, request) for key, request in requests if not log.has(key)])
    for _ in range(sum(log.has(key) for key, _ in requests)):
        advance()
    in_succession = 0
    suspect: ServedRequest | None = None
    start = time.monotonic()

    async def worker() -> None:
        nonlocal in_succession, suspect
        for key, request in waiting:
            if in_succession >= DEAD_AFTER:
                return
            prompt = request.prompt if isinstance(request.prompt, tuple) and request.prompt else None
            entry: LoggedRequest
            started = time.monotonic() - start
            try:
                if before is not None:
                    await before(request)
                completion = await endpoint.complete(request)
                entry = logged(key, completion, prompt=prompt, seed=request.seed)
                entry.changed = completion.changed_parameters(request.sampling) or None
                in_succession = 0
            except RequestFailed as error:
                entry = failed(key, error, prompt=prompt)
                if error.kind in DEAD:
                    suspect = suspect or request
                    in_succession += 1
                else:
                    in_succession = 0
            entry.started = started
            log.add(entry)
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    if in_succession >= DEAD_AFTER:
        raise ServerDied(endpoint.description.url, suspect)
