"""A model's CUDA graphs: forwards, and whole drafts, in a single launch each, at any position.

A graph's shapes are fixed, so its positions are a tensor on the device, and attention covers a fixed span of the cache
with unused positions masked. There is a graph for each number of tokens and span. All are captured before timing
starts.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampler, to_device
from specbench.decoding.session import AuxLayers
from specbench.models.lean.cache import STEP, Cache, FlexGraphCache, GraphCache, TreeGraphCache
from specbench.models.lean.network import Network
from specbench.models.model_runner import DraftInputs, DraftOutputs, DraftSettings, Feed

WARM_UPS = 2  # runs before a capture, which CUDA requires
Out = TypeVar("Out")


class Stepping(Protocol):
    """The part of a model or head that draft graphs need."""

    def new_cache(self, source: Tensor | None) -> Cache: ...

    def fused(self) -> AbstractContextManager[None]: ...

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed a token (1,) after a forward with states (1, H).

        Returns logits (1, rows of the LM head) and states (1, H).
        """

    def tables(self) -> tuple[Tensor, ...]: ...


class Capture:
    """Captures the graphs of one model on its own stream and memory pool, fused or not.

    cuBLAS has one workspace per stream, and graphs of a pool share memory, so the graphs of two models, which may run
    concurrently, must share neither. On a CPU nothing is captured, and a replay runs the same operations again.
    """

    def __init__(self, device: torch.device, context: Callable[[], AbstractContextManager[None]]) -> None:
        cuda: Any = torch.cuda
        self._context = context
        self._is_cuda = device.type == "cuda"
        self._stream: Any = cuda.Stream(device) if self._is_cuda else None
        self._pool = cuda.graph_pool_handle() if self._is_cuda else None

    def __call__(
        self, run: Callable[[], Out], reset: Callable[[], object] = lambda: None
    ) -> tuple[Callable[[], Out], Out]:
        """Record `run`.

        Returns a function that replays it and returns its outputs, which keep their addresses, and the outputs.

        `reset` undoes the effects of a run, before each warm-up and before the recording.
        """

        def inside() -> Out:
            with self._context():
                return run()

        if not self._is_cuda:
            return inside, inside()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                reset()
                inside()
            reset()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = inside()

        def replay() -> Out:
            graph.replay()
            return out

        return replay, out


