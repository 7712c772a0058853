"""Floor 0: lean forwards of a few tokens as CUDA graphs: the whole forward is one launch, at any position.

A graph's shapes are fixed, so its positions are a tensor on the device, and attention reaches over a fixed span of the cache
with what is not there hidden. One graph a number of tokens and a span; all are captured before anything is timed.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.engine.cache import STEP, Cache, attended, banned
from specbench.engine.network import Network
from specbench.engine.session import LeanSession


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


class Graph:
    """One forward of n tokens within a span: `replay` it with tokens and a first position, and read the logits.

    On a CPU, where there are no graphs, the same static forward is run as it stands.
    """

    def __init__(self, network: Network, held: Tensor, n: int, span: int) -> None:
        self._network, self._place = network, Place(held, n, span)
        self._tokens = torch.zeros(n, dtype=torch.long, device=held.device)
        self._steps = torch.arange(n, device=held.device)
        self._out = torch.empty(0), torch.empty(0)
        self._kept: tuple[Tensor, ...] = ()
        self._graph: Any = None
        if held.device.type == "cuda":
            self._capture()
        else:
            self._run()
        self._kept = network.tables()

    def replay(self, tokens: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Logits (n, rows of the head) and states (n, H) of `tokens` (n,) at `first` and behind it.

        They last until the next replay.
        """
        self._tokens.copy_(tokens)
        torch.add(self._steps, first, out=self._place.positions)
        if self._graph is None:
            self._out = self._run()
        else:
            self._graph.replay()
        return self._out

    def _run(self) -> tuple[Tensor, Tensor]:
        self._place.begin()
        hidden = self._network.forward(self._tokens, self._place)
        return self._network.logits(hidden), hidden

    def _capture(self) -> None:
        """Warmed up on a side stream, as CUDA asks for, then recorded."""
        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = self._run()


class Graphs:
    """A model's cache and its graphs, for one session at a time: opening the next one takes it from the last."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.cache: Cache = network.new_cache(None)
        self.owner: object = None
        self._held: Tensor | None = None  # what the graphs were captured on
        self._graphs: dict[tuple[int, int], Graph] = {}

    def prepare(self, length: int, most: int) -> None:
        """Capture forwards of 1 to `most` tokens in sequences of up to `length`; what there is already stays.

        Longest first, since tables by position are made for the longest sequence asked for. Sessions that are open are lost.
        """
        if length > self.cache.capacity or self._held is not self.cache.held:
            self.cache, self._graphs, self.owner = self.network.new_cache(None), {}, None
            self.cache.begin(length)
            self._held = self.cache.held
            self.cache.held.zero_()  # what is hidden is multiplied by 0, which leaves nothing but of a NaN
        with torch.inference_mode():
            for span in reversed(self._spans()):
                for n in range(1, most + 1):
                    if (n, span) not in self._graphs:
                        self._graphs[n, span] = Graph(self.network, self.cache.held, n, span)

    def find(self, n: int, length: int) -> Graph | None:
        """The graph of n tokens that reaches over `length` positions.

        None where none was captured, and where the cache has since grown, and with that moved, under a longer sequence.
        """
        if self._held is not self.cache.held:
            return None
        return next(
            (self._graphs[n, span] for span in self._spans() if span >= length and (n, span) in self._graphs), None
        )

    def _spans(self) -> list[int]:
        spans = [STEP]
        while spans[-1] < self.cache.capacity:
            spans.append(2 * spans[-1])
        return spans


class GraphSession(LeanSession):
    """A lean session whose short forwards are graphs; a prompt, and what no graph was captured for, runs as it stands."""

    def __init__(self, graphs: Graphs, vocabulary: int) -> None:
        super().__init__(graphs.network, vocabulary)
        self._graphs = graphs
        self._cache, graphs.owner = graphs.cache, self
        self._cache.length = 0

    def settle(self) -> None:
        try:
            super().settle()
        except FloatingPointError:
            self._graphs.cache.held.zero_()  # a NaN would reach every later sequence through what is hidden
            raise

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        assert self._graphs.owner is self, "another session has taken these graphs over"
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
