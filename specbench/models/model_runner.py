"""The interface between sessions and engines: a `ModelRunner` runs forwards, and `TimedModelRunner` counts and times them."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.config.construct import OURS
from specbench.decoding.sampling import Sampler, depths, to_device
from specbench.decoding.session import AuxLayers, Usage
from specbench.errors import PluginError, short_repr


class Feed(NamedTuple):
    """The input of one forward: tokens (n,) after the first `start` positions. Later positions of the cache are dropped.

    If `parents` is None, the tokens are a chain. Otherwise they extend a tree that the cache holds from `start` on. With m
    tokens in the tree so far, `parents` (m + n,) gives the parent of every token, the new ones last: the index of an earlier
    token of the tree, or -1 for the position before the tree. An EAGLE head also reads `states` of its base (n, m H), or
    `features` (n, H) that it computed itself.
    """

    tokens: Tensor
    start: int
    parents: tuple[int, ...] | None = None
    features: Tensor | None = None
    states: Tensor | None = None

    @property
    def first(self) -> int:
        """The cache position of the first token: `start`, or after the tree so far."""
        return self.start if self.parents is None else self.start + len(self.parents) - len(self.tokens)

    def positions(self) -> list[int]:
        """Return the position of each token in its sequence; in a tree, `start` plus the token's depth."""
        if self.parents is None:
            return list(range(self.start, self.start + len(self.tokens)))
        return [self.start + depth for depth in depths(self.parents)[-len(self.tokens) :]]

    def distances(self) -> Tensor:
        """Return the distances (n, cached) from each token back to each cached position; negative if not a predecessor."""
        device, n = self.tokens.device, len(self.tokens)
        if self.parents is None:
            fed = torch.arange(self.start, self.start + n, device=device)
            return fed[:, None] - torch.arange(self.start + n, device=device)
        parents, depth = self.parents, depths(self.parents)
        row = next(
            (i for i, parent in enumerate(parents) if parent != i - 1), len(parents)
        )  # the first `row` tokens of the tree are a chain
        last = list[int]()  # for each new token, the last token of this chain on its path; -1 if none
        branches = list[int]()  # distances from each new token to the tokens after the chain
        for token in range(len(parents) - n, len(parents)):
            line, above = [-1] * (len(parents) - row), token
            while above >= row:
                line[above - row] = depth[token] - depth[above]
                above = parents[above]
            last.append(above)
            branches += line
        positions = to_device(self.positions(), device)[:, None]  # (n, 1)
        places = torch.arange(self.start + row, device=device)
        before = torch.where(places <= self.start + to_device(last, device)[:, None], positions - places, -1)
        return torch.cat([before, to_device(branches, device).view(n, -1)], -1)


class Output(NamedTuple):
    """The result of one forward.

    `logits` (rows, V) are the last rows, in float32 or better. `states` (n, H) are what the LM head reads at all tokens, or
    None. `encoded` is the number of tokens that an encoder read in this forward. `tapped` (n, m H) are the inputs of the
    m layers in the model runner's `aux_layers`, copied, or None.
    """

    logits: Tensor
    states: Tensor | None
    encoded: int = 0
    tapped: Tensor | None = None


class DraftSettings(NamedTuple):
    """The settings that a draft graph is captured for: k tokens over a vocabulary of V, and the sampler's settings."""

    k: int
    vocabulary: int
    temperature: float
    top_k: int
    top_p: float
    feeds: bool  # whether it starts with a forward of the sequence's last token


class DraftInputs(NamedTuple):
    """The inputs of a draft: the last forward's logits (1, V), or the last token (1,) if it has not been fed.

    `states` (1, H) are the hidden states of the previous position, for drafts whose forwards read them.
    """

    logits: Tensor | None = None
    states: Tensor | None = None
    token: Tensor | None = None