class CapturedForward:
    """One forward of n tokens at variable positions."""

    def __init__(self, network: Network, cache: GraphCache, capture: Capture) -> None:
        self._network, self._cache = network, cache
        self._tokens = torch.zeros_like(cache.positions)  # (n,)
        self._steps = cache.positions.clone()  # 0 .. n - 1
        self._replay, _ = capture(self._run)
        self._tables = network.tables()  # the graph refers to their addresses

    def replay(self, feed: Feed) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return logits (n, rows of the LM head), states (n, H) and tapped inputs (n, m H), valid until the next replay."""
        self._tokens.copy_(feed.tokens)
        torch.add(self._steps, feed.start, out=self._cache.positions)
        if isinstance(self._cache, TreeGraphCache):
            self._cache.depths.copy_(to_device(feed.positions(), feed.tokens.device))
            self._cache.within.copy_(feed.distances()[:, feed.start :])
        return self._replay()

    def _run(self) -> tuple[Tensor, Tensor, Tensor | None]:
        self._cache.begin()
        hidden = self._network.forward(self._tokens, self._cache)
        return self._network.logits(hidden), hidden, self._cache.tapped()


class CapturedDraft:
    """A draft of k tokens, all draws and forwards, during which the host neither waits nor launches a kernel.

    With `feeds` the draft begins with a forward of the last token, otherwise with that forward's logits.
    """

    def __init__(
        self, model: Stepping, cache: GraphCache, drafting: DraftSettings, like: DraftInputs, capture: Capture
    ) -> None:
        self._model, self._drafting, self._cache = model, drafting, cache
        self._sampler = Sampler(drafting.temperature, drafting.top_k, drafting.top_p)
        self._start = DraftInputs(*(None if tensor is None else tensor.clone() for tensor in like))
        self._uniforms = torch.full((drafting.k,), 0.5, dtype=torch.float64, device=cache.positions.device)
        self._replay, _ = capture(self._run, self._cache.positions.zero_)
        self._tables = model.tables()

    def replay(self, start: DraftInputs, uniforms: Tensor | None, first: int) -> DraftOutputs:
        """Draft from `start` with uniforms (k,), feeding positions from `first` on.

        The result is valid until the next replay.
        """
        for buffer, value in zip(self._start, start, strict=True):
            if buffer is not None and value is not None:
                buffer.copy_(value)
        if uniforms is not None:
            self._uniforms.copy_(uniforms)
        self._cache.positions.fill_(first)
        return self._replay()

    def _run(self) -> DraftOutputs:
        logits, states, token = self._start
        drawn: list[tuple[Tensor, Tensor]] = []
        read: list[tuple[Tensor, Tensor]] = []
        for i in range(self._drafting.k):
            if token is not None:
                if read:
                    self._cache.positions.add_(1)
                self._cache.begin()
                logits, states = self._model.step(token.clamp_min(0), self._cache, states)  # INVALID has no embedding
                logits = logits[:, : self._drafting.vocabulary]
                read.append((logits, states))
            assert logits is not None
            drawn.append(self._sampler.draw(logits, self._uniforms[i : i + 1]))
            token = drawn[-1][0]
        return DraftOutputs(*(torch.cat([pair[j] for pair in pairs]) for pairs in (drawn, read) for j in (0, 1)))


class Graphs:
    """A model's cache and graphs, used by one session at a time: opening a session takes them from the previous one.

    The cache holds zeros or finite values when a session opens, since a mask multiplies hidden values by 0, which does
    not remove a NaN.
    """

    def __init__(self, network: Stepping, device: torch.device, fused: bool = False) -> None:
        self.network, self.device, self._is_fused = network, device, fused
        self.cache: Cache = network.new_cache(None)
        self.aux_layers: AuxLayers = ()  # layers whose inputs the graphs of forwards return
        self._capture = Capture(device, network.fused if fused else nullcontext)
        self._owner: Callable[[], object] = lambda: None
        self._is_clean = True
        self._storage: Tensor | None = None  # the tensor that the graphs were captured on
        self._blocks: set[int] = set()
        self._trees: set[int] = set()  # requested sizes of trees
        self._graphs: dict[tuple[int, int, bool], CapturedForward] = {}  # by tokens, span, and whether they are a tree
        self._drafts: dict[tuple[DraftSettings, int], CapturedDraft] = {}
        self._requested: dict[DraftSettings, DraftInputs] = {}  # requested drafts, with inputs of their shapes

    def open(self, model_runner: object) -> None:
        """Give the cache to a model_runner. Clears it if the previous model_runner never finished."""
        if not self._is_clean:
            with torch.inference_mode():
                self.cache.storage.zero_()
        self._owner, self._is_clean = weakref.ref(model_runner), False

    def is_open_for(self, model_runner: object) -> bool:
        """Return whether the model runner owns the cache."""
        return self._owner() is model_runner

    def mark_finite(self) -> None:
        """Mark the cache as finite."""
        self._is_clean = True

    def prepare(self, length: int, blocks: Iterable[int] = ()) -> int:
        """Capture missing graphs for sequences of up to `length`. Returns how many were captured.

        Graphs cover forwards of the numbers of tokens in `blocks`, of this and earlier calls, and the drafts and trees that
        sessions have requested. Capturing writes to the cache, so an open session loses it. A longer cache drops all graphs
        of the shorter one. The longest spans come first, since tables by position are made for the longest sequence.
        """
        self._blocks |= set(blocks)
        before = len(self._graphs) + len(self._drafts)
        with torch.inference_mode():
            if length > self.cache.capacity or self._storage is not self.cache.storage:
                self._graphs, self._drafts, self._owner, before = {}, {}, lambda: None, 0
                self.cache = self.network.new_cache(None)
                self.cache.reserve(length)
                self._storage = self.cache.storage
                self._storage.zero_()
            for span in reversed(self._spans()):
                for n, is_tree in [
                    *((n, False) for n in sorted(self._blocks)),
                    *((n, True) for n in sorted(self._trees)),
                ]:
                    if (n, span, is_tree) not in self._graphs:
                        assert isinstance(self.network, Network)
                        view = TreeGraphCache(self.cache.storage, n, span) if is_tree else self._view(n, span)
                        view.aux_layers = self.aux_layers
                        self._graphs[n, span, is_tree] = CapturedForward(self.network, view, self._capture)
                for drafting, like in self._requested.items():
                    if (drafting, span) not in self._drafts and drafting.k <= span:
                        graph = CapturedDraft(self.network, self._view(1, span), drafting, like, self._capture)
                        self._drafts[drafting, span] = graph
            captured = len(self._graphs) + len(self._drafts) - before
            if captured:  # warm-ups wrote to the cache
                self.cache.storage.zero_()
                self._owner, self._is_clean = lambda: None, True
        return captured

    def require_aux_layers(self, aux_layers: AuxLayers) -> None:
        """Make the graphs return the inputs of these layers. Drops those that do not; `prepare` captures them again."""
        if not {*aux_layers} <= {*self.aux_layers}:
            self.aux_layers, self._graphs = tuple(sorted({*self.aux_layers, *aux_layers})), {}

    def forget_drafts(self) -> None:
        """Drop the draft graphs, which belong to one setting of the sampler."""
        self._drafts, self._requested = {}, {}

    def find(self, n: int, length: int, is_tree: bool = False) -> CapturedForward | None:
        """Return the graph of n tokens that covers `length` positions.

        None if none was captured, or if a longer sequence has since made the cache grow and move. The next `prepare` captures
        a tree of a size in `blocks`.
        """
        if is_tree and n in self._blocks:
            self._trees.add(n)
        if self._storage is not self.cache.storage:
            return None
        keys = ((n, span, is_tree) for span in self._spans() if span >= length)
        return next((self._graphs[key] for key in keys if key in self._graphs), None)

    def find_draft(self, drafting: DraftSettings, length: int, like: DraftInputs) -> CapturedDraft | None:
        """Return the graph for `drafting` that covers `length` positions, or None if it has not been captured.

        The next `prepare` then captures it.
        """
        self._requested.setdefault(drafting, like)
        if self._storage is not self.cache.storage:
            return None
        spans = (span for span in self._spans() if span >= length and (drafting, span) in self._drafts)
        return next((self._drafts[drafting, span] for span in spans), None)

    def _view(self, n: int, span: int) -> GraphCache:
        storage = self.cache.storage
        if (
            self._is_fused
            and isinstance(self.network, Network)
            and FlexGraphCache.fits(n, self.network.query_heads, storage)
        ):
            return FlexGraphCache(storage, n, span)
        return GraphCache(storage, n, span)

    def _spans(self) -> list[int]:
        """Return the spans of graphs: the whole cache if fused, else powers of two, since a graph reads its whole span."""
        if self._is_fused:
            return [self.cache.capacity]
        spans = [STEP]
        while spans[-1] < self.cache.capacity:
            spans.append(2 * spans[-1])
        return spans
