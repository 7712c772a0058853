"""Llama, and architectures whose layers are Llama's: Vicuna, Qwen2 (biases), Mistral (windows), SmolLM3 and Granite."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.layers import (
    PLAIN_ELEMENTWISE,
    Layer,
    Layers,
    compiled_elementwise,
    unsupported_layers,
    with_more_compiled_shapes,
)
from specbench.models.lean.network import Network

SMALL: Table = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}


class Llama(Network):
    """Llama (Touvron et al. 2023), Qwen2 and Mistral. RMS pre-norm, rotary positions, gated SiLU, grouped queries."""

    kinds: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM", "MiMoForCausalLM")
    examples: ClassVar[dict[str, Table]] = {
        "llama": {"model_type": "llama", **SMALL},
        "qwen2": {"model_type": "qwen2", **SMALL},
        "llama-scaled": {
            "model_type": "llama", **SMALL, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True,
            "attention_bias": True, "mlp_bias": True, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
            },
        },
        "mistral": {"model_type": "mistral", **SMALL, "sliding_window": None},
        "mistral-window": {"model_type": "mistral", **SMALL, "sliding_window": 7},
    }  # fmt: skip
    form: ClassVar[type[Layers]] = Layers
    activations: ClassVar[tuple[str, ...]] = ("silu",)
    can_fuse = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        inner: Any = model.get_decoder()
        self.layers = self.form(inner)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        return unsupported_layers(config, cls.__name__, cls.activations)

    def new_cache(self, source: Tensor | None) -> Cache:
        return self.layers.new_cache()

    @contextmanager
    def fused(self) -> Iterator[None]:
        self.layers.elementwise = compiled_elementwise()
        try:
            with with_more_compiled_shapes():
                yield
        finally:
            self.layers.elementwise = PLAIN_ELEMENTWISE

    def tables(self) -> tuple[Tensor, ...]:
        return tuple(table for rope in self.layers.ropes for table in rope.until(0))

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        return self.layers.forward(self.embed(tokens), cache)


class SmolLM3Layers(Layers):
    """Llama's layers, some without positions (Yang et al. 2025)."""

    def layer(self, module: Any, index: int) -> Layer:
        return replace(super().layer(module, index), rope=0 if self.config.no_rope_layers[index] else None)


class SmolLM3(Llama):
    """SmolLM3 (Bakouch et al. 2025)."""

    kinds = ("SmolLM3ForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "smollm3": {"model_type": "smollm3", **SMALL, "no_rope_layer_interval": 2, "pad_token_id": 0}
    }
    form = SmolLM3Layers


class GraniteLayers(Layers):
    """Llama's layers with factors of scores and of what is added to the residual stream."""

    def layer(self, module: Any, index: int) -> Layer:
        def times(x: Tensor) -> Tensor:
            out: Tensor = x * self.config.residual_multiplier
            return out

        bias = Bias(self.config.attention_multiplier)
        return replace(super().layer(module, index), bias=bias, after=times, after_mlp=times)


class Granite(Llama):
    """Granite 3 (IBM 2024): four factors, of embeddings, scores, residuals and logits."""

    kinds = ("GraniteForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "granite": {
            "model_type": "granite", **SMALL, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
            "residual_multiplier": 0.5, "logits_scaling": 2.0,
        }
    }  # fmt: skip
    form = GraniteLayers

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        return self.layers.forward(self.embed(tokens) * self.config.embedding_multiplier, cache)

    def logits(self, hidden: Tensor, vocabulary: int | None = None) -> Tensor:
        out: Tensor = super().logits(hidden, vocabulary) / self.config.logits_scaling
        return out