class DraftOutputs(NamedTuple):
    """The outputs of a draft: k tokens with their distributions, and the outputs of its m forwards."""

    tokens: Tensor  # (k,)
    probs: Tensor  # (k, V)
    logits: Tensor  # (m, V), m = k if the draft `feeds`, else k - 1
    states: Tensor  # (m, H)


class DraftGraph(Protocol):
    """A CUDA graph that makes a whole draft in a single launch."""

    def replay(self, start: DraftInputs, uniforms: Tensor | None, first: int) -> DraftOutputs:
        """Draft, feeding positions from `first` on. The outputs are valid until the next replay."""


class ModelRunner(ABC):
    """An engine's forwards over one sequence, with the cache that they fill."""

    name: str  # of the model, for messages
    device: torch.device
    branches: bool = False  # whether it can read trees
    is_partial: bool = False  # whether its logits leave tokens out, which then have -inf
    keeps_states: bool = False  # whether its outputs must have states; set by its session
    aux_layers: AuxLayers = ()  # layers whose inputs its outputs must have; set by its session

    @abstractmethod
    def feed(self, feed: Feed, rows: int) -> Output:
        """Run one forward and return the logits of its last rows."""

    @abstractmethod
    def logits_of(self, states: Tensor) -> Tensor:
        """Return the LM head's logits for states (n, H)."""

    def require_aux_layers(self, aux_layers: AuxLayers) -> None:
        """Raise ValueError, with the reason, if its outputs cannot have the inputs of these layers."""
        raise ValueError(f"{self.name}: its engine cannot return the inputs of layers; help: --engine eager, or lean")

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Move the tokens of a path from the root of the tree that begins at `start` to the positions from `start` on."""
        raise PluginError(f"{self.name}: a model runner with `branches` must define keep()")

    def draft_graph(self, drafting: DraftSettings, length: int, start: DraftInputs) -> DraftGraph | None:
        """Return the graph of such a draft within `length` positions; None if there is none."""
        return None

    def finish(self) -> None:
        """Finish a sequence after its last forward. Does nothing by default."""
        return


def columns(tapped: Tensor, kept: AuxLayers, aux_layers: AuxLayers) -> Tensor:
    """Return the inputs of the layers `aux_layers` (n, m H), in this order, of those of the layers `kept`."""
    if aux_layers == kept:
        return tapped
    parts = tapped.chunk(len(kept), -1)  # (n, H) each
    return torch.cat([parts[kept.index(layer)] for layer in aux_layers], -1)


def require_layers(aux_layers: AuxLayers, config: Any) -> None:
    """Raise ValueError if a model of this configuration has no layer of one of these numbers."""
    count = config.get_text_config(decoder=True).num_hidden_layers
    if beyond := [layer for layer in aux_layers if layer not in range(count)]:  # neither is a number between two layers
        raise ValueError(f"{config.name_or_path} has {count} layers, so no layer {beyond[0]} (numbers begin at 0)")


PRECISIONS = (torch.float32, torch.float64)  # of logits


class CheckedModelRunner(ModelRunner):
    """Checks the results of the model runner of a plugin's engine. Its logits must be (rows, vocabulary)."""

    def __init__(self, model_runner: ModelRunner, vocabulary: int) -> None:
        self._model_runner, self._vocabulary = model_runner, vocabulary
        self.name, self.device, self.branches = model_runner.name, model_runner.device, model_runner.branches

    def feed(self, feed: Feed, rows: int) -> Output:
        self._model_runner.keeps_states, self._model_runner.aux_layers = self.keeps_states, self.aux_layers
        out: object = self._model_runner.feed(feed, rows)
        if not isinstance(out, Output):
            raise PluginError(f"{self.name}: feed() returned {short_repr(out)}, which is not an Output")
        logits: object = out.logits
        if not isinstance(logits, Tensor) or logits.dtype not in PRECISIONS:
            given = f"of {logits.dtype}" if isinstance(logits, Tensor) else short_repr(logits)
            raise PluginError(f"{self.name}: feed() returned logits {given}; needed: a tensor of float32 or float64")
        if tuple(logits.shape) != (rows, self._vocabulary):
            raise PluginError(
                f"{self.name}: feed() returned logits of shape {tuple(logits.shape)}, and ({rows}, {self._vocabulary})"
                " were expected"
            )
        if self.keeps_states and out.states is None:
            raise PluginError(
                f"{self.name}: feed() returned no states, which heads read; help: --engine eager, or lean"
            )
        if self.aux_layers and out.tapped is None:
            raise PluginError(
                f"{self.name}: feed() returned no inputs of layers {list(self.aux_layers)}, which heads read; help: --engine"
                " eager, or lean"
            )
        return out

    def logits_of(self, states: Tensor) -> Tensor:
        return self._model_runner.logits_of(states)

    def keep(self, start: int, path: Sequence[int]) -> None:
        self._model_runner.keep(start, path)

    def draft_graph(self, drafting: DraftSettings, length: int, start: DraftInputs) -> DraftGraph | None:
        return self._model_runner.draft_graph(drafting, length, start)

    def finish(self) -> None:
        self._model_runner.finish()


