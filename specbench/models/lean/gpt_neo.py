"""GPT-Neo: like GPT-2, with unscaled attention, limited to a window in every other layer."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.network import Network
from specbench.models.products import product_of


class GPTNeo(Network):
    """GPT-Neo (Black et al. 2021). Local layers see the last `window_size` positions."""

    kinds = ("GPTNeoForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "gpt-neo": {
            "model_type": "gpt_neo", "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 5,
            "attention_types": [[["global", "local"], 1]],
        }
    }  # fmt: skip

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        inner = model.transformer
        self.heads, self.eps = self.config.num_heads, self.config.layer_norm_epsilon
        self.dim = self.config.hidden_size // self.heads
        self.layers = [
            (
                Bias(1.0, self.config.window_size if block.attn.attention_type == "local" else None),
                (block.ln_1.weight, block.ln_1.bias),
                product_of([block.attn.attention.q_proj, block.attn.attention.k_proj, block.attn.attention.v_proj]),
                product_of([block.attn.attention.out_proj]),
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
        is_supported = config.activation_function == "gelu_new"
        return "" if is_supported else f"the lean engine's GPT-Neo has no {config.activation_function}"

    def new_cache(self, source: Tensor | None) -> Cache:
        return Cache(len(self.layers), self.heads, self.dim, self.embedding.dtype, self.embedding.device)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        n = len(tokens)
        x = F.embedding(tokens, self.embedding) + cache.rows(self.positions)  # (n, hidden)
        size = x.shape[-1:]
        for i, (bias, norm, qkv, out, norm_mlp, up, down) in enumerate(self.layers):
            cache.tap(i, x)
            heads = qkv(F.layer_norm(x, size, *norm, self.eps)).view(n, -1, self.dim)
            seen = cache.attend(i, heads[:, : self.heads], heads[:, self.heads :], bias)
            x = out.added(x, seen)
            wide = F.gelu(up(F.layer_norm(x, size, *norm_mlp, self.eps)), approximate="tanh")
            x = down.added(x, wide)
        return F.layer_norm(x, size, *self.norm, self.eps)
