"""A model's CUDA graphs, and sessions that run on them.

A graph's shapes are fixed, so its positions are a tensor on the device, and attention covers a fixed span of the cache
with unused positions masked. There is a graph for each number of tokens and span. All are captured before timing
starts.
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
    """A model's cache and graphs, used by one session at a time: opening a session takes them from the previous one.

    The cache holds zeros or finite values when a session opens, since a mask multiplies hidden values by 0, which does
    not remove a NaN.
    """

    def __init__(self, network: Stepping, device: torch.device, fused: bool = False) -> None:
        self.network, self.device, self._is_fused = network, device, fused
        self.cache: Cache = network.new_cache(None)
        self._capture = Capture(device, network.fused if fused else nullcontext)
        self._owner: Callable[[], object] = lambda: None
        self._is_clean = True
        self._held: Tensor | None = None  # the tensor that the graphs were captured on
        self._max_block = 0
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._drafts: dict[tuple[Drafting, int], DraftGraph] = {}
        self._wanted: dict[Drafting, Start] = {}  # requested drafts, with inputs of their shapes

    def open(self, session: object) -> None:
        """Give the cache to a session. Clears it if the previous session was never settled."""
        if not self._is_clean:
            with torch.inference_mode():
                self.cache.held.zero_()
        self._owner, self._is_clean = weakref.ref(session), False
        self.cache.length = 0

    def is_open_for(self, session: object) -> bool:
        """Return whether the session owns the cache."""
        return self._owner() is session

    def settled(self) -> None:
        """Mark the cache as finite."""
        self._is_clean = True

    def prepare(self, length: int, max_block: int = 0) -> int:
        """Capture missing graphs for sequences of up to `length`. Returns how many were captured.

        Graphs cover forwards of 1 to `max_block` tokens, of this or an earlier call, and the drafts that sessions have
        requested. Capturing writes to the cache, so an open session loses it. A longer cache drops all graphs of the
        shorter one. The longest spans come first, since tables by position are made for the longest sequence.
        """
        self._max_block = max(self._max_block, max_block)
        before = len(self._graphs) + len(self._drafts)
        with torch.inference_mode():
            if length > self.cache.capacity or self._held is not self.cache.held:
                self._graphs, self._drafts, self._owner, before = {}, {}, lambda: None, 0
                self.cache = self.network.new_cache(None)
                self.cache.begin(length)
                self._held = self.cache.held
                self._held.zero_()
            for span in reversed(self._spans()):
                for n in range(1, self._max_block + 1):
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
        """Return the graph of n tokens that covers `length` positions.

        None if none was captured, or if a longer sequence has since made the cache grow and move.
        """
        if self._held is not self.cache.held:
            return None
        return next(
            (self._graphs[n, span] for span in self._spans() if span >= length and (n, span) in self._graphs), None
        )

    def find_draft(self, drafting: Drafting, length: int, like: Start) -> DraftGraph | None:
        """Return the graph for `drafting` that covers `length` positions, or None if it has not been captured. The next
        `prepare` then captures it.
        """
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
        """Return the spans of graphs: the whole cache if fused, else powers of two, since a graph reads its whole span."""
        if self._is_fused:
            return [self.cache.capacity]
        spans = [STEP]
        while spans[-1] < self.cache.capacity:
            spans.append(2 * spans[-1])
        return spans


class GraphSession(LeanSession):
    """A lean session whose short forwards are graphs; a prompt, or a forward without a graph, runs as in LeanSession."""

    def __init__(self, graphs: Graphs, vocabulary: int) -> None:
        assert isinstance(graphs.network, Network)
        super().__init__(graphs.network, vocabulary)
        self._graphs = graphs
        self._cache = graphs.cache
        graphs.open(self)

    def find_draft(self, drafting: Drafting, length: int, like: Start) -> DraftGraph | None:
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        return self._graphs.find_draft(drafting, length, like)

    def settle(self) -> None:
        super().settle()
        if self._graphs.is_open_for(self):
            self._graphs.settled()

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        assert self._graphs.is_open_for(self), "another session owns these graphs"
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