def checked_model_runner(model_runner: ModelRunner, vocabulary: int) -> ModelRunner:
    """Return the model_runner, wrapped in checks if it is a plugin's. Raises PluginError if it is incomplete."""
    given: object = model_runner
    if not isinstance(given, ModelRunner) or not isinstance(getattr(given, "device", None), torch.device):
        raise PluginError(
            f"model_runner() returned {short_repr(given)}; needed: a ModelRunner whose device is a torch.device"
        )
    if not hasattr(given, "name"):
        raise PluginError(f"model_runner() returned {short_repr(given)}, which has no name")
    return (
        model_runner if type(model_runner).__module__.startswith(OURS) else CheckedModelRunner(model_runner, vocabulary)
    )


Sizes = list[tuple[int, int]]  # per forward: tokens fed, and positions cached before it


class UnreadDraft(NamedTuple):
    """A draft of k tokens that is still on the device, and the outputs of its m forwards, in parts."""

    tokens: Tensor  # (k,)
    probs: Tensor  # (k, V)
    outputs: list[Output]


class TimedModelRunner:
    """A model runner whose forwards are counted, timed and checked.

    On a CUDA device forwards are timed by events, and nothing waits for the device until `finish`.
    """

    def __init__(self, model_runner: ModelRunner) -> None:
        self.model_runner, self.usage = model_runner, Usage()
        self._is_cuda = model_runner.device.type == "cuda"
        self._finite: list[Tensor] = []  # flags () of forwards that have not been checked
        self._events: list[tuple[Sizes, Any, Any]] = []  # forwards, and the CUDA events around them

    def feed(self, feed: Feed, rows: int) -> Output:
        """Run one forward."""
        sizes = [(feed.tokens.shape[0], feed.first)]  # faster than len()
        if self._is_cuda:
            with self._clock(sizes):
                out = self.model_runner.feed(feed, rows)
            self.require_finite(out.logits)
        else:  # no context manager: its overhead is visible with small models
            begin = time.perf_counter()
            out = self.model_runner.feed(feed, rows)
            self.require_finite(out.logits)
            self._record(sizes, time.perf_counter() - begin)
        if out.encoded:
            self.usage.encodes += 1
            self.usage.prefill_fed += out.encoded
        return out

    def draft(self, start: DraftInputs, k: int, sampler: Sampler, cached: int) -> UnreadDraft:
        """Draw k tokens, the first from start.logits (1, V), and feed all but the last after `cached` positions.

        No token is read, so the host does not wait.
        """
        assert start.logits is not None
        logits, states = start.logits, start.states
        uniforms = sampler.uniforms(k, self.model_runner.device)
        settings = DraftSettings(k, logits.shape[-1], sampler.temperature, sampler.top_k, sampler.top_p, feeds=False)
        is_plain = k > 1 and type(sampler) is Sampler and not self.model_runner.aux_layers
        graph = self.model_runner.draft_graph(settings, cached + k - 1, start) if is_plain else None
        if graph is not None:
            return self._replay(graph, start, uniforms, cached, k - 1)
        drawn: list[tuple[Tensor, Tensor]] = []
        outputs: list[Output] = []
        for i in range(k):
            if drawn:
                token = drawn[-1][0].clamp_min(0)  # INVALID, for which `read_tokens` raises, has no embedding
                outputs.append(self.feed(Feed(token, cached + i - 1, features=states), 1))
                logits, states = outputs[-1].logits, None if states is None else outputs[-1].states
            drawn.append(sampler.draw(logits, None if uniforms is None else uniforms[i : i + 1]))  # (1,), (1, V)
        tokens, probs = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return UnreadDraft(tokens, probs, outputs)

    def draw_next(self, token: Tensor, cached: int, vocabulary: int, sampler: Sampler) -> UnreadDraft | None:
        """Feed a token (1,) and draw the next one in one graph. Returns None if no such graph was captured."""
        if type(sampler) is not Sampler or self.model_runner.aux_layers:
            return None
        drafting = DraftSettings(1, vocabulary, sampler.temperature, sampler.top_k, sampler.top_p, feeds=True)
        start = DraftInputs(token=token)
        graph = self.model_runner.draft_graph(drafting, cached + 1, start)
        if graph is None:
            return None
        return self._replay(graph, start, sampler.uniforms(1, self.model_runner.device), cached, 1)

    def finish(self) -> None:
        """Record timings still pending on the device. Raises FloatingPointError if any logits were not finite."""
        if self._events:
            torch.cuda.synchronize(self.model_runner.device)
        for sizes, begin, end in self._events:
            self._record(sizes, begin.elapsed_time(end) / 1e3)
        if self._finite and not bool(torch.stack(self._finite).all()):
            raise FloatingPointError(f"{self.model_runner.name}: NaN or infinite logits")
        self._events, self._finite = [], []
        self.model_runner.finish()

    def _replay(
        self, graph: DraftGraph, start: DraftInputs, uniforms: Tensor | None, cached: int, forwards: int
    ) -> UnreadDraft:
        """Replay a draft graph and record its forwards."""
        with torch.inference_mode(), self._clock([(1, cached + i) for i in range(forwards)]):
            out = DraftOutputs(*(tensor.clone() for tensor in graph.replay(start, uniforms, cached)))
        self.require_finite(out.logits)
        return UnreadDraft(out.tokens, out.probs, [Output(out.logits, out.states)])

    @contextmanager
    def _clock(self, sizes: Sizes) -> Iterator[None]:
        """Record the time of the body, divided equally among these forwards."""
        if not self._is_cuda:
            start = time.perf_counter()
            try:
                yield
            finally:
                self._record(sizes, time.perf_counter() - start)
            return
        cuda: Any = torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((sizes, begin, end))

    def require_finite(self, logits: Tensor) -> None:
        """Raise FloatingPointError for logits (n, V) that are not finite; on a CUDA device, `finish` raises it later."""
        whole = logits.amax(-1).sum() if self.model_runner.is_partial else logits.sum()  # the maximum of a NaN is a NaN
        if self._is_cuda:
            self._finite.append(whole.isfinite())
        elif not math.isfinite(whole.item()):
            raise FloatingPointError(f"{self.model_runner.name}: NaN or infinite logits")

    def _record(self, sizes: Sizes, seconds: float) -> None:
        """Record forwards that took `seconds` together."""
        for fed, cached in sizes:
            if cached:
                self.usage.decoding(fed, seconds / len(sizes), cached)
            else:
                self.usage.prefill(fed, seconds / len(sizes))
