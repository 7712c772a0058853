"""Phi-3 and Phi-4: Llama's layers, whose projections are stored together, with a window and partial rotations."""

from typing import Any, ClassVar

from specbench.config.construct import Table
from specbench.models.engine.cache import Bias
from specbench.models.engine.layers import Layer, Layers, window_of
from specbench.models.engine.llama import SMALL, Llama
from specbench.models.products import product_of


class Phi3Layers(Layers):
    """Llama's layers over two matrices that transformers has concatenated already."""

    def layer(self, module: Any, index: int) -> Layer:
        return Layer(
            norm=self.norm_of(module.input_layernorm),
            qkv=product_of([module.self_attn.qkv_proj]),
            out=product_of([module.self_attn.o_proj]),
            norm_mlp=self.norm_of(module.post_attention_layernorm),
            up=product_of([module.mlp.gate_up_proj]),
            down=product_of([module.mlp.down_proj]),
            bias=Bias(self.dim**-0.5, window_of(self.config, index)),
        )


class Phi3(Llama):
    """Phi-3 (Abdin et al. 2024). Models for long contexts have rotations that depend on the length, which is unsupported."""

    kinds = ("Phi3ForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "phi3": {
            "model_type": "phi3", **SMALL, "hidden_size": 64, "sliding_window": 9, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        }
    }  # fmt: skip
    form = Phi3Layers
