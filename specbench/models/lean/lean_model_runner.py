"""The model runners of lean models, with and without CUDA graphs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.session import AuxLayers
from specbench.models.lean.cache import Cache
from specbench.models.lean.graphs import Graphs
from specbench.models.lean.network import Network
from specbench.models.model_runner import (
    DraftGraph,
    DraftInputs,
    DraftSettings,
    Feed,
    ModelRunner,
    Output,
    columns,
    require_layers,
)
from specbench.models.transformers_session import encoded


class LeanModelRunner(ModelRunner):
    """Runs the forwards of a lean model. `source` holds an encoder's ids."""

    branches = True

    def __init__(self, network: Network, vocabulary: int, source: list[int] | None = None) -> None:
        self.name, self.device = network.config.name_or_path, network.model.device
        self.network, self._vocabulary, self._source = network, vocabulary, source
        self._cache: Cache | None = None

    def logits_of(self, states: Tensor) -> Tensor:
        return self.network.logits(states.to(self.network.head.dtype), self._vocabulary)

    def feed(self, feed: Feed, rows: int) -> Output:
        with torch.inference_mode():
            count = len(self._source) if self._cache is None and self._source is not None else 0
            cache = self._cache or self._open()
            cache.aux_layers = self.aux_layers
            cache.begin(feed)
            hidden = self.network.forward(feed.tokens, cache)
            return Output(self.network.logits(hidden[-rows:], self._vocabulary), hidden, count, cache.tapped())

    def require_aux_layers(self, aux_layers: AuxLayers) -> None:
        require_layers(aux_layers, self.network.config)

    def keep(self, start: int, path: Sequence[int]) -> None:
        assert self._cache is not None
        with torch.inference_mode():
            self._cache.keep(start, path)

    def _open(self) -> Cache:
        """Return a new cache, with the encoder's output if there is one; called once per prompt, in its first forward."""
        source = None
        if self._source is not None:
            source = encoded(self.network.model, self._source).last_hidden_state[0]  # (m, hidden)
        self._cache = self.network.new_cache(source)
        return self._cache


class GraphModelRunner(LeanModelRunner):
    """Replays CUDA graphs for short forwards. Prompts, growing trees, and what has no graph run as in LeanModelRunner."""

    def __init__(self, graphs: Graphs, vocabulary: int) -> None:
        assert isinstance(graphs.network, Network)
        super().__init__(graphs.network, vocabulary)
        self._graphs = graphs
        self._cache = graphs.cache
        graphs.open(self)

    def draft_graph(self, drafting: DraftSettings, length: int, start: DraftInputs) -> DraftGraph | None:
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        return self._graphs.find_draft(drafting, length, start)

    def finish(self) -> None:
        if self._graphs.is_open_for(self):
            self._graphs.mark_finite()

    def feed(self, feed: Feed, rows: int) -> Output:
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        n = len(feed.tokens)
        fits = feed.start and feed.first == feed.start  # neither a prompt nor a tree that grows
        graph = self._graphs.find(n, feed.start + n, feed.parents is not None) if fits else None
        if graph is None:
            return super().feed(feed, rows)
        with torch.inference_mode():
            logits, states, tapped = graph.replay(feed)
            saved_states = states.clone() if self.keeps_states else None
            saved_inputs = (
                None
                if tapped is None or not self.aux_layers
                else columns(tapped, self._graphs.aux_layers, self.aux_layers).clone()
            )
            return Output(logits[-rows:, : self._vocabulary].clone(), saved_states, tapped=saved_inputs)

    def require_aux_layers(self, aux_layers: AuxLayers) -> None:
        super().require_aux_layers(aux_layers)
        self._graphs.require_aux_layers(aux_layers)
