"""OLMo 2: norms after attention and MLP instead of before, and norms of all queries and of all keys."""

from typing import Any, ClassVar

from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.models.engine.cache import Bias
from specbench.models.engine.layers import Layer, Layers, window_of
from specbench.models.engine.llama import SMALL, Llama
from specbench.models.engine.network import RMSNorm
from specbench.models.products import product_of


class Olmo2Layers(Layers):
    """The outputs of attention and MLP are normalized before they are added to the residual stream."""

    def layer(self, module: Any, index: int) -> Layer:
        attention, mlp = module.self_attn, module.mlp
        query, key = (RMSNorm(each.weight, self.config.rms_norm_eps) for each in (attention.q_norm, attention.k_norm))

        def adjust(heads: Tensor) -> None:
            for part, norm in ((heads[:, : self.heads], query), (heads[:, self.heads :], key)):
                part.copy_(norm(part.flatten(1)).view(part.shape))

        return Layer(
            norm=nn.Identity(),
            qkv=product_of([attention.q_proj, attention.k_proj, attention.v_proj]),
            out=product_of([attention.o_proj]),
            norm_mlp=nn.Identity(),
            up=product_of([mlp.gate_proj, mlp.up_proj]),
            down=product_of([mlp.down_proj]),
            bias=Bias(self.dim**-0.5, window_of(self.config, index)),
            adjust=adjust,
            after=self.norm_of(module.post_attention_layernorm),
            after_mlp=self.norm_of(module.post_feedforward_layernorm),
        )


class Olmo2(Llama):
    """OLMo 2 (OLMo Team 2024)."""

    kinds = ("Olmo2ForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {"olmo2": {"model_type": "olmo2", **SMALL}}
    form = Olmo2Layers
