"""Phi-3 and Phi-4: Llama's layers, whose projections are stored together, with a window and partial rotations."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from specbench.config.construct import Table
from specbench.models.lean.layers import Layers
from specbench.models.lean.llama import SMALL, Llama


class Phi3Layers(Layers):
    """Llama's layers whose projections transformers has concatenated already."""

    def qkv(self, attention: Any) -> Sequence[nn.Module]:
        return [attention.qkv_proj]

    def up(self, mlp: Any) -> Sequence[nn.Module]:
        return [mlp.gate_up_proj]


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
