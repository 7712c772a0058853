"""Decoder layers of Llama and of the architectures that followed it, over transformers' modules.

A layer is attention, then a gated MLP, both added to the residual stream. The architectures differ in their norms, in what
happens to queries and keys before they are rotated, in windows, and in a few factors. `Layers` is Llama's; an architecture
overrides what differs.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.network import RMSNorm
from specbench.models.lean.whole import whole_layers
from specbench.models.products import Product, product_of
from specbench.models.quantized_files.quantized_embedding import Lookup

SHAPES = 256  # shapes that a function may be compiled for; two models have more block sizes than torch's limit of 8
Map = Callable[[Tensor], Tensor]
STATIC_ROPES = ("default", "linear", "llama3", "yarn")  # types whose angles do not depend on the sequence's length
ATTENTION = ("full_attention", "sliding_attention")


class Elementwise(NamedTuple):
    """The elementwise functions of a layer, which torch.compile fuses for graphs.

    Fusion reduces rotary embeddings from three kernels to one, and the gate from two to one. Compiling takes seconds, so
    only graphs use it, which are captured before timing starts, and only on request.

    `rotate` rotates heads (n, heads, d) in place by cos and signed sin (n, 1, d). `gate` is SiLU of the first half
    times the second, (n, 2 m) -> (n, m).
    """

    rotate: Callable[[Tensor, Tensor, Tensor], None]
    gate: Callable[[Tensor], Tensor]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(swapped, sin)


def _gate(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate).mul_(up)


PLAIN_ELEMENTWISE = Elementwise(_rotate, _gate)


@functools.cache
def compiled_elementwise() -> Elementwise:
    """Return the compiled functions.

    Each is compiled when it is first called with a shape: once for one token, and once for any other number of tokens.
    """
    return Elementwise(torch.compile(_rotate, fullgraph=True), torch.compile(_gate, fullgraph=True))


@contextmanager
def with_more_compiled_shapes() -> Iterator[None]:
    """Allow as many compiled shapes as graphs have."""
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        yield


@dataclass(slots=True, kw_only=True)
class Layer:
    """One decoder layer.

    `adjust` changes queries and keys (n, heads, d) in place before they are rotated by the angles number `rope`; None leaves
    them as they are. `after` and `after_mlp` are applied to the outputs of attention and MLP before they are added to the
    residual stream. A mixture of experts has `experts` instead of `up` and `down`.
    """

    norm: Map
    qkv: Product  # queries, keys, values
    out: Product
    norm_mlp: Map
    bias: Bias
    up: Product | None = None  # gate, then up projection
    down: Product | None = None
    experts: Map | None = None
    adjust: Callable[[Tensor], None] | None = None
    rope: int | None = 0
    after: Map | None = None
    after_mlp: Map | None = None


class Layers:
    """All decoder layers of a model, its rotary angles and its final norm."""

    def __init__(self, inner: Any) -> None:
        c = self.config = inner.config
        self.kv_heads: int = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
        self.dim: int = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.heads: int = c.num_attention_heads
        self.like = Lookup(inner.get_input_embeddings()).like  # (any, hidden), for its type and device
        self.elementwise = PLAIN_ELEMENTWISE
        self.ropes = [Rope(angles, self.like) for angles in self.angles(inner)]
        self.layers = [self.layer(module, i) for i, module in enumerate(inner.layers)]
        self.norm = self.norm_of(inner.norm)
        self.whole = whole_layers(self) if type(self).gate is Layers.gate else None  # all layers in one call, on a CPU

    def angles(self, inner: Any) -> Sequence[Callable[..., Any]]:
        """Return transformers' functions of (like, positions) that compute cosines and sines, one per kind of rotation."""
        return [inner.rotary_emb]

    def norm_of(self, module: Any) -> Map:
        """Return a norm of the residual stream. An EAGLE head has an Identity in place of two of them."""
        return module if isinstance(module, nn.Identity) else RMSNorm(module.weight, self.config.rms_norm_eps)

    def layer(self, module: Any, index: int) -> Layer:
        """Return one layer over transformers' module."""
        experts = self.experts(module.mlp)
        norm, norm_mlp = self.norms(module)
        return Layer(
            norm=norm,
            qkv=product_of(self.qkv(module.self_attn)),
            out=product_of([module.self_attn.o_proj]),
            norm_mlp=norm_mlp,
            experts=experts,
            up=None if experts else product_of(self.up(module.mlp)),
            down=None if experts else product_of([module.mlp.down_proj]),
            bias=Bias(self.dim**-0.5, window_of(self.config, index)),
        )

    def norms(self, module: Any) -> tuple[Map, Map]:
        """Return what is applied to the inputs of attention and MLP."""
        return self.norm_of(module.input_layernorm), self.norm_of(module.post_attention_layernorm)

    def qkv(self, attention: Any) -> Sequence[nn.Module]:
        """Return the layers whose outputs are queries, keys and values, in this order."""
        return [attention.q_proj, attention.k_proj, attention.v_proj]

    def up(self, mlp: Any) -> Sequence[nn.Module]:
        """Return the layers whose outputs are the gate and the up projection, in this order."""
        return [mlp.gate_proj, mlp.up_proj]

    def experts(self, mlp: Any) -> Map | None:
        """Return a mixture of experts over transformers' module; None if it is a single MLP."""
        return None

    def gate(self, both: Tensor) -> Tensor:
        """Return the gated activation of (n, gate then up): (n, width)."""
        return self.elementwise.gate(both)

    def new_cache(self) -> Cache:
        return Cache(len(self.layers), self.kv_heads, self.dim, self.like.dtype, self.like.device)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Return the normalized output of the last layer, (n, hidden), for the input x (n, hidden) of the first."""
        if self.whole is not None and type(cache) is Cache and not x.requires_grad:
            return self.whole(x, cache)
        n, rotated = len(x), self.heads + self.kv_heads
        angles = [  # (cosines, sines), (n, 1, rotated dimensions) each
            [cache.rows(table).unsqueeze(1) for table in rope.until(cache.capacity)] for rope in self.ropes
        ]
        for i, layer in enumerate(self.layers):
            cache.tap(i, x)
            heads = layer.qkv(layer.norm(x)).view(n, -1, self.dim)  # queries, keys, values
            turned = heads[:, :rotated]
            if layer.adjust is not None:
                layer.adjust(turned)
            if layer.rope is not None:
                cos, sin = angles[layer.rope]
                width = cos.shape[-1]
                self.elementwise.rotate(turned if width == self.dim else turned[..., :width], cos, sin)
            seen = cache.attend(i, heads[:, : self.heads], heads[:, self.heads :], layer.bias)
            x = layer.out.added(x, seen) if layer.after is None else x.add_(layer.after(layer.out(seen)))
            read = layer.norm_mlp(x)
            if layer.experts is not None:
                x = x.add_(layer.experts(read))
                continue
            assert layer.up is not None and layer.down is not None
            wide = self.gate(layer.up(read))
            x = layer.down.added(x, wide) if layer.after_mlp is None else x.add_(layer.after_mlp(layer.down(wide)))
        return self.norm(x)


def window_of(config: Any, index: int) -> int | None:
    """Return the window of a layer's attention; None if it attends to every position."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    return window if kinds is None or kinds[index] == "sliding_attention" else None


def unsupported_layers(config: Any, name: str, activations: Sequence[str] = ("silu",)) -> str:
    """Return why layers of this configuration are not supported; empty if they are."""
    ropes = getattr(config, "rope_parameters", None) or {}
    tables = [table for table in ropes.values() if isinstance(table, dict)] or [ropes]
    for kind in (table.get("rope_type", "default") for table in tables):
        if kind not in STATIC_ROPES:
            return f"the lean engine has no rotary positions of type {kind}"
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in ATTENTION:
            return f"the lean engine has no layers of type {kind}"
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    return "" if activation in activations else f"the lean engine's {name} has no {activation}"


class Rope:
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


def gelu_gate(both: Tensor) -> Tensor:
    """Return the tanh approximation of GELU of the first half, times the second: (n, 2 m) -> (n, m)."""
    gate, up = both.chunk(2, -1)
    return F.gelu(gate, approximate="tanh").mul_(up)
