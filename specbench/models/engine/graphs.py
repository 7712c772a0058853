"""Floor 0: a model's CUDA graphs, and sessions that run on them.

A graph's shapes are fixed, so its positions are a tensor on the device, and attention reaches over a fixed span of the cache
with what is not there hidden. There is a graph for each number of tokens and span. All are captured before anything is timed.
"""

import weakref
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from specbench.models.draft_graph import Drafting, Start
from specbench.models.engine.cache import STEP, Cache
from specbench.models.engine.captured import Capture, DraftGraph, Graph, Stepping
from specbench.models.engine.network import Network
from specbench.models.engine.place import Place, SplitPlace
from specbench.models.engine.session import LeanSession


class Graphs:
    """A model's cache and its graphs, for one session at a time: opening the next one takes it from the last.

    The cache holds zeros or finite values whenever a session opens: what a graph's mask hides is multiplied by 0, which
    leaves nothing but of a NaN.
    """

    def __init__(self, network: Stepping, device: torch.device, fused: bool = False) -> None:
        self.network, self._is_fused = network, fused
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
        Capturing writes to the cache, so a session that is open loses it. A longer cache loses all graphs of the shorter one.
        Longest spans come first, since tables by position are made for the longest sequence.
        """
        self._most = max(self._most, most)
        before = len(self._graphs) + len(self._drafts)
        with torch.inference_mode():
            if length > self.cache.capacity or self._held is not self.cache.held:
                self._graphs, self._drafts, self._owner, before = {}, {}, lambda: None, 0
                self.cache = self.network.new_cache(None)
                self.cache.begin(length)
                self._held = self.cache.held
                self._held.zero_()
            for span in reversed(self._spans()):
                for n in range(1, self._most + 1):
                    if (n, span) not in self._graphs:
                        assert isinstance(self.network, Network)
                        self._graphs[n, span] = Graph(self.network, self._place(n, span), self._capture)
                for drafting, like in self._wanted.items():
                    if (drafting, span) not in self._drafts and drafting.k <= span:
                        graph = DraftGraph(self.network, self._place(1, span), drafting, like, self._capture)
                        self._drafts[drafting, span] = graph
            captured = len(self._graphs) + len(self._drafts) - before
            if captured:  # warm-ups wrote to the cache
                self.cache.held.zero_()
                self._owner, self._is_clean = lambda: None, True
        return captured

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

    def _place(self, n: int, span: int) -> Place:
        held = self.cache.held
        if self._is_fused and isinstance(self.network, Network) and SplitPlace.fits(n, self.network.query_heads, held):
            return SplitPlace(held, n, span)
        return Place(held, n, span)

    def _spans(self) -> list[int]:
        """How far graphs may reach: fused, the whole cache; else powers of two, since a graph reads all of its span."""
        if self._is_fused:
            return [self.cache.capacity]
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
        assert self._graphs.is_open_for(self), "another session has taken these graphs over"
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
