"""Engines, small random models, progress and output of `make gpu-check` and `make gpu-bench`.

Both run from a checkout with torch, transformers and pandas installed. Nothing imported here needs other packages.
"""

import copy
import dataclasses
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specbench.decoding import loop
from specbench.decoding.loop import Generation
from specbench.decoding.session import Session
from specbench.features.verify.enumeration import TableModels
from specbench.files import write
from specbench.models import simulated
from specbench.models.cached_session import CachedSession
from specbench.models.lean import GraphModelRunner, Graphs, LeanModelRunner, Network, network_of, small_config
from specbench.models.transformers_session import EagerModelRunner
from specbench.runs.record import Record, round_record, usage_record

ENGINES = ("eager", "lean", "graph")
FUSED = True  # whether to include graphs with parts fused by torch.compile; only on a GPU
BEAT = 8.0  # seconds between progress lines

VOCABULARY, POSITIONS, SOURCE = 40, 640, [7, 3, 9, 1]  # of the small models; SOURCE is the input of an encoder
decode = torch.inference_mode()(loop.decode)
PREPARED, MOST = 320, 6  # positions and block size of their graphs, more than the 256 positions of the first span
FAMILIES = tuple(Network.families)  # the examples of every architecture


@dataclasses.dataclass(frozen=True)
class Engines:
    """One model in every engine, sharing its weights. Encoder-decoder models have no graphs.

    On a CPU nothing can be captured, and `graph` is the static forward that a graph would record.
    """

    model: PreTrainedModel
    network: Network
    graphs: Graphs | None
    vocabulary: int
    fused: Graphs | None = None

    def session(self, engine: str, source: list[int] | None = None) -> Session:
        """Return a new session. `source` is the input of an encoder."""
        if engine == "eager":
            return CachedSession(EagerModelRunner(self.model, self.vocabulary, source))
        if engine == "lean":
            return CachedSession(LeanModelRunner(self.network, self.vocabulary, source))
        graphs = self.fused if engine == "compiled" else self.graphs
        assert graphs is not None
        return CachedSession(GraphModelRunner(graphs, self.vocabulary))

    def names(self) -> tuple[str, ...]:
        return (*(ENGINES if self.graphs else ENGINES[:2]), *(("compiled",) if self.fused else ()))


def fused_graphs(network: Network) -> Graphs | None:
    """Return graphs of a model with fused elementwise parts, or None on a CPU or if there is nothing to fuse."""
    device = network.model.device
    return Graphs(network, device, fused=True) if FUSED and network.can_fuse and device.type == "cuda" else None


class Small:
    """Random float32 models of one family in all engines, by role.

    The weights of `b` are the weights of `a` with some noise, so that `b` accepts some drafts of `a`.
    """

    def __init__(
        self,
        family: str,
        device: torch.device,
        vocabulary: int = VOCABULARY,
        noise: float = 0.02,
        changed: Callable[[PreTrainedModel], object] = lambda model: None,
    ) -> None:
        """Make the models. `changed` changes each in place before the engines take its weights."""
        first, second = (_random_model(family, vocabulary) for _ in "ab")
        chance = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in second.parameters():
                weight.add_(torch.randn(weight.shape, generator=chance), alpha=noise)
        for model in (first, second):
            changed(model)
        first, second = first.to(device), second.to(device)
        self.reference = copy.deepcopy(second)  # unchanged by the engines, which may rearrange weights
        self.seq2seq: bool = first.config.is_encoder_decoder
        self.roles = {role: self._engines(model, vocabulary) for role, model in (("a", first), ("b", second))}

    def _engines(self, model: PreTrainedModel, vocabulary: int) -> Engines:
        network = network_of(model)
        graphs = None if self.seq2seq else Graphs(network, model.device)
        fused = fused_graphs(network)
        for each in (graphs, fused):
            if each:
                each.prepare(PREPARED, range(1, MOST + 1))
                poison(model.device)
        return Engines(model, network, graphs, vocabulary, fused)

    def open(self, engine: str) -> TableModels:
        sessions = {role: each.session(engine, SOURCE if self.seq2seq else None) for role, each in self.roles.items()}
        return TableModels(sessions, [0] if self.seq2seq else [5 % self.vocabulary, 1, 2, 0])

    @property
    def vocabulary(self) -> int:
        return self.roles["a"].vocabulary

    @property
    def engines(self) -> tuple[str, ...]:
        return self.roles["a"].names()


