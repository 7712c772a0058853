"""Qwen3: Llama's layers with norms of query and key heads; some models are mixtures of experts."""

from dataclasses import replace
from typing import Any, ClassVar

from specbench.config.construct import Table
from specbench.models.lean.layers import Layer, Layers
from specbench.models.lean.llama import SMALL, Llama
from specbench.models.lean.mixture import MixtureLayers
from specbench.models.lean.network import HeadNorm


class Qwen3Layers(Layers):
    """Llama's layers with an RMS norm of each query and key head."""

    def layer(self, module: Any, index: int) -> Layer:
        norms = module.self_attn.q_norm.weight.data, module.self_attn.k_norm.weight.data
        adjust = HeadNorm(*norms, (self.heads, self.kv_heads), self.config.rms_norm_eps)
        return replace(super().layer(module, index), adjust=adjust)


class Qwen3MixtureLayers(Qwen3Layers, MixtureLayers):
    """Layers of which some are mixtures of experts."""


class Qwen3(Llama):
    """Qwen3 (Yang et al. 2025)."""

    kinds = ("Qwen3ForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 16},
        "qwen3-window": {
            "model_type": "qwen3", **SMALL, "head_dim": 16, "use_sliding_window": True, "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    }  # fmt: skip
    form = Qwen3Layers


class Qwen3Mixture(Qwen3):
    """Qwen3-MoE (Yang et al. 2025)."""

    kinds = ("Qwen3MoeForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "qwen3-moe": {
            "model_type": "qwen3_moe", **SMALL, "head_dim": 16, "moe_intermediate_size": 24, "num_experts": 6,
            "num_experts_per_tok": 2, "norm_topk_prob": True,
        }
    }  # fmt: skip
    form = Qwen3MixtureLayers
    can_fuse = False
