"""OPT: pre-layer norms, learned positions that start at two, ReLU."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config.construct import Table
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.network import Network
from specbench.models.products import product_of

OFFSET = 2  # unused rows at the start of the position table


class OPT(Network):
    """OPT (Zhang et al. 2022), all sizes except 350m, which has post-layer norms and projected embeddings."""

    kinds = ("OPTForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "opt": {
            "model_type": "opt", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
            "word_embed_proj_dim": 32,
        }
    }  # fmt: skip

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        inner = model.model.decoder
        self.heads = self.config.num_attention_heads
        self.dim = self.config.hidden_size // self.heads
        self.bias = Bias(self.dim**-0.5)
        self.layers = [
            (
                (block.self_attn_layer_norm.weight, block.self_attn_layer_norm.bias),
                product_of([block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj]),
                product_of([block.self_attn.out_proj]),
                (block.final_layer_norm.weight, block.final_layer_norm.bias),
                product_of([block.fc1]),
                product_of([block.fc2]),
            )
            for block in inner.layers
        ]
        self.embedding, self.positions = inner.embed_tokens.weight, inner.embed_positions.weight[OFFSET:]
        self.norm = (inner.final_layer_norm.weight, inner.final_layer_norm.bias)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        if not config.do_layer_norm_before or config._remove_final_layer_norm:
            return "the lean engine's OPT has pre-layer norms and a final norm only"
        if config.word_embed_proj_dim != config.hidden_size:
            return "the lean engine's OPT has no projected embeddings"
        return (
            "" if config.activation_function == "relu" else "the lean engine's OPT has no " + config.activation_function
        )

    def new_cache(self, source: Tensor | None) -> Cache:
        return Cache(len(self.layers), self.heads, self.dim, self.embedding.dtype, self.embedding.device)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        n = len(tokens)
        x = F.embedding(tokens, self.embedding) + cache.rows(self.positions)  # (n, hidden)
        size = x.shape[-1:]
        for i, (norm, qkv, out, norm_mlp, up, down) in enumerate(self.layers):
            cache.tap(i, x)
            heads = qkv(F.layer_norm(x, size, *norm)).view(n, -1, self.dim)
            seen = cache.attend(i, heads[:, : self.heads], heads[:, self.heads :], self.bias)
            x = out.added(x, seen)
            x = down.added(x, F.relu(up(F.layer_norm(x, size, *norm_mlp))))
        return F.layer_norm(x, size, *self.norm)