def _random_model(family: str, vocabulary: int) -> PreTrainedModel:
    """Return a random model of an example configuration, with weights large enough to make its choices clear."""
    config = small_config(family, vocabulary, POSITIONS)
    config.bos_token_id = config.eos_token_id = None
    model = simulated.random_model(config, "float32", torch.device("cpu"))
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                table = any(word in name for word in ("embed", "wte", "shared"))
                weight.normal_(0.0, 0.6 if table else 0.25, generator=chance)
        for weight in model.parameters():  # norms and biases, which are initialized to ones and zeros
            if weight.ndim == 1:
                weight += 0.25 * torch.randn(weight.shape, generator=chance)
    return model.eval().requires_grad_(False)


def poison(device: torch.device) -> None:
    """Fill the allocator's free memory with NaN on all streams, so that a graph that reads freed memory is detected."""
    if device.type == "cuda":
        cuda: Any = torch.cuda
        for stream in [cuda.current_stream(), *(cuda.Stream() for _ in range(32))]:
            with torch.cuda.stream(stream):
                _ = [torch.full((2048,), math.nan, device=device) for _ in range(256)]
        torch.cuda.synchronize(device)


def say(text: str) -> None:
    """Print a line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


@contextmanager
def heartbeat() -> Iterator[None]:
    """Print a line every few seconds inside the block, to show that a long operation is still running."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            say("...")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def record(method: str, sample: int, repeat: int, models: Any, out: Generation, simulated: str) -> Record:
    """Return a generation as a `Record` for the metrics of the report; `models` are the sessions that decoded it."""
    return Record(
        method=method, sample=str(sample), repeat=repeat, seed=repeat, order=0, tokens=out.tokens, finish=out.finish,
        rounds=[round_record(step) for step in out.rounds] if any(step.drafted for step in out.rounds) else [],
        models={role: usage_record(session.usage) for role, session in models.sessions.items()},
        first_token_seconds=out.first_token_seconds, prefill_seconds=out.prefill_seconds,
        decode_seconds=out.decode_seconds, simulated=simulated,
    )  # fmt: skip


def folder_of(device: torch.device, out: Path | None) -> Path | None:
    """Return the folder for results: `out`, or results/DEVICE for a GPU, or None for a CPU, whose results are trials."""
    if out is not None or device.type != "cuda":
        return out
    name = torch.cuda.get_device_name(device).lower().replace("nvidia", "")
    return Path("results") / re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, [":--"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def keep(
    name: str, title: str, lines: Sequence[str], rows: Sequence[dict[str, Any]], env: dict[str, Any], folder: Path
) -> None:
    """Write a page as Markdown and JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{name}.md", "\n".join([f"# {title}", "", *lines, *_notes(env)]))
    whole = {"name": name, "title": title, "environment": env, "rows": list(rows)}
    write(folder / f"{name}.json", json.dumps(whole, indent=2) + "\n")


def publish(
    name: str,
    title: str,
    lines: Sequence[str],
    rows: Sequence[dict[str, Any]],
    env: dict[str, Any],
    folder: Path | None,
) -> None:
    """Print a page, and write it if there is a folder."""
    if folder is not None:
        keep(name, title, lines, rows, env, folder)
        say(f"written to {folder}/{name}.md and .json")
    print("\n".join([*_notes(env), f"# {title}", "", *lines]), flush=True)


def _notes(env: dict[str, Any]) -> list[str]:
    """Return the machine's fingerprint as a line of JSON."""
    fingerprint = {"gpu": env.get("gpu", {})}
    fingerprint |= {key: env[key] for key in ("cpu", "cores", "threads", "python", "packages", "git")}
    return ["", f"`{json.dumps(fingerprint)}`", ""]
