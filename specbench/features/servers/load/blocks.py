"""A closed loop of requests against one server for some seconds: a block. Speedups are ratios of two blocks."""

import asyncio
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.sending import Sender
from specbench.features.servers.served import Counters, ServedRequest

PAUSE = 0.05  # seconds after a failed request, so that a server that rejects at once is not flooded
NOISE = "noise"  # the arm that compares off with off; its pairs have negative numbers
COUNTED = ("output_tokens", "cache_queries", "cache_hits", "preemptions")  # counters that never fall
TICK = 0.01  # seconds; the event loop's lag is how much later a timer of this length ends


@dataclass(kw_only=True)
class Block:
    """A block of load: `concurrency` requests in flight for some seconds, then the rest of the started requests.

    Args:
        id: Identifies it: when it began, in nanoseconds since the epoch.
        side: `on` or `off`; in A/A pairs, both are the server off.
        concurrency: Requests in flight.
        pair: The pair of blocks that it belongs to.
        begin: Beginning of the measured window, in seconds since the command began; the ramp before it is not measured.
        end: End of the window; what arrives later is not measured.
        requests: The requests, with the times of their chunks.
        before: The server's counters before it; None if it has none.
        after: The server's counters after it.
        waiting: The largest number of requests that waited in the server; None if it does not say.
        lag: The largest lag of the client's event loop, in seconds.
        cpu: The share of one processor that the client used.
    """

    id: int = 0
    side: str
    concurrency: int
    pair: int
    begin: float = 0.0
    end: float = 0.0
    requests: list[LoggedRequest] = field(default_factory=list)
    before: Counters | None = None
    after: Counters | None = None
    waiting: float | None = None
    lag: float = 0.0
    cpu: float = 0.0

    @property
    def done(self) -> list[LoggedRequest]:
        """The requests that did not fail."""
        return [request for request in self.requests if request.error is None]

    @property
    def tokens(self) -> int:
        """The tokens that arrived within the window."""
        return sum(
            tokens
            for request in self.done
            for seconds, tokens in request.chunks or ()
            if self.begin <= request.started + seconds < self.end
        )

    @property
    def throughput(self) -> float:
        """Tokens per second within the window."""
        return self.tokens / (self.end - self.begin)

    @property
    def counted(self) -> Counters | None:
        """What the server's counters counted during the block. All are None if they fell or contradict each other."""
        if self.before is None or self.after is None:
            return None
        if fault := self.before.fault or self.after.fault:
            return Counters(None, fault=fault)
        speculation = None
        if self.before.speculation is not None and self.after.speculation is not None:
            speculation = self.after.speculation - self.before.speculation
            if speculation.fault:
                return Counters(None, fault=f"the counters of speculation changed by {speculation.fault}")
        rest: dict[str, float | None] = {}
        for name in COUNTED:
            one, two = getattr(self.before, name), getattr(self.after, name)
            rest[name] = None if one is None or two is None else two - one
            if (rest[name] or 0.0) < 0.0:
                return Counters(None, fault=f"the counter of {name.replace('_', ' ')} fell from {one:g} to {two:g}")
        return Counters(
            speculation, output_tokens=rest["output_tokens"], cache_queries=rest["cache_queries"],
            cache_hits=rest["cache_hits"], preemptions=rest["preemptions"],
        )  # fmt: skip


@dataclass(frozen=True)
class Pace:
    """How long a block is: the ramp, which is not measured, and the window, in seconds."""

    ramp: float = 1.0
    window: float = 5.0


async def run_block(
    endpoint: Endpoint,
    requests: Iterator[tuple[RequestKey, ServedRequest]],
    block: Block,
    pace: Pace,
    start: float,
    on_finished: Callable[[LoggedRequest], None],
) -> Block:
    """Send requests in a closed loop, and return the block with what came back.

    Args:
        endpoint: The server.
        requests: Keys and requests, without end.
        block: The block, without measurements.
        pace: Its duration.
        start: The time at which the command began, on `time.perf_counter`.
        on_finished: Called with each finished request.

    Raises:
        ServerDied: Requests in succession could not connect.
    """
    block.before = await endpoint.counters()
    begin = time.perf_counter()
    block.begin, block.end = begin - start + pace.ramp, begin - start + pace.ramp + pace.window

    def finished(entry: LoggedRequest) -> None:
        entry.prompt = None  # the key names it
        block.requests.append(entry)
        on_finished(entry)

    sender = Sender(endpoint, start, finished)

    async def worker(number: int) -> None:
        await asyncio.sleep(
            pace.ramp * number / block.concurrency
        )  # requests in step would leave the server idle together
        while time.perf_counter() - start < block.end and not sender.is_dead:
            entry = await sender.send(*next(requests))
            if entry.error is not None:
                await asyncio.sleep(PAUSE)

    async def watch() -> None:
        polled = False
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            block.lag = max(block.lag, time.perf_counter() - before - TICK)
            if not polled and before - start > (block.begin + block.end) / 2:
                polled = True
                middle = await endpoint.counters()
                block.waiting = middle.waiting if middle else None

    used = _cpu_seconds()
    watcher = asyncio.create_task(watch())
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(block.concurrency):
                group.create_task(worker(number))
    finally:
        watcher.cancel()
    block.cpu = (_cpu_seconds() - used) / (time.perf_counter() - begin)
    block.after = await endpoint.counters()
    sender.check()
    return block


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cycle(requests: Sequence[ServedRequest], block: Block) -> Iterator[tuple[RequestKey, ServedRequest]]:
    """Yield keys of a block and requests, from the first on again and again."""
    for number in count():
        for at, request in enumerate(requests):
            yield RequestKey(side=block.side, block=block.id, prompt=at, number=number), request
