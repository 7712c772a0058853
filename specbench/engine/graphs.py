"""Floor 0: lean forwards, and whole drafts, as CUDA graphs: one launch each, at any position.

A graph's shapes are fixed, so its positions are a tensor on the device, and attention reaches over a fixed span of the cache
with what is not there hidden. There is a graph for each number of tokens and span. All are captured before anything is timed.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.engine.cache import STEP, Cache, attended, banned
from specbench.engine.network import Network
from specbench.engine.session import LeanSession
from specbench.sampling import Sampler
from specbench.session import Drafted, Drafting, Start

WARM_UPS = 2  # runs before a capture, as CUDA asks for
Out = TypeVar("Out")


class Stepping(Protocol):
    """What draft graphs need of a model or head."""

    def new_cache(self, source: Tensor | None) -> Cache: ...

    def fused(self) -> AbstractContextManager[None]: ...

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed a token (1,), after a forward that gave states (1, H): logits (1, rows of the LM head) and states (1, H)."""

    def tables(self) -> tuple[Tensor, ...]: ...


class Place(Cache):
    """A cache as a graph sees it: `n` tokens at positions that only the device knows, within the first `span` ones.

    It writes and reads what another cache holds.
    """

    def __init__(self, held: Tensor, n: int, span: int) -> None:
        both = held.shape[2]
        self.length, self.capacity, self._heads = 0, span, both // 2
        self._held, self._span = held, torch.arange(span, device=held.device)
        self.positions = torch.arange(n, device=held.device)  # overwritten before every replay
        read = held[:, None, :span].transpose(2, 3)  # (layers, 1, 2 heads, span, d)
        self._keys, self._values = read[:, :, : self._heads].unbind(0), read[:, :, self._heads :].unbind(0)

    def begin(self, n: int = 0) -> None:
        self._masks = {}

    def end(self) -> None:
        pass

    def rows(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.positions)

    def distances(self) -> Tensor:
        return self.positions[:, None] - self._span

    def mask(self, window: int | None = None) -> Tensor | None:
        if window not in self._masks:
            self._masks[window] = banned(self.distances(), window, self._held.dtype)
        return self._masks[window]

    def attend(self, layer: int, q: Tensor, kv: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        self._held[layer].index_copy_(0, self.positions, kv)
        return attended(q, self._keys[layer], self._values[layer], mask, scale)


class Capture:
    """How and where the graphs of one model are captured: on a stream and in a memory pool of its own, fused or not.

    cuBLAS has a workspace for each stream, and graphs of one pool share memory, so the graphs of two models, which may run at
    the same time, must share neither. On a CPU nothing is captured, and a replay runs the same operations again.
    """

    def __init__(self, device: torch.device, context: Callable[[], AbstractContextManager[None]]) -> None:
        cuda: Any = torch.cuda
        self._context = context
        self._is_cuda = device.type == "cuda"
        self._stream: Any = cuda.Stream(device) if self._is_cuda else None
        self._pool = cuda.graph_pool_handle() if self._is_cuda else None

    def __call__(self, run: Callable[[], Out]) -> tuple[Callable[[], Out], Out]:
        """Record `run`: a function that replays it and returns its outputs, which stay in one place; and these outputs."""

        def inside() -> Out:
            with self._context():
                return run()

        if not self._is_cuda:
            return inside, inside()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                inside()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = inside()

        def replay() -> Out:
            graph.replay()
            return out

        return replay, out


class Graph:
    """One forward of n tokens within a span."""

    def __init__(self, network: Network, held: Tensor, n: int, span: int, capture: Capture) -> None:
        self._network, self._place = network, Place(held, n, span)
        self._tokens = torch.zeros(n, dtype=torch.long, device=held.device)
        self._steps = torch.arange(n, device=held.device)
        self._replay, _ = capture(self._run)
        self._kept = network.tables()  # whose addresses the graph holds

    def replay(self, tokens: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Logits (n, rows of the head) and states (n, H) of `tokens` (n,) at positions from `first` on.

        They last until the next replay.
        """
        self._tokens.copy_(tokens)
        torch.add(self._steps, first, out=self._place.positions)
        return self._replay()

    def _run(self) -> tuple[Tensor, Tensor]:
        self._place.begin()
        hidden = self._network.forward(self._tokens, self._place)
        return self._network.logits(hidden), hidden


class DraftGraph:
    """k draws and the k - 1 forwards between them: a draft for which the host neither waits nor launches a kernel."""

    def __init__(
        self, model: Stepping, held: Tensor, drafting: Drafting, span: int, like: Start, capture: Capture
    ) -> None:
        self._model, self._drafting, self._place = model, drafting, Place(held, 1, span)
        self._sampler = Sampler(drafting.temperature, drafting.top_k, drafting.top_p)
        self._start = Start(like.logits.clone(), None if like.states is None else like.states.clone())
        self._uniforms = torch.full((drafting.k,), 0.5, dtype=torch.float64, device=held.device)
        self._replay, _ = capture(self._run)
        self._kept = model.tables()

    def replay(self, start: Start, uniforms: Tensor | None, first: int) -> Drafted:
        """Draft from the last forward's output, with uniforms (k,), feeding positions from `first` on.

        What is returned lasts until the next replay.
        """
        self._start.logits.copy_(start.logits)
        if self._start.states is not None and start.states is not None:
            self._start.states.copy_(start.states)
        if uniforms is not None:
            self._uniforms.copy_(uniforms)
        self._place.positions.fill_(first)
        return self._replay()

    def _run(self) -> Drafted:
        logits, states = self._start
        drawn: list[tuple[Tensor, Tensor]] = []
        read: list[tuple[Tensor, Tensor]] = []
        for i in range(self._drafting.k):
            if i:
                self._place.begin()
                logits, states = self._model.step(
                    drawn[-1][0].clamp_min(0), self._place, states
                )  # NO_LAW has no embedding
                logits = logits[:, : self._drafting.vocabulary]
                read.append((logits, states))
                self._place.positions.add_(1)
            drawn.append(self._sampler.draw(logits, self._uniforms[i : i + 1]))
        return Drafted(*(torch.cat([each[j] for each in pairs]) for pairs in (drawn, read) for j in (0, 1)))


class Graphs:
    """A model's cache and its graphs, for one session at a time: opening the next one takes it from the last.

    The cache holds zeros or finite values whenever a session opens: what a graph's mask hides is multiplied by 0, which
    leaves nothing but of a NaN.
    """

    def __init__(self, network: Stepping, device: torch.device, fused: bool = False) -> None:
        self.network = network
        self.cache: Cache = network.new_cache(None)
        self._capture = Capture(device, network.fused if fused else nullcontext)
        self._owner: Callable[[], object] = lambda: None
        self._is_clean = True
        self._held: Tensor | None = None  # what the graphs were captured on
        self._most = 0
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._drafts: dict[tuple[Drafting, int], DraftGraph] = {}
        self._wanted: dict[Drafting, Start] = {}  # what sessions have drafted, with tensors of its shapes

    def open(self, session: object) -> None:
        """Give the cache to a session. What a session that was never settled may have left in it is cleared."""
        if not self._is_clean:
            with torch.inference_mode():
                self.cache.held.zero_()
        self._owner, self._is_clean = weakref.ref(session), False
        self.cache.length = 0

    def is_open_for(self, session: object) -> bool:
        return self._owner() is session

    def settled(self) -> None:
        """What is in the cache is known to be finite."""
        self._is_clean = True

    def prepare(self, length: int, most: int = 0) -> int:
        """Capture what is missing for sequences of up to `length`, and return how many graphs that was.

        Graphs are of forwards of 1 to `most` tokens, now or in an earlier call, and of the drafts that sessions have wanted.
        A longer cache loses all graphs of the shorter one, and the session that is open. Longest spans first, since tables by
        position are made for the longest sequence.
        """
        self._most = max(self._most, most)
        before = len(self._graphs) + len(self._drafts)
        with torch.inference_mode():
            if length > self.cache.capacity or self._held is not self.cache.held:
                self._graphs, self._drafts, self._owner, before = {}, {}, lambda: None, 0
                self.cache = self.network.new_cache(None)
                self.cache.begin(length)
                self._held, self._is_clean = self.cache.held, True
                self.cache.held.zero_()
            held = self.cache.held
            for span in reversed(self._spans()):
                for n in range(1, self._most + 1):
                    if (n, span) not in self._graphs:
                        assert isinstance(self.network, Network)
                        self._graphs[n, span] = Graph(self.network, held, n, span, self._capture)
                for drafting, like in self._wanted.items():
                    if (drafting, span) not in self._drafts and drafting.k <= span:
                        graph = DraftGraph(self.network, held, drafting, span, like, self._capture)
                        self._drafts[drafting, span] = graph
        return len(self._graphs) + len(self._drafts) - before

    def forget_drafts(self) -> None:
        """Drop the draft graphs, which belong to one setting of the sampler."""
        self._drafts, self._wanted = {}, {}

    def find(self, n: int, length: int) -> Graph | None:
        """The graph of n tokens that reaches over `length` positions.

        None if none was captured, or if the cache has since grown, and with that moved, under a longer sequence.
        """
        if self._held is not self.cache.held:
            return None
        return next(
            (self._graphs[n, span] for span in self._spans() if span >= length and (n, span) in self._graphs), None
        )

    def find_draft(self, drafting: Drafting, length: int, like: Start) -> DraftGraph | None:
        """The graph of such a draft that reaches over `length` positions; None if there is none, which `prepare` mends."""
        self._wanted.setdefault(drafting, like)
        if self._held is not self.cache.held:
            return None
        spans = (span for span in self._spans() if span >= length and (drafting, span) in self._drafts)
        return next((self._drafts[drafting, span] for span in spans), None)

    def _spans(self) -> list[int]:
        spans = [STEP]
        while spans[-1] < self.cache.capacity:
            spans.append(2 * spans[-1])
        return spans


class GraphSession(LeanSession):
    """A lean session whose short forwards are graphs; a prompt, and what no graph was captured for, runs as it stands."""

    def __init__(self, graphs: Graphs, vocabulary: int) -> None:
        assert isinstance(graphs.network, Network)
        super().__init__(graphs.network, vocabulary)
        self._graphs = graphs
        self._cache = graphs.cache
        graphs.open(self)

    def find_draft(self, drafting: Drafting, length: int, like: Start) -> DraftGraph | None:
        return self._graphs.find_draft(drafting, length, like)

    def settle(self) -> None:
        super().settle()
        if self._graphs.is_open_for(self):
            self._graphs.settled()

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        assert self._graphs.is_open_for(self), "another session has taken these graphs over"
        cache = self._graphs.cache
        n, first = len(tokens), cache.length
        graph = self._graphs.find(n, first + n) if first else None
        if graph is None:
            return super()._forward(tokens, keep)
        with torch.inference_mode():
            logits, states = graph.replay(tokens, first)
            out = logits[-keep:, : self._vocabulary].clone(), states.clone() if self.keeps_hidden else None
        cache.length += n
        return out
