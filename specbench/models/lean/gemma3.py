"""Gemma 3, text only: local and global layers with their own rotations, four norms a layer, scaled embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.layers import Layer, Layers, Map, gelu_gate, window_of
from specbench.models.lean.llama import SMALL, Llama
from specbench.models.lean.network import HeadNorm, RMSNorm


class Gemma3Layers(Layers):
    """Norms before and after attention and MLP, whose weights are offsets from one; norms of query and key heads."""

    def angles(self, inner: Any) -> Sequence[Callable[..., Any]]:
        self.kinds = sorted(set(self.config.layer_types))
        return [partial(inner.rotary_emb, layer_type=kind) for kind in self.kinds]

    def norm_of(self, module: Any) -> Map:
        return RMSNorm(1 + module.weight.data, self.config.rms_norm_eps)

    def layer(self, module: Any, index: int) -> Layer:
        attention = module.self_attn
        norms = 1 + attention.q_norm.weight.data, 1 + attention.k_norm.weight.data
        return replace(
            super().layer(module, index),
            norm_mlp=self.norm_of(module.pre_feedforward_layernorm),
            bias=Bias(self.config.query_pre_attn_scalar**-0.5, window_of(self.config, index)),
            adjust=HeadNorm(*norms, (self.heads, self.kv_heads), self.config.rms_norm_eps),
            rope=self.kinds.index(self.config.layer_types[index]),
            after=self.norm_of(module.post_attention_layernorm),
            after_mlp=self.norm_of(module.post_feedforward_layernorm),
        )

    def gate(self, both: Tensor) -> Tensor:
        return gelu_gate(both)


class Gemma3(Llama):
    """Gemma 3 (Gemma Team 2025)."""

    kinds = ("Gemma3ForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "gemma3": {
            "model_type": "gemma3_text", **SMALL, "head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    }  # fmt: skip
    form = Gemma3Layers
    activations = ("gelu_pytorch_tanh",)
    can_fuse = False

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.scale = self.embed.like.new_tensor(self.config.hidden_size**0.5)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        if config.use_bidirectional_attention:
            return "the lean engine has no bidirectional attention"
        if config.attn_logit_softcapping or config.final_logit_softcapping:
            return "the lean engine does not cap scores or logits"
        return super().unsupported(config)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        return self.layers.forward(self.embed(tokens) * self.scale, cache)
