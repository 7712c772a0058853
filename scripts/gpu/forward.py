"""`make gpu-bench --part forward`: what a forward costs on this GPU, and what memory would allow. What the parts share, too.

Shapes are real ones, weights are random: their kernels cost what they cost, and nothing is downloaded.
"""

import dataclasses
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch

from scripts.gpu.common import Engines, fused_graphs, record, say, synchronise
from specbench.analysis import metrics
from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.config.presets import preset
from specbench.decoding.loop import Limits, decode
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session
from specbench.decoding.targets import Last
from specbench.machine.hardware import copy_bandwidth
from specbench.methods.autoregressive import Autoregressive
from specbench.models.engine import Graphs
from specbench.models.loader import LoadedPair, load
from specbench.models.resolve import Placement, ResolvedModel, resolve_models
from specbench.runs.record import Record
from specbench.verification.enumeration import Opened

MOST_STEP = 0.3  # milliseconds wanted of a drafted token of llama-68m
MOST_BLOCK = 1.15  # wanted of a 7B forward of BLOCK tokens, as multiples of one of a single token
BLOCK, DRAFTED = 6, 5  # five drafted tokens and the one before them; drafted in a row
LONG = 1900  # tokens of a second prompt, which a graph of 2,048 positions reads
SHRUNK = {  # --small: for trying things out on a CPU
    "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
SHRUNK_DRAFT = SHRUNK | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Where and how much. `seconds` is when a part begins nothing new."""

    device: torch.device
    small: bool
    prompt: int
    tokens: int
    prompts: int
    repeats: int
    forwards: int
    rates: tuple[float, ...]
    seconds: float

    def ids(self, vocabulary: int, seed: int) -> list[int]:
        """A prompt of random ids."""
        rng = random.Random(seed)
        return [rng.randrange(vocabulary) for _ in range(self.prompt)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number: its interval, what is not real about the models, what was wanted, and what stands beside it.

    No value: it could not be measured, and `beside` says why. `low` and `high` are the least and the greatest of the repeats,
    or a 95 % interval of a speedup.
    """

    what: str
    models: str
    engine: str
    simulated: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    beside: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the wanted figure was reached; None where none was wanted."""
        if self.least is None and self.most is None:
            return None
        return self.value is not None and (self.least or 0.0) <= self.value <= (self.most or float("inf"))

    def row(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"met": self.met}

    def cells(self) -> list[str]:
        measured = "not measured" if self.value is None else f"{told(self.value)} {self.unit}".strip()
        if self.low is not None and self.high is not None:
            measured += f" [{told(self.low)}, {told(self.high)}]"
        wanted = f">= {told(self.least)}" if self.least is not None else f"<= {told(self.most)}" if self.most else ""
        met = {None: "", True: "met", False: "not met"}[self.met]
        beside = ", ".join(f"{key} {told(value)}" for key, value in self.beside.items())
        return [self.what, self.models, self.engine, self.simulated or "–", measured, wanted, met, beside]


HEAD = ("what", "models", "engine", "made up", "measured", "wanted", "", "beside")


def told(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 100.0 else f"{value:.0f}"


def figure(values: list[float], **more: Any) -> Figure:
    """The median of repeats, with the least and the greatest."""
    return Figure(value=median(values), low=min(values), high=max(values), **more)


def dummy_pair(
    name: str, settings: Settings, logits: str = "real"
) -> tuple[Pair, dict[str, ResolvedModel], LoadedPair]:
    """A preset pair's architectures with random weights, on the device, in bfloat16 on a GPU and float32 on a CPU."""
    found_pair = preset("pair", name)
    models = {
        role: spec | ({"config": SHRUNK_DRAFT if role == "draft" else SHRUNK} if settings.small else {})
        for role, spec in found_pair.table["models"].items()
    }
    table = found_pair.table | {"weights": "dummy", "logits": logits, "models": models}
    pair, base = construct(Pair, table, name), found_pair.path.parent
    found = resolve_models(pair, tuple(pair.models), base, Placement(settings.device))
    say(f"making up {', '.join(map(named(pair, settings), pair.models))}")
    return pair, found, load(found, base, settings.device)


def named(pair: Pair, settings: Settings) -> Callable[[str], str]:
    """What to call the model of a role."""
    return lambda role: pair.models[role].path.rpartition("/")[2] + (" (shrunk)" if settings.small else "")


def race(runs: Mapping[str, Callable[[], None]], settings: Settings) -> dict[str, list[float]]:
    """Seconds of every run, once a repeat, in turns that rotate; the device has nothing to do before and after each."""
    names, seconds = list(runs), {name: list[float]() for name in runs}
    for run in runs.values():
        run()  # warm-up
    for repeat in range(settings.repeats):
        at = repeat % len(names)
        for name in names[at:] + names[:at]:
            synchronise(settings.device)
            begin = time.perf_counter()
            runs[name]()
            synchronise(settings.device)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def forward(settings: Settings) -> list[Figure]:
    """Copying, then every model of llama-2 by every engine: a forward, a block, a drafted token, autoregressive decoding."""
    bandwidth = copy_bandwidth(settings.device.type)
    out = [Figure(what="copy bandwidth", models="–", engine="–", simulated="", value=bandwidth / 1e9, unit="GB/s")]
    pair, found, loaded = dummy_pair("llama-2", settings)
    for role in pair.models:
        network = loaded.networks[role]
        graphs = loaded.graphs.get(role) or Graphs(network, settings.device)
        say(f"{role}: preparing graphs")
        fused = fused_graphs(network)
        for each in (graphs, fused):
            if each:
                each.prepare(max(settings.prompt + settings.tokens, LONG) + BLOCK, BLOCK)
        engines = Engines(loaded.models[role], network, graphs, loaded.vocabulary, fused)
        bench = _Bench(
            settings, engines, found[role], bandwidth, {"models": named(pair, settings)(role), "simulated": "dummy"}
        )
        out += [
            *bench.blocks(role, settings.prompt),
            *bench.blocks(role, LONG),
            *(bench.drafting() if role == "draft" else []),
            *bench.decoding(),
        ]
    return out


@dataclasses.dataclass(frozen=True)
class _Bench:
    """One model's engines, and what its figures have in common."""

    settings: Settings
    engines: Engines
    found: ResolvedModel
    bandwidth: float
    same: dict[str, str]

    @property
    def traffic(self) -> metrics.Traffic:
        """The bytes that a forward reads at least."""
        return metrics.Traffic(self.found.source.forward_bytes, self.found.source.position_bytes)

    def wanted(self, engine: str, most: float) -> float | None:
        """Of the engine that a GPU is given, at real shapes."""
        return most if engine == "graph" and not self.settings.small else None

    def _ids(self) -> list[int]:
        return self.settings.ids(self.engines.vocabulary, 0)

    def blocks(self, role: str, prompt: int) -> list[Figure]:
        """Forwards of one token and of BLOCK after a prompt of so many tokens, each of tokens that were not read before."""
        ids = (self._ids() * (prompt // self.settings.prompt + 1))[:prompt]
        sessions = {engine: self.engines.session(engine) for engine in self.engines.names()}
        runs = {
            f"{engine} {n}": partial(self._read, session, ids, n)
            for engine, session in sessions.items()
            for n in (1, BLOCK)
        }
        say(f"{role}: forwards of 1 and of {BLOCK} tokens after {prompt}")
        seconds = race(runs, self.settings)
        least = (self.traffic.forward + self.traffic.position * prompt) / self.bandwidth
        after = "" if prompt == self.settings.prompt else f", after {prompt}"
        out = []
        for engine in sessions:
            one, block = ([s / self.settings.forwards for s in seconds[f"{engine} {n}"]] for n in (1, BLOCK))
            share = {"of copy bandwidth": f"{least / median(one):.0%}"}
            for tokens, values, beside in (("1 token", one, share), (f"{BLOCK} tokens", block, {})):
                what = f"forward of {tokens}{after}"
                values = [1e3 * value for value in values]
                out.append(figure(values, what=what, engine=engine, unit="ms", beside=beside, **self.same))
            ratio = [b / a for a, b in zip(one, block, strict=True)]
            most = self.wanted(engine, MOST_BLOCK) if role == "target" else None
            what = f"forward of {BLOCK} over 1{after}"
            out.append(figure(ratio, what=what, engine=engine, unit="x", most=most, **self.same))
        return out

    def _read(self, session: Session, ids: list[int], n: int) -> None:
        vocabulary = self.engines.vocabulary
        for i in range(self.settings.forwards):
            session.score(ids + [(n + i % 2 + j) % vocabulary for j in range(n)], len(ids))
        session.settle()

    def drafting(self) -> list[Figure]:
        """DRAFTED tokens in a row, drawing included, greedy and sampled."""
        out = []
        for temperature in (0.0, 1.0):
            say(f"draft steps at T = {temperature:g}")
            for run in self._drafting(temperature).values():
                run()
            self._capture()
            runs = self._drafting(temperature)  # in new sessions: capturing takes the old ones' cache
            for run in runs.values():
                run()
            for engine, seconds in race(runs, self.settings).items():
                values = [1e3 * each / self.settings.forwards / DRAFTED for each in seconds]
                most, what = self.wanted(engine, MOST_STEP), f"drafted token, T = {temperature:g}"
                out.append(figure(values, what=what, engine=engine, unit="ms", most=most, **self.same))
        return out

    def _drafting(self, temperature: float) -> dict[str, Callable[[], None]]:
        """A run of each engine, in a session of its own."""
        return {
            engine: partial(self._draft, self.engines.session(engine), temperature) for engine in self.engines.names()
        }

    def _capture(self) -> None:
        """Capture CUDA graphs for the drafts that the warm-up requested."""
        for graphs in (self.engines.graphs, self.engines.fused):
            if graphs:
                graphs.prepare(1)

    def _draft(self, session: Session, temperature: float) -> None:
        ids, chance = self._ids(), torch.Generator(self.settings.device).manual_seed(0)
        for i in range(self.settings.forwards):
            session.roll([*ids, i % 2], DRAFTED, Sampler(temperature, generator=chance), frozenset())
        session.settle()

    def decoding(self) -> list[Figure]:
        """Greedy `ar` by the driver: decoding seconds over the tokens behind the first, and copying's share of them."""
        say("autoregressive decoding")
        names, rows = self.engines.names(), {engine: list[Record]() for engine in self.engines.names()}
        ar, limits = Autoregressive(scorers=("it",), target=Last()), Limits(frozenset(), self.settings.tokens)
        for repeat in range(-1, self.settings.repeats):
            for engine in names:
                models = Opened({"it": self.engines.session(engine)}, self._ids())
                out = decode(ar, models, Sampler(temperature=0.0), limits)
                if repeat >= 0:
                    rows[engine].append(record("ar", 0, repeat, models, out, "dummy"))
            self._capture()
        figures = []
        for engine in names:
            values = [1e3 * metrics.seconds(row) / (len(row.tokens) - 1) for row in rows[engine]]
            share = metrics.bound_share(
                rows[engine],
                {"it": self.traffic},
                self.bandwidth,
            )
            outside = metrics.outside_forwards(rows[engine])
            beside = {"of copy bandwidth": f"{share:.0%}", "outside forwards": f"{outside:.0%}"}
            figures.append(figure(values, what="ar, a token", engine=engine, unit="ms", beside=beside, **self.same))
        return figures
