"""`specbench server run`: load on two servers in alternating blocks, and speedups with intervals."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from specbench.analysis.intervals import Estimate
from specbench.experiment.scorer import grade
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.load.blocks import Block, Pace, cycle, run_block
from specbench.features.servers.load.guards import load_notes
from specbench.features.servers.load.load_metrics import (
    TIMES,
    Acceptance,
    Percentiles,
    acceptance_of,
    paired,
    pairs_needed,
    percentiles,
    prompt_of,
    throughput_speedup,
    time_per_token,
    time_speedup,
)
from specbench.features.servers.load.managed import ServerCommand, started
from specbench.features.servers.load.pays import (
    MeasuredSpeculation,
    PredictedSpeedup,
    StepTimes,
    predicted_speedups,
)
from specbench.features.servers.prompts import ServedPrompt
from specbench.features.servers.request_log import LoggedRequest, RequestLog, compact
from specbench.features.servers.served import Counters, Description, ServedRequest, ServedSampling
from specbench.http_client import KEY, Server
from specbench.note import Note
from specbench.observer import Observer
from specbench.runs.record import Record

BLOCKS, REQUESTS, SUMMARY = "blocks.jsonl", "requests.jsonl", "summary.json"
PILOT = 6  # pairs of blocks, from whose deviation the number of pairs is chosen
MOST_PAIRS = 24
PRECISION = 0.05  # half the width of the interval of a speedup, which decides the number of pairs
NOISE = "noise"  # the arm that compares off with off


@dataclass(frozen=True, kw_only=True)
class ServerRunRequest:
    """Two servers to compare under load.

    Args:
        on: The server with speculation, or how it is started.
        off: The server of the same model without it, or how it is started. If both are started, only one runs at a time.
        model: The model's name on the servers, if they serve several.
        key_env: The environment variable of the key of servers that are started.
        timeout: The longest duration of one request to a server that is started, in seconds.
        prompts: The prompts, which both sides get in the same order.
        sampling: How tokens are sampled.
        concurrencies: Requests in flight, one level after the other.
        max_tokens: The largest number of tokens of an output.
        ignore_eos: Whether every output has `max_tokens` tokens.
        chat: Whether prompts are sent as chats.
        pace: The duration of a block.
        pairs: Pairs of blocks of each level; 0 chooses the number for an interval of +- 5 %, from 6 to 24.
        noise_pairs: Pairs of two blocks of the server without speculation; 0 leaves them out.
        seed: Of the seeds of sampled requests.
        out: The folder of runs.
    """

    on: Server | ServerCommand
    off: Server | ServerCommand
    model: str = ""
    key_env: str = KEY
    timeout: float = 600.0
    prompts: Sequence[ServedPrompt]
    task: str = ""
    sampling: ServedSampling
    concurrencies: tuple[int, ...] = (1, 4, 16)
    max_tokens: int = 64
    ignore_eos: bool = False
    chat: bool = False
    pace: Pace
    pairs: int = 0
    noise_pairs: int = PILOT
    seed: int = 0
    out: Path = Path("results/servers")


@dataclass(frozen=True, kw_only=True)
class Level:
    """The results at one concurrency.

    `speedups` are of throughput and of the times in `TIMES`, above 1 where speculation is faster. `noise` is the ratio of the
    throughput of off to itself, which should be 1.
    """

    concurrency: int
    pairs: int
    throughput: Mapping[str, float]  # tokens per second by side
    speedups: Mapping[str, Estimate]
    noise: Estimate | None
    times: Mapping[str, Mapping[str, Percentiles]]  # by side and time
    acceptance: Acceptance
    is_queueing: bool


@dataclass(frozen=True, kw_only=True)
class ServerRun:
    """What was measured on two servers."""

    on: Description
    off: Description
    levels: list[Level]
    scores: Mapping[str, Mapping[str, float]]  # by side and metric
    failures: Mapping[str, int]  # by side
    predictions: list[PredictedSpeedup]
    notes: list[Note] = field(default_factory=list)
    folder: Path = Path()
    settings: Mapping[str, Any] = field(default_factory=dict)


class BlockLog:
    """The log of finished blocks, one JSON line each. Their requests are in the log of requests."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / BLOCKS
        self.requests = RequestLog(folder / REQUESTS)
        self.blocks: list[Block] = []
        if self.path.exists():
            by_block: dict[str, list[LoggedRequest]] = {}
            for request in self.requests.entries.values():
                by_block.setdefault(request.key.rsplit("|", 2)[0], []).append(request)
            for line in self.path.read_bytes().split(b"\n")[:-1]:
                table = msgspec.json.decode(line)
                block = Block(**{key: table[key] for key in ("side", "concurrency", "pair")})
                for key in ("begin", "end", "waiting", "lag", "cpu"):
                    setattr(block, key, table[key])
                block.before, block.after = (_counters(table[key]) for key in ("before", "after"))
                block.requests = by_block.get(table["key"], [])
                self.blocks.append(block)

    def add(self, key: str, block: Block) -> None:
        """Append a finished block."""
        self.blocks.append(block)
        table = {name: value for name, value in vars(block).items() if name != "requests"}
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode({**table, "key": key}) + b"\n")


