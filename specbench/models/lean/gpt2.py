"""GPT-2: pre-layer norms, learned positions, one attention matrix for queries, keys and values."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.network import Network
from specbench.models.products import product_of


class GPT2(Network):
    """GPT-2 (Radford et al. 2019). Transformers stores its matrices as (in, out)."""

    kinds = ("GPT2LMHeadModel",)
    examples: ClassVar[dict[str, Table]] = {"gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4}}
    positions_key = "n_positions"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        inner = model.transformer
        self.heads, self.eps = self.config.n_head, self.config.layer_norm_epsilon
        self.dim = self.config.n_embd // self.heads
        self.bias = Bias(self.dim**-0.5)
        self.layers = [
            (
                (block.ln_1.weight, block.ln_1.bias),
                product_of([block.attn.c_attn]),
                product_of([block.attn.c_proj]),
                (block.ln_2.weight, block.ln_2.bias),
                product_of([block.mlp.c_fc]),
                product_of([block.mlp.c_proj]),
            )
            for block in inner.h
        ]
        self.embedding, self.positions = inner.wte.weight, inner.wpe.weight
        self.norm = (inner.ln_f.weight, inner.ln_f.bias)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        if config.activation_function != "gelu_new":
            return f"the lean engine's GPT-2 has no {config.activation_function}"
        if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
            return "the lean engine's GPT-2 scales attention by the head's size only"
        return ""

    def new_cache(self, source: Tensor | None) -> Cache:
        return Cache(len(self.layers), self.heads, self.dim, self.embedding.dtype, self.embedding.device)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        n = len(tokens)
        x = F.embedding(tokens, self.embedding) + cache.rows(self.positions)  # (n, hidden)
        size = x.shape[-1:]
        for i, (norm, qkv, out, norm_mlp, up, down) in enumerate(self.layers):
            cache.tap(i, x)
            heads = qkv(F.layer_norm(x, size, *norm, self.eps)).view(n, -1, self.dim)
            seen = cache.attend(i, heads[:, : self.heads], heads[:, self.heads :], self.bias)
            x = out.added(x, seen)
            wide = F.gelu(up(F.layer_norm(x, size, *norm_mlp, self.eps)), approximate="tanh")
            x = down.added(x, wide)
        return F.layer_norm(x, size, *self.norm, self.eps)
