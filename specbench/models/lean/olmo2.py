"""OLMo 2: norms after attention and MLP instead of before, and norms of all queries and of all keys."""

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.models.lean.layers import Layer, Layers, Map
from specbench.models.lean.llama import SMALL, Llama
from specbench.models.lean.network import RMSNorm


class Olmo2Layers(Layers):
    """The outputs of attention and MLP are normalized before they are added to the residual stream."""

    def norms(self, module: Any) -> tuple[Map, Map]:
        return nn.Identity(), nn.Identity()

    def layer(self, module: Any, index: int) -> Layer:
        attention, epsilon = module.self_attn, self.config.rms_norm_eps
        query, key = RMSNorm(attention.q_norm.weight, epsilon), RMSNorm(attention.k_norm.weight, epsilon)

        def adjust(heads: Tensor) -> None:
            for part, norm in ((heads[:, : self.heads], query), (heads[:, self.heads :], key)):
                part.copy_(norm(part.flatten(1)).view(part.shape))

        return replace(
            super().layer(module, index),
            adjust=adjust,
            after=self.norm_of(module.post_attention_layernorm),
            after_mlp=self.norm_of(module.post_feedforward_layernorm),
        )


class Olmo2(Llama):
    """OLMo 2 (OLMo Team 2024)."""

    kinds = ("Olmo2ForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {"olmo2": {"model_type": "olmo2", **SMALL}}
    form = Olmo2Layers
