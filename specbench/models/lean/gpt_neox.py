"""GPT-NeoX, such as Pythia: attention and MLP read the same input, and a part of each head is rotated."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.layers import PLAIN_ELEMENTWISE, STATIC_ROPES, Rope
from specbench.models.lean.network import Network
from specbench.models.products import product_of


class GPTNeoX(Network):
    """GPT-NeoX (Black et al. 2022), such as Pythia. With `use_parallel_residual`, the MLP reads what attention reads."""

    kinds = ("GPTNeoXForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "gpt-neox": {
            "model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        },
        "gpt-neox-serial": {
            "model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "use_parallel_residual": False,
        },
    }  # fmt: skip

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        inner: Any = model.gpt_neox
        self.heads, self.eps = self.config.num_attention_heads, self.config.layer_norm_eps
        self.dim = self.config.hidden_size // self.heads
        self.bias = Bias(self.dim**-0.5)
        self.layers = [
            (
                (layer.input_layernorm.weight, layer.input_layernorm.bias),
                product_of([layer.attention.query_key_value]),
                product_of([layer.attention.dense]),
                (layer.post_attention_layernorm.weight, layer.post_attention_layernorm.bias),
                product_of([layer.mlp.dense_h_to_4h]),
                product_of([layer.mlp.dense_4h_to_h]),
            )
            for layer in inner.layers
        ]
        self.embedding, self.rope = inner.embed_in.weight, Rope(inner.rotary_emb, inner.embed_in.weight)
        self.norm = (inner.final_layer_norm.weight, inner.final_layer_norm.bias)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        if (kind := config.rope_parameters.get("rope_type", "default")) not in STATIC_ROPES:
            return f"the lean engine has no rotary positions of type {kind}"
        return "" if config.hidden_act == "gelu" else f"the lean engine's GPT-NeoX has no {config.hidden_act}"

    def new_cache(self, source: Tensor | None) -> Cache:
        return Cache(len(self.layers), self.heads, self.dim, self.embedding.dtype, self.embedding.device)

    def tables(self) -> tuple[Tensor, ...]:
        return self.rope.until(0)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        n, x = len(tokens), F.embedding(tokens, self.embedding)  # (n, hidden)
        cos, sin = (cache.rows(table).view(n, 1, 1, -1) for table in self.rope.until(cache.capacity))
        size, width, parallel = x.shape[-1:], cos.shape[-1], self.config.use_parallel_residual
        for i, (norm, qkv, out, norm_mlp, up, down) in enumerate(self.layers):
            cache.tap(i, x)
            heads = qkv(F.layer_norm(x, size, *norm, self.eps)).view(n, self.heads, 3, self.dim)
            PLAIN_ELEMENTWISE.rotate(heads[:, :, :2, :width], cos, sin)
            kv = heads[:, :, 1:].transpose(1, 2).flatten(1, 2)  # (n, keys then values, d)
            seen = cache.attend(i, heads[:, :, 0], kv, self.bias)
            read = F.layer_norm(x, size, *norm_mlp, self.eps) if parallel else None
            x = out.added(x, seen)
            if read is None:
                read = F.layer_norm(x, size, *norm_mlp, self.eps)
            x = down.added(x, F.gelu(up(read)))
        return F.layer_norm(x, size, *self.norm, self.eps)
