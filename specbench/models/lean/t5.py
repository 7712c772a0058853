"""The decoder of T5, T5 v1.1 and mT5: relative position biases, unscaled attention, cross-attention to an encoded source.

The encoder is transformers' own. The decoder's keys and values of its output are computed once per prompt.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.network import Network, RMSNorm
from specbench.models.products import product_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
}


SMALL = {
    "d_model": 32,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 48,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}


class T5(Network):
    """T5 (Raffel et al. 2020). All layers share the first one's table of position biases."""

    kinds = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
    examples: ClassVar[dict[str, Table]] = {
        "t5": {"model_type": "t5", **SMALL},
        "t5-v1.1": {"model_type": "t5", **SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "mt5": {"model_type": "mt5", **SMALL},
    }
    positions_key = ""
    encoder_decoder = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        decoder: Any = model.decoder
        self.heads, self.dim, eps = self.config.num_heads, self.config.d_kv, self.config.layer_norm_epsilon
        self.act = ACTIVATIONS[self.config.dense_act_fn]
        self.layers = []
        for block in decoder.block:
            self_block, cross_block, dense_block = block.layer[0], block.layer[1], block.layer[2]
            attention, cross, wide = self_block.SelfAttention, cross_block.EncDecAttention, dense_block.DenseReluDense
            self.layers.append((
                RMSNorm(self_block.layer_norm.weight, eps),
                product_of([attention.q, attention.k, attention.v]),
                product_of([attention.o]),
                RMSNorm(cross_block.layer_norm.weight, eps),
                product_of([cross.q]),
                product_of([cross.o]),
                RMSNorm(dense_block.layer_norm.weight, eps),
                product_of([wide.wi_0, wide.wi_1] if self.config.is_gated_act else [wide.wi]),
                product_of([wide.wo]),
            ))  # fmt: skip
        self.from_source = [
            product_of([b.layer[1].EncDecAttention.k, b.layer[1].EncDecAttention.v]) for b in decoder.block
        ]
        self.embedding, self.norm = decoder.embed_tokens.weight, RMSNorm(decoder.final_layer_norm.weight, eps)
        self.first = decoder.block[0].layer[0].SelfAttention
        scales = getattr(self.config, "scale_decoder_outputs", False)  # never set for mT5
        self.scale_out = self.config.d_model**-0.5 if scales else 1.0
        self.bias = Bias(1.0)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        return "" if config.dense_act_fn in ACTIVATIONS else f"the lean engine's T5 has no {config.dense_act_fn}"

    def new_cache(self, source: Tensor | None) -> Cache:
        assert source is not None
        cache = Cache(len(self.layers), self.heads, self.dim, self.embedding.dtype, self.embedding.device)
        both = (weights(source).view(len(source), 2, self.heads, self.dim) for weights in self.from_source)
        for kv in both:
            keys, values = kv.permute(1, 2, 0, 3).unsqueeze(1).contiguous().unbind(0)  # (1, heads, m, d) each
            cache.source.append((keys, values))
        return cache

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        n = len(tokens)
        bias = self._bias(cache.capacity)
        x = F.embedding(tokens, self.embedding)  # (n, hidden)
        for i, (norm, qkv, out, norm_cross, q, out_cross, norm_wide, up, down) in enumerate(self.layers):
            cache.tap(i, x)
            heads = qkv(norm(x)).view(n, -1, self.dim)
            x = out.added(x, cache.attend(i, heads[:, : self.heads], heads[:, self.heads :], bias))
            queries = q(norm_cross(x)).view(n, self.heads, self.dim)
            x = out_cross.added(x, cache.attend_source(i, queries))
            wide = up(norm_wide(x))
            if self.config.is_gated_act:
                gate, rest = wide.chunk(2, -1)
                wide = self.act(gate) * rest
            else:
                wide = self.act(wide)
            if down.dtype is not None:  # `wo` is float32 in half precision, and so is x after it
                wide = wide.to(down.dtype)
            x = x + down(wide)
        return self.norm(x) * self.scale_out

    def _bias(self, positions: int) -> Bias:
        """Return the biases of distances below `positions` at least."""
        if self.bias.by_distance is None or self.bias.by_distance.shape[1] < positions:
            self.bias = Bias(1.0, by_distance=self._by_distance(positions))
        return self.bias

    def _by_distance(self, count: int) -> Tensor:
        """Return the learned biases for distances 0 .. count - 1, (heads, count), from transformers' buckets."""
        buckets = self.first._relative_position_bucket(
            -torch.arange(count, device=self.embedding.device),
            bidirectional=False,
            num_buckets=self.first.relative_attention_num_buckets,
            max_distance=self.first.relative_attention_max_distance,
        )
        table: Tensor = self.first.relative_attention_bias.weight  # (buckets, heads)
        biases: Tensor = table[buckets].T.contiguous()
        return biases
