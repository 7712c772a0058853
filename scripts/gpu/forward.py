"""Cost of a forward on a GPU relative to memory bandwidth: `make gpu-bench ARGS="--part forward"`.

Models have real shapes and random weights. Their kernels take the same time, and nothing is downloaded.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from scripts.gpu.common import Engines, decode, fused_graphs, record, say
from scripts.gpu.gpu_figures import Figure, Settings, dummy_pair, figure, named, race
from specbench.analysis.forwards import Traffic, bound_share, outside_forwards
from specbench.analysis.method_records import seconds
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import TableModels
from specbench.machine.memory import copy_bandwidth, read_bandwidth
from specbench.methods.autoregressive import Autoregressive
from specbench.models.engines import GraphModel, LeanModel
from specbench.models.lean import Graphs
from specbench.models.resolved_model import ResolvedModel
from specbench.runs.record import Record

MOST_STEP = 0.3  # goal: milliseconds per draft token of llama-68m
MOST_BLOCK = 1.15  # goal: a 7B forward of BLOCK tokens, relative to one of a single token
BLOCK, DRAFTED = 6, 5  # tokens of a verification: five draft tokens and the one before them
LONG = 1900  # tokens of a second prompt, which needs a graph of 2,048 positions


def forward(settings: Settings) -> list[Figure]:
    """Measure memory bandwidth, then forwards, draft tokens and autoregressive decoding of llama-2 in every engine."""
    device = settings.device.type
    bandwidths = {"read bandwidth": read_bandwidth(device), "copy bandwidth": copy_bandwidth(device)}
    out = [
        Figure(what=what, models="–", engine="–", simulated="", value=value / 1e9, unit="GB/s")
        for what, value in bandwidths.items()
    ]
    bandwidth = bandwidths["read bandwidth"]
    pair, found, loaded = dummy_pair("llama-2", settings)
    for role in pair.models:
        model = loaded.models[role]
        assert isinstance(model, LeanModel)
        network = model.network
        graphs = model.graphs if isinstance(model, GraphModel) else Graphs(network, settings.device)
        say(f"{role}: preparing graphs")
        fused = fused_graphs(network)
        for each in (graphs, fused):
            if each:
                each.prepare(max(settings.prompt + settings.tokens, LONG) + BLOCK, range(1, BLOCK + 1))
        engines = Engines(model.model, network, graphs, loaded.vocabulary, fused)
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
    """One model's engines, with the fields that its figures share."""

    settings: Settings
    engines: Engines
    found: ResolvedModel
    bandwidth: float
    same: dict[str, str]

    @property
    def traffic(self) -> Traffic:
        """The least number of bytes that a forward reads."""
        return Traffic(self.found.source.forward_bytes, self.found.source.position_bytes)

    def goal(self, engine: str, most: float) -> float | None:
        """Return the goal for an engine: only the default engine of a GPU at real shapes has one."""
        return most if engine == "graph" and not self.settings.small else None

    def _ids(self) -> list[int]:
        return self.settings.ids(self.engines.vocabulary, 0)

    def blocks(self, role: str, prompt: int) -> list[Figure]:
        """Time forwards of one token and of BLOCK uncached tokens after a prompt of `prompt` tokens."""
        ids = (self._ids() * (prompt // self.settings.prompt + 1))[:prompt]
        sessions = {engine: self.engines.session(engine) for engine in self.engines.names()}
        runs = {
            f"{engine} {n}": partial(self._read, session, ids, n)
            for engine, session in sessions.items()
            for n in (1, BLOCK)
        }
        say(f"{role}: forwards of 1 and of {BLOCK} tokens after {prompt}")
        seconds = race(runs, self.settings)
        least = (self.traffic.forward_bytes + self.traffic.position_bytes * prompt) / self.bandwidth
        after = "" if prompt == self.settings.prompt else f", after {prompt}"
        out = []
        for engine in sessions:
            one, block = ([s / self.settings.forwards for s in seconds[f"{engine} {n}"]] for n in (1, BLOCK))
            share = {"of read bandwidth": f"{least / median(one):.0%}"}
            for tokens, values, beside in (("1 token", one, share), (f"{BLOCK} tokens", block, {})):
                what = f"forward of {tokens}{after}"
                values = [1e3 * value for value in values]
                out.append(figure(values, what=what, engine=engine, unit="ms", beside=beside, **self.same))
            ratio = [b / a for a, b in zip(one, block, strict=True)]
            most = self.goal(engine, MOST_BLOCK) if role == "target" else None
            what = f"forward of {BLOCK} over 1{after}"
            out.append(figure(ratio, what=what, engine=engine, unit="x", most=most, **self.same))
        return out

    def _read(self, session: Session, ids: list[int], n: int) -> None:
        vocabulary = self.engines.vocabulary
        for i in range(self.settings.forwards):
            session.score(ids + [(n + i % 2 + j) % vocabulary for j in range(n)], len(ids))
        session.finish()

    def drafting(self) -> list[Figure]:
        """Time DRAFTED consecutive draft tokens, sampling included, at T = 0 and T = 1."""
        out = []
        for temperature in (0.0, 1.0):
            say(f"draft steps at T = {temperature:g}")
            for run in self._drafting(temperature).values():
                run()
            self._capture()
            runs = self._drafting(temperature)  # in new sessions, since capturing takes the cache of the old ones
            for run in runs.values():
                run()
            for engine, times in race(runs, self.settings).items():
                values = [1e3 * each / self.settings.forwards / DRAFTED for each in times]
                most, what = self.goal(engine, MOST_STEP), f"draft token, T = {temperature:g}"
                out.append(figure(values, what=what, engine=engine, unit="ms", most=most, **self.same))
        return out

    def _drafting(self, temperature: float) -> dict[str, Callable[[], None]]:
        """Return a run for each engine in a new session."""
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
        session.finish()

    def decoding(self) -> list[Figure]:
        """Time greedy `ar`: decoding seconds per token after the first, and the share that memory bandwidth explains."""
        say("autoregressive decoding")
        names, rows = self.engines.names(), {engine: list[Record]() for engine in self.engines.names()}
        ar, limits = Autoregressive(scorers=("it",), target=Last()), GenerationLimits(frozenset(), self.settings.tokens)
        for repeat in range(-1, self.settings.repeats):
            for engine in names:
                models = TableModels({"it": self.engines.session(engine)}, self._ids())
                out = decode(ar, models, Sampler(temperature=0.0), limits)
                if repeat >= 0:
                    rows[engine].append(record("ar", 0, repeat, models, out, "dummy"))
            self._capture()
        figures = []
        for engine in names:
            values = [1e3 * seconds(row) / (len(row.tokens) - 1) for row in rows[engine]]
            share = bound_share(
                rows[engine],
                {"it": self.traffic},
                self.bandwidth,
            )
            outside = outside_forwards(rows[engine])
            beside = {"of read bandwidth": f"{share:.0%}", "outside forwards": f"{outside:.0%}"}
            figures.append(figure(values, what="ar, per token", engine=engine, unit="ms", beside=beside, **self.same))
        return figures
