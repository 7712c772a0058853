"""Sessions over a lean model, with and without CUDA graphs. No forward allocates memory for the cache."""

import torch
from torch import Tensor

from specbench.models.cached_session import CachedSession, DraftGraph, DraftInputs, DraftOutputs, DraftSettings
from specbench.models.engine.cache import Cache
from specbench.models.engine.graphs import Graphs
from specbench.models.engine.network import Network
from specbench.models.transformers_session import encoded


class LeanSession(CachedSession):
    """A session like EagerSession over a lean model. `source` holds an encoder's ids."""

    def __init__(self, network: Network, vocabulary: int, source: list[int] | None = None) -> None:
        super().__init__(network.config.name_or_path, network.model.device)
        self._network, self._vocabulary, self._source = network, vocabulary, source
        self._cache: Cache | None = None

    def logits_of(self, states: Tensor) -> Tensor:
        return self._network.logits(states.to(self._network.head.dtype), self._vocabulary)

    def _forget(self, length: int) -> None:
        assert self._cache is not None
        self._cache.length = length

    def _fed_by_graph(self, out: DraftOutputs) -> None:
        super()._fed_by_graph(out)
        assert self._cache is not None
        self._cache.length += len(out.logits)

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode():
            cache = self._cache or self._open()
            cache.begin(len(tokens))
            hidden = self._network.forward(tokens, cache)
            cache.end()
            return self._network.logits(hidden[-keep:], self._vocabulary), hidden

    def _open(self) -> Cache:
        """Return a new cache, with the encoder's output if there is one; called once per prompt, in its first forward."""
        source = None
        if self._source is not None:
            source = encoded(self._network.model, self._source, self.usage).last_hidden_state[0]  # (m, hidden)
        self._cache = self._network.new_cache(source)
        return self._cache


class GraphSession(LeanSession):
    """A lean session whose short forwards are graphs; a prompt, or a forward without a graph, runs as in LeanSession."""

    def __init__(self, graphs: Graphs, vocabulary: int) -> None:
        assert isinstance(graphs.network, Network)
        super().__init__(graphs.network, vocabulary)
        self._graphs = graphs
        self._cache = graphs.cache
        graphs.open(self)

    def find_draft(self, drafting: DraftSettings, length: int, like: DraftInputs) -> DraftGraph | None:
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        return self._graphs.find_draft(drafting, length, like)

    def finish(self) -> None:
        super().finish()
        if self._graphs.is_open_for(self):
            self._graphs.mark_finite()

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