def _counters(values: Any) -> Counters | None:
    """Return counters from the JSON of a block."""
    return None if values is None else msgspec.convert(values, Counters)


async def run_servers(request: ServerRunRequest, observer: Observer) -> ServerRun:
    """Measure two servers in alternating blocks.

    Raises:
        MissingAsset: A server does not answer, or died.
        ConfigError: The servers serve different models, or a setting does not fit them.
    """
    async with AsyncExitStack() as stack:
        if isinstance(request.on, Server) and isinstance(request.off, Server):
            on, off = [
                await stack.enter_async_context(connected(server, request.model))
                for server in (request.on, request.off)
            ]
            return await _Run(request, _Connected({"on": on, "off": off}), on, off, observer).result()
        servers = _Started(request, observer)
        stack.push_async_callback(servers.stop)
        on = await servers.use("on")
        off = await servers.use("off")  # stays for the first block
        return await _Run(request, servers, on, off, observer).result()


@dataclass(frozen=True)
class _Connected:
    """Two servers that run both, of which one is used at a time."""

    endpoints: Mapping[str, Endpoint]
    restarts: ClassVar[bool] = False

    async def use(self, side: str) -> Endpoint:
        """Return the endpoint of a side."""
        return self.endpoints[side]


class _Started:
    """Two servers of which one runs at a time. Using one stops the other."""

    restarts: ClassVar[bool] = True

    def __init__(self, request: ServerRunRequest, observer: Observer) -> None:
        self._request, self._observer = request, observer
        self._stack, self._side = AsyncExitStack(), ""
        self._endpoint: Endpoint | None = None

    async def use(self, side: str) -> Endpoint:
        """Return the endpoint of a side, after starting it if it does not run. Raises as `started` does."""
        if side != self._side or self._endpoint is None:
            await self.stop()
            how = self._request.on if side == "on" else self._request.off
            assert isinstance(how, ServerCommand)
            log = self._request.out / f"server-{side}.log"
            request = self._request
            with self._observer.status(f"start the server {side}"):
                self._endpoint = await self._stack.enter_async_context(
                    started(how, request.key_env, request.timeout, request.model, log)
                )
            self._side = side
        return self._endpoint

    async def stop(self) -> None:
        """End the server that runs."""
        self._side, self._endpoint = "", None
        await self._stack.aclose()


