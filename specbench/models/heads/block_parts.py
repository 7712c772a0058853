"""The forward of a block drafter's layers, over products of the lean engine or over torch's modules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.errors import ConfigError
from specbench.models.heads.draft_layers import BlockLayer, split_heads
from specbench.models.lean.layers import PLAIN_ELEMENTWISE, Map, Rope, unsupported_layers
from specbench.models.lean.network import HeadNorm, RMSNorm
from specbench.models.products import product_of

HeadsNorm = Callable[[Tensor], Tensor]  # norms the query and key heads of (..., heads, d), not the values


class BlockModules(Protocol):
    """The modules of a head that parts are built from, and one of its weights."""

    fc: nn.Linear
    hidden_norm: LlamaRMSNorm
    decoder_layers: Sequence[BlockLayer]
    norm: LlamaRMSNorm
    lm_head: nn.Linear | None
    rotary: LlamaRotaryEmbedding

    @property
    def parameter(self) -> Tensor: ...


class Building(NamedTuple):
    """How parts are built: products of linear layers, norms, norms of heads, and a layer's own copy of its weights."""

    product: Callable[[Sequence[nn.Module]], Map]
    norm: Callable[[Any], Map]
    heads_norm: Callable[[Tensor, Tensor, tuple[int, int]], HeadsNorm]
    own: Callable[[nn.Linear], nn.Module]


@dataclass(frozen=True, kw_only=True)
class LayerParts:
    """A layer's products and norms. `kv` and `key_norm` are those of entries of the context."""

    kv: Map
    qkv: Map
    out: Map
    up: Map
    down: Map
    norm: Map
    norm_mlp: Map
    head_norm: HeadsNorm | None
    key_norm: HeadsNorm | None

    def context(self, entries: Tensor, parts: "BlockParts") -> Tensor:
        """Return keys, not rotated yet, then values (..., 2 kv heads, d) of entries (..., H)."""
        both = split_heads(self.kv(entries), parts.dim)
        return both if self.key_norm is None else self.key_norm(both)


@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """A head's products and norms: as the lean engine computes them, or as torch's modules, which have gradients."""

    heads: int
    kv_heads: int
    dim: int
    fc: Map
    context_norm: Map
    norm: Map
    layers: Sequence[LayerParts]
    lm_head: Map | None
    rope: Rope

    @classmethod
    def packed(cls, head: BlockModules, config: LlamaConfig) -> "BlockParts":
        """Return the lean engine's parts. `config` is that of the layers. Raises ConfigError if they are not supported."""
        if reason := unsupported_layers(config, "block drafter"):
            raise ConfigError(reason)
        eps = config.rms_norm_eps

        def heads_norm(query: Tensor, key: Tensor, counts: tuple[int, int]) -> HeadsNorm:
            norm, count = HeadNorm(query, key, counts, eps), sum(counts)

            def normed(heads: Tensor) -> Tensor:
                norm(heads[..., :count, :])
                return heads

            return normed

        return cls._built(
            head, config, Building(product_of, lambda module: RMSNorm(module.weight, eps), heads_norm, _copied)
        )

    @classmethod
    def plain(cls, head: BlockModules, config: LlamaConfig) -> "BlockParts":
        """Return torch's modules."""
        eps = config.rms_norm_eps

        def product(modules: Sequence[nn.Module]) -> Map:
            return lambda x: torch.cat([module(x) for module in modules], -1)

        def heads_norm(query: Tensor, key: Tensor, counts: tuple[int, int]) -> HeadsNorm:
            weight, count = torch.cat([query.expand(counts[0], -1), key.expand(counts[1], -1)]), sum(counts)

            def normed(heads: Tensor) -> Tensor:
                first = F.rms_norm(heads[..., :count, :], heads.shape[-1:], None, eps) * weight
                return torch.cat([first, heads[..., count:, :]], -2)

            return normed

        return cls._built(head, config, Building(product, lambda module: module, heads_norm, lambda linear: linear))

    @classmethod
    def _built(cls, head: BlockModules, config: LlamaConfig, how: Building) -> "BlockParts":
        return cls(
            heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, dim=config.head_dim,
            fc=how.product([head.fc]), context_norm=how.norm(head.hidden_norm), norm=how.norm(head.norm),
            layers=[_layer(layer, config, how) for layer in head.decoder_layers],
            lm_head=None if head.lm_head is None else how.product([head.lm_head]), rope=Rope(head.rotary, head.parameter),
        )  # fmt: skip

    def entries(self, states: Tensor) -> Tensor:
        """Return the entries (..., H) of the context of tokens with these states of the base (..., m H)."""
        return self.context_norm(self.fc(states))

    def forward(self, x: Tensor, attend: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return what the LM head reads (..., rows, H) of the input (..., rows, H).

        `attend` turns the heads (..., rows, queries then keys then values, d) of a layer, not rotated yet, into what the
        queries have seen, (..., rows, heads * d).
        """
        for i, layer in enumerate(self.layers):
            heads = split_heads(layer.qkv(layer.norm(x)), self.dim)
            if layer.head_norm is not None:
                heads = layer.head_norm(heads)
            x = x + layer.out(attend(i, heads))
            x = x + layer.down(PLAIN_ELEMENTWISE.gate(layer.up(layer.norm_mlp(x))))
        return self.norm(x)


def _layer(layer: BlockLayer, config: LlamaConfig, how: Building) -> LayerParts:
    attention, mlp, head_norm, key_norm = layer.self_attn, layer.mlp, None, None
    if attention.q_norm is not None and attention.k_norm is not None:
        query, key = attention.q_norm.weight, attention.k_norm.weight
        head_norm = how.heads_norm(query, key, (config.num_attention_heads, config.num_key_value_heads))
        key_norm = how.heads_norm(key, key, (0, config.num_key_value_heads))
    return LayerParts(
        kv=how.product([how.own(attention.k_proj), how.own(attention.v_proj)]),
        qkv=how.product([attention.q_proj, attention.k_proj, attention.v_proj]), out=how.product([attention.o_proj]),
        up=how.product([mlp.gate_proj, mlp.up_proj]), down=how.product([mlp.down_proj]),
        norm=how.norm(layer.input_layernorm), norm_mlp=how.norm(layer.post_attention_layernorm),
        head_norm=head_norm, key_norm=key_norm,
    )  # fmt: skip


def _copied(linear: nn.Linear) -> nn.Linear:
    """Return a layer with weights of its own, which a second product can pack."""
    copied = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    copied.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=False)
    if linear.bias is not None:
        copied.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=False)
    return copied
