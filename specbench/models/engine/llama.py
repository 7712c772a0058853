"""Llama and architectures like it: Vicuna, Qwen2 (biases), Mistral; grouped-query attention, tied or untied heads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.engine.cache import Cache
from specbench.models.engine.fusing import PLAIN, compiled, compiling
from specbench.models.engine.network import Network, RMSNorm
from specbench.models.products import product_of

STATIC_ROPES = ("default", "linear", "llama3", "yarn")  # types whose angles do not depend on the sequence's length


class Layers:
    """Decoder layers and rotary positions over transformers' modules. An omitted norm is an Identity."""

    def __init__(self, inner: Any) -> None:
        c = inner.config
        self.kv_heads = c.num_key_value_heads or c.num_attention_heads
        self.dim: int = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.heads = c.num_attention_heads
        self.layers = [
            (
                _norm(layer.input_layernorm, c.rms_norm_eps),
                product_of([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]),
                product_of([layer.self_attn.o_proj]),
                RMSNorm(layer.post_attention_layernorm, c.rms_norm_eps),
                product_of([layer.mlp.gate_proj, layer.mlp.up_proj]),
                product_of([layer.mlp.down_proj]),
            )
            for layer in inner.layers
        ]
        self.like, self.norm = inner.embed_tokens.weight, _norm(inner.norm, c.rms_norm_eps)
        self.ropes = _Ropes(inner.rotary_emb, self.like)
        self.elementwise = PLAIN

    def new_cache(self) -> Cache:
        return Cache(len(self.layers), self.kv_heads, self.dim, self.like.dtype, self.like.device)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Return the normalized output (n, hidden) of the last layer for x (n, hidden) after the cached positions."""
        n, rotated = len(x), self.heads + self.kv_heads
        cos, sin = (cache.rows(table).unsqueeze(1) for table in self.ropes.until(cache.capacity))  # (n, 1, d)
        mask, scale = cache.mask(), self.dim**-0.5
        for i, (norm, qkv, out, norm_mlp, gate_up, down) in enumerate(self.layers):
            heads = qkv(norm(x)).view(n, -1, self.dim)  # queries, keys, values
            self.elementwise.rotate(heads[:, :rotated], cos, sin)
            x = out.added(x, cache.attend(i, heads[:, : self.heads], heads[:, self.heads :], mask, scale))
            x = down.added(x, self.elementwise.gate(gate_up(norm_mlp(x))))
        return self.norm(x)


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}


class Llama(Network):
    """Llama (Touvron et al. 2023): RMS pre-norm, rotary position embeddings, gated SiLU."""

    kinds = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM")
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
    }  # fmt: skip
    can_fuse = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.layers, self.embedding = Layers(model.model), model.model.embed_tokens.weight

    @classmethod
    def unsupported(cls, config: Any) -> str:
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        if rope not in STATIC_ROPES:
            return f"the lean engine has no rotary positions of type {rope}"
        return "" if config.hidden_act == "silu" else f"the lean engine's Llama has no {config.hidden_act}"

    def new_cache(self, source: Tensor | None) -> Cache:
        return self.layers.new_cache()

    @contextmanager
    def fused(self) -> Iterator[None]:
        self.layers.elementwise = compiled()
        try:
            with compiling():
                yield
        finally:
            self.layers.elementwise = PLAIN

    def tables(self) -> tuple[Tensor, ...]:
        return self.layers.ropes.until(0)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        return self.layers.forward(F.embedding(tokens, self.embedding), cache)


def _norm(module: nn.Module, eps: float) -> Callable[[Tensor], Tensor]:
    return module if isinstance(module, nn.Identity) else RMSNorm(module, eps)


class _Ropes:
    """transformers' rotary angles as tables that grow on demand: cos, and sin with the sign of its half, (m, d) each.

    x cos + roll(x, d / 2) sin is the rotation, since rolling by a half swaps the halves.
    """

    def __init__(self, angles: Any, like: Tensor) -> None:
        self._angles, self._like = angles, like
        self._tables = (like.new_empty(0, 0), like.new_empty(0, 0))

    def until(self, positions: int) -> tuple[Tensor, Tensor]:
        """Return the cosine and sine tables, each with at least `positions` rows."""
        if len(self._tables[0]) < positions:
            at = torch.arange(positions, device=self._like.device)[None]
            cos, sin = (table[0] for table in self._angles(self._like, at))  # (positions, d)
            half = cos.shape[-1] // 2
            self._tables = cos, torch.cat([-sin[:, :half], sin[:, half:]], -1)
        return self._tables
