"""`specbench server run`: load on two servers in alternating blocks, and speedups with intervals."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from specbench.features.servers.endpoint import SPARE, Endpoint, connected
from specbench.features.servers.load.block_log import BlockLog
from specbench.features.servers.load.blocks import NOISE, Block, cycle, run_block
from specbench.features.servers.load.load_metrics import paired, pairs_needed
from specbench.features.servers.load.load_summary import blocks_of, summary_of
from specbench.features.servers.load.server_run import PILOT, ServerRun, ServerRunRequest, described
from specbench.features.servers.load.sides import Connected, Started
from specbench.features.servers.readiness import Patience
from specbench.features.servers.request_log import compact
from specbench.features.servers.served import ServedRequest
from specbench.features.servers.served_results import RUN, write_result
from specbench.observer import Observer

MOST_PAIRS = 24
PRECISION = 0.05  # half the width of the interval of a speedup, which decides the number of pairs


async def run_servers(request: ServerRunRequest, out: Path, observer: Observer) -> tuple[ServerRun, Path]:
    """Measure two servers in alternating blocks, and return the results and their folder in `out`, which contains them too.

    Raises:
        MissingAsset: A server does not answer, or died.
        ConfigError: A setting does not fit the servers.
    """
    async with AsyncExitStack() as stack:
        if request.commands is None:
            connections = max(request.concurrencies) + SPARE
            on, off = [
                await stack.enter_async_context(
                    connected(server, request.model, connections, Patience(seconds=server.seconds, observer=observer))
                )
                for server in (request.on, request.off)
            ]
            return await _Run(request, out, Connected({"on": on, "off": off}), on, off, observer).result()
        servers = Started(request, out, observer)
        stack.push_async_callback(servers.stop)
        on = await servers.use("on")
        off = await servers.use("off")  # stays for the first block
        return await _Run(request, out, servers, on, off, observer).result()


class _Run:
    """One measurement in progress."""

    def __init__(
        self,
        request: ServerRunRequest,
        out: Path,
        servers: Connected | Started,
        on: Endpoint,
        off: Endpoint,
        observer: Observer,
    ) -> None:
        self.request, self.servers, self.on, self.off, self.observer = request, servers, on, off, observer
        identity = compact(described(on.description, off.description, request, servers.restarts))
        self.folder = out / f"run-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = BlockLog(self.folder)
        self.start = time.perf_counter() - max((block.end for block in self.log.blocks), default=0.0)
        self.served = self._requests()

    def _requests(self) -> list[ServedRequest]:
        load = self.request.load
        return [
            ServedRequest(
                prompt=() if load.chat else prompt.text,
                messages=prompt.messages if load.chat else (),
                sampling=load.sampling,
                max_tokens=load.max_tokens,
                seed=None if load.sampling.is_greedy else 1000 * (load.seed + 1) + i,
                ignore_eos=load.ignore_eos,
            )
            for i, prompt in enumerate(self.request.prompts)
        ]

    async def result(self) -> tuple[ServerRun, Path]:
        """Measure all levels, and return the results and their folder."""
        request = self.request
        least = request.pairs or PILOT
        levels: list[tuple[int, ...]] = [(concurrency,) for concurrency in request.concurrencies]
        noise = request.aa_pairs
        if self.servers.restarts:  # all levels in each turn of a server, since a start takes long
            levels, noise = [request.concurrencies], 0
        total = len(request.concurrencies) * 2 * (least + noise)
        with self.observer.progress("blocks", total, len(self.log.blocks)) as advance:
            for concurrencies in levels:
                await self._pairs(concurrencies, "on", least, advance)
                await self._pairs(concurrencies, NOISE, noise, advance)
        if not request.pairs and not self.servers.restarts:
            await self._more_pairs()
        found = summary_of(request, self.on, self.off, self.log.blocks, self.folder)
        write_result(self.folder / RUN, found)
        return found, self.folder

    async def _more_pairs(self) -> None:
        """Measure as many more pairs of each level as its deviation needs."""
        done = {level: paired(blocks_of(self.log.blocks, level, "on")) for level in self.request.concurrencies}
        needed = {level: min(pairs_needed(pairs, PRECISION), MOST_PAIRS) for level, pairs in done.items()}
        missing = sum(2 * (needed[level] - len(pairs)) for level, pairs in done.items())
        with self.observer.progress(f"more blocks, for intervals of +- {PRECISION:.0%}", max(missing, 0)) as advance:
            for concurrency, count in needed.items():
                await self._pairs((concurrency,), "on", count, advance)

    async def _pairs(self, concurrencies: Sequence[int], arm: str, count: int, advance: Callable[[], None]) -> None:
        """Measure pairs of blocks until each level has `count` complete ones.

        Every second pair begins with the other side. The halves of a pair that was interrupted are measured again.
        """
        done: dict[int, set[int]] = {}
        for level in concurrencies:
            blocks = blocks_of(self.log.blocks, level, arm)
            done[level] = {off.pair for off, _ in paired(blocks)}
            halves = [block for block in blocks if block.pair not in done[level]]
            self.log.blocks = [block for block in self.log.blocks if block not in halves]
        for number in range(count):
            pair = -1 - number if arm == NOISE else number
            missing = [level for level in concurrencies if pair not in done[level]]
            order = ("off", "on") if number % 2 == 0 else ("on", "off")
            if self.request.together and arm != NOISE:
                for level in missing:
                    await asyncio.gather(*(self._block(side, side, level, pair, advance) for side in order))
                continue
            for side in order:
                for level in missing:
                    await self._block("off" if arm == NOISE else side, side, level, pair, advance)

    async def _block(self, server: str, side: str, concurrency: int, pair: int, advance: Callable[[], None]) -> None:
        """Measure a block of a server, which is called `side`, and log it."""
        endpoint = await self.servers.use(server)
        block = Block(id=time.time_ns(), side=side, concurrency=concurrency, pair=pair)
        requests = cycle(self.served, block)
        await run_block(endpoint, requests, block, self.request.load.pace, self.start, self.log.requests.add)
        self.log.add(block)
        advance()