class _Run:
    """One measurement in progress."""

    def __init__(
        self,
        request: ServerRunRequest,
        servers: _Connected | _Started,
        on: Endpoint,
        off: Endpoint,
        observer: Observer,
    ) -> None:
        self.request, self.servers, self.on, self.off, self.observer = request, servers, on, off, observer
        self.folder = request.out / f"run-{self._hash()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = BlockLog(self.folder)
        self.start = time.perf_counter() - max((block.end for block in self.log.blocks), default=0.0)
        self.served = self._requests()

    def _hash(self) -> str:
        """Return a hash of what is measured: servers, prompts and settings."""
        settings = self.settings()
        settings.pop("pairs")
        described = {
            **settings,
            "on": self.on.description.identity,
            "off": self.off.description.identity,
            "prompts": [prompt.text for prompt in self.request.prompts],
        }
        return hashlib.sha256(compact(described).encode()).hexdigest()[:10]

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the measurement."""
        request = self.request
        return {
            "on": asdict(self.on.description), "off": asdict(self.off.description), "task": request.task,
            "sampling": asdict(request.sampling), "max_tokens": request.max_tokens, "ignore_eos": request.ignore_eos,
            "chat": request.chat, "pace": asdict(request.pace), "pairs": request.pairs, "seed": request.seed,
        }  # fmt: skip

    def _requests(self) -> list[ServedRequest]:
        request = self.request
        return [
            ServedRequest(
                prompt=() if request.chat else prompt.text,
                messages=prompt.messages if request.chat else (),
                sampling=request.sampling,
                max_tokens=request.max_tokens,
                seed=None if request.sampling.is_greedy else 1000 * (request.seed + 1) + i,
                ignore_eos=request.ignore_eos,
            )
            for i, prompt in enumerate(request.prompts)
        ]

    async def result(self) -> ServerRun:
        """Measure all levels, and return the results."""
        request = self.request
        least = request.pairs or PILOT
        levels: list[tuple[int, ...]] = [(concurrency,) for concurrency in request.concurrencies]
        noise = request.noise_pairs
        if self.servers.restarts:  # all levels in each turn of a server, since a start takes long
            levels, noise = [request.concurrencies], 0
        total = len(request.concurrencies) * 2 * (least + noise)
        with self.observer.progress("blocks", total, len(self.log.blocks)) as advance:
            for concurrencies in levels:
                await self._pairs(concurrencies, "on", least, advance)
                await self._pairs(concurrencies, NOISE, noise, advance)
        if not request.pairs and not self.servers.restarts:
            await self._more_pairs()
        return self._summary()

    async def _more_pairs(self) -> None:
        """Measure as many more pairs of each level as its deviation needs."""
        needed = {
            concurrency: min(pairs_needed(paired(self._blocks(concurrency, "on")), PRECISION), MOST_PAIRS)
            for concurrency in self.request.concurrencies
        }
        missing = sum(2 * (count - len(paired(self._blocks(level, "on")))) for level, count in needed.items())
        with self.observer.progress(f"more blocks, for intervals of +- {PRECISION:.0%}", max(missing, 0)) as advance:
            for concurrency, count in needed.items():
                await self._pairs((concurrency,), "on", count, advance)

    def _blocks(self, concurrency: int, arm: str) -> list[Block]:
        """Return the finished blocks of an arm at a concurrency: `on`, or NOISE, whose second blocks are called on."""
        return [
            block
            for block in self.log.blocks
            if block.concurrency == concurrency and (block.pair < 0) is (arm == NOISE)
        ]

    async def _pairs(self, concurrencies: Sequence[int], arm: str, count: int, advance: Callable[[], None]) -> None:
        """Measure pairs of blocks until each level has `count` complete ones.

        Every second pair begins with the other side. The halves of a pair that was interrupted are measured again.
        """
        done: dict[int, set[int]] = {}
        for level in concurrencies:
            done[level] = {off.pair for off, _ in paired(self._blocks(level, arm))}
            halves = [block for block in self._blocks(level, arm) if block.pair not in done[level]]
            self.log.blocks = [block for block in self.log.blocks if block not in halves]
        for number in range(count):
            pair = -1 - number if arm == NOISE else number
            missing = [level for level in concurrencies if pair not in done[level]]
            for side in ("off", "on") if number % 2 == 0 else ("on", "off"):
                for level in missing:
                    endpoint = await self.servers.use("off" if arm == NOISE else side)
                    await self._block(endpoint, side, level, pair)
                    advance()

    async def _block(self, endpoint: Endpoint, side: str, concurrency: int, pair: int) -> None:
        key = f"{side}|{concurrency}|{pair}|{time.time_ns()}"
        block = Block(side=side, concurrency=concurrency, pair=pair)
        requests = cycle(self.served, key)
        await run_block(endpoint, requests, block, self.request.pace, self.start, self.log.requests.add)
        self.log.add(key, block)

    def _summary(self) -> ServerRun:
        levels = [self._level(concurrency) for concurrency in self.request.concurrencies]
        by_side = {"on": list[Block](), "off": list[Block]()}
        for block in self.log.blocks:
            by_side["off" if block.pair < 0 else block.side].append(block)
        notes = load_notes([self.on.client.server, self.off.client.server], self.on, by_side)
        return ServerRun(
            on=self.on.description,
            off=self.off.description,
            levels=levels,
            scores={side: self._scores(blocks) for side, blocks in by_side.items()},
            failures={
                side: sum(r.error is not None for block in blocks for r in block.requests)
                for side, blocks in by_side.items()
            },
            predictions=self._predictions(levels),
            notes=notes,
            folder=self.folder,
            settings=self.settings(),
        )

    def _level(self, concurrency: int) -> Level:
        pairs = paired(self._blocks(concurrency, "on"))
        speedups: dict[str, Estimate] = {}
        if found := throughput_speedup(pairs):
            speedups["throughput"] = found
        for name, time_of in TIMES.items():
            if estimate := time_speedup(pairs, time_of, name == "time per token"):
                speedups[name] = estimate
        noise = throughput_speedup(paired(self._blocks(concurrency, NOISE)))
        sides = {"off": [off for off, _ in pairs], "on": [on for _, on in pairs]}
        slots = self.on.description.slots
        waited = any((block.waiting or 0) > 0 for blocks in sides.values() for block in blocks)
        return Level(
            concurrency=concurrency,
            pairs=len(pairs),
            throughput={side: _mean([block.throughput for block in blocks]) for side, blocks in sides.items()},
            speedups=speedups,
            noise=noise,
            times={
                side: {name: rows for name, of in TIMES.items() if (rows := percentiles(_done(blocks), of))}
                for side, blocks in sides.items()
            },
            acceptance=acceptance_of(sides["on"], self.on.dialect.streams_steps),
            is_queueing=waited or (slots is not None and concurrency > slots),
        )

    def _scores(self, blocks: Sequence[Block]) -> dict[str, float]:
        """Return the mean of each metric over the prompts, from the first finished output of each."""
        outputs: dict[int, LoggedRequest] = {}
        for request in _done(blocks):
            outputs.setdefault(int(prompt_of(request)), request)
        if self.request.ignore_eos:
            return {}  # such texts continue after the end of the answer
        values: dict[str, list[float]] = {}
        for at, output in outputs.items():
            prompt = self.request.prompts[at]
            if prompt.task.executes_code:
                return {}
            text = prompt.task.stopped(output.text)
            record = Record(method="served", sample=prompt.sample.id, repeat=0, seed=0, order=0, text=text)
            for name, value in grade(prompt.task, prompt.sample, record, None).items():
                if isinstance(value, float):
                    values.setdefault(name, []).append(value)
        return {name: _mean(found) for name, found in values.items()}

    def _predictions(self, levels: Sequence[Level]) -> list[PredictedSpeedup]:
        """Return predicted speedups; empty without acceptance by position."""
        length = self.on.description.speculation.length
        shares = next((level.acceptance.by_position for level in levels if level.acceptance.by_position), ())
        free = [level for level in levels if not level.is_queueing]
        if not shares or not free:
            return []
        off = {level.concurrency: self._step_seconds(level.concurrency, "off", 1.0) for level in free}
        on = {
            level.concurrency: self._step_seconds(level.concurrency, "on", level.acceptance.tokens_per_round or 1.0)
            for level in free
        }
        if not all(off.values()) or not all(on.values()):
            return []
        measured = MeasuredSpeculation(min(length or len(shares), len(shares)), StepTimes(on), shares)
        return predicted_speedups(StepTimes(off), measured, [level.concurrency for level in free])

    def _step_seconds(self, concurrency: int, side: str, tokens: float) -> list[float]:
        """Return in each block the mean time per token, times the tokens of a step or a round."""
        blocks = [pair[side == "on"] for pair in paired(self._blocks(concurrency, "on"))]
        found = [percentiles(block.done, time_per_token) for block in blocks]
        return [tokens * times.mean for times in found if times is not None]


def _done(blocks: Sequence[Block]) -> list[LoggedRequest]:
    return [request for block in blocks for request in block.done]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
