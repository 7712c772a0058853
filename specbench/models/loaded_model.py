"""Loaded models: weights in memory, as one engine runs them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.errors import ConfigError
from specbench.models.feeder import Feeder
from specbench.models.lean import GraphFeeder, Graphs, LeanFeeder, Network
from specbench.models.placed import on
from specbench.models.transformers_session import EagerFeeder, reads_trees, window_of

REQUIRED = ("name", "tokenizer", "device", "dtype", "embedded", "vocabulary")  # attributes of every loaded model


class LoadedModel(ABC):
    """A model in memory, as one engine runs it. Sequences use it one after another.

    `device` is where it reads its input. `embedded` is the number of token ids that it can read, `vocabulary` the number that
    it can write, `window` the longest sequence (None: unlimited), `eos` the ids with which it ends an output. `start` is the
    decoder's first token in an encoder-decoder model; None for a decoder-only model.
    """

    name: str  # for messages
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    embedded: int
    vocabulary: int
    window: int | None = None
    eos: frozenset[int] = frozenset()
    start: int | None = None
    packing_seconds: float = 0.0  # for storing matrices as the engine reads them
    has_graphs: bool = False  # whether `prepare` captures CUDA graphs
    branches: bool = False  # whether its feeders can read trees

    @abstractmethod
    def feeder(self, vocabulary: int, source: list[int] | None) -> Feeder:
        """Return a feeder for a new sequence, whose logits are (rows, `vocabulary`).

        `source` holds the encoder's input ids; None for a decoder-only model.
        """

    @property
    def devices(self) -> set[torch.device]:
        """Every device that a part of it is on."""
        return {self.device}

    def shared(self) -> "LoadedModel":
        """Return the model for another role with the same weights: itself, unless a sequence needs a cache of its own."""
        return self

    def prepare(self, length: int, blocks: Iterable[int]) -> int:
        """Prepare for sequences of up to `length` tokens and forwards of n for each n in `blocks`.

        Returns the number of captured CUDA graphs.
        """
        return 0

    def forget_drafts(self) -> None:
        """Release the graphs of whole drafts. By default there are none."""
        return

    def transformers(self) -> PreTrainedModel:
        """Return transformers' model. Raises ConfigError for an engine without one."""
        raise ConfigError(
            f"{self.name}: its engine has no transformers model, which hf-*, heads and training need; help: --engine eager"
        )


class TransformersModel(LoadedModel):
    """transformers' model, whose own modules run eagerly. `inputs` is where a model on several devices reads its input."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: torch.device | None = None
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.name, self.dtype = model.config.name_or_path, model.dtype
        self.device = inputs or model.device
        self.window = window_of(model)
        self.embedded = model.get_input_embeddings().num_embeddings
        self.vocabulary = model.get_output_embeddings().out_features
        eos = (model.generation_config or model.config).eos_token_id
        self.eos = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
        self.start = model.config.decoder_start_token_id if model.config.is_encoder_decoder else None
        self.branches = reads_trees(model)

    def feeder(self, vocabulary: int, source: list[int] | None) -> Feeder:
        return EagerFeeder(self.model, vocabulary, source, self.device)

    @property
    def devices(self) -> set[torch.device]:
        parts: Sequence[Any] = [*set((getattr(self.model, "hf_device_map", None) or {}).values())]  # by accelerate
        return {self.device, *(torch.device(part) for part in parts if part != "disk")}

    def transformers(self) -> PreTrainedModel:
        return self.model


class LeanModel(TransformersModel):
    """Our own forward over the weights of transformers' model."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, network: Network) -> None:
        super().__init__(model, tokenizer)
        self.network, self.branches = network, True

    def feeder(self, vocabulary: int, source: list[int] | None) -> Feeder:
        return LeanFeeder(self.network, vocabulary, source)


class GraphModel(LeanModel):
    """Our own forward as CUDA graphs, with a cache for one sequence at a time."""

    has_graphs = True

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, network: Network, fused: bool = False
    ) -> None:
        super().__init__(model, tokenizer, network)
        self.graphs, self._is_fused = Graphs(network, self.device, fused=fused), fused

    def feeder(self, vocabulary: int, source: list[int] | None) -> Feeder:
        return GraphFeeder(self.graphs, vocabulary)

    def shared(self) -> LoadedModel:
        return GraphModel(self.model, self.tokenizer, self.network, self._is_fused)

    def prepare(self, length: int, blocks: Iterable[int]) -> int:
        with on(self.device):
            sizes = sorted(blocks)
            longest = min(length, self.window or length) + (
                sizes[-1] if sizes else 0
            )  # a tree's branches need room too
            return self.graphs.prepare(longest, sizes)

    def forget_drafts(self) -> None:
        self.graphs.forget_drafts()
