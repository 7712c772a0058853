"""All decoder layers of a model on a CPU in one call of `specbench/kernels/`, for layers of Llama's form.

In a model of a few million parameters, calls of torch's operators take most of a forward. One call of C++ replaces them. It
computes the same as `Layers.forward`, layer by layer, but sums in another order, so the last bits may differ. In bfloat16,
weights and the cache are rounded, and everything between them stays in float32.
"""

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specbench.kernels import ForwardStruct, Kernels, LayerStruct, MatrixStruct
from specbench.models.lean.cache import Cache
from specbench.models.lean.network import HeadNorm, RMSNorm
from specbench.models.products import KernelProduct, kernels_for

if TYPE_CHECKING:
    from specbench.models.lean.layers import Layer, Layers


ROWS = 256  # tokens of a prompt that the layers run on at once


class WholeLayers:
    """The decoder layers of a model for which `whole_layers` returns one."""

    def __init__(self, kernels: Kernels, layers: "Layers") -> None:
        self._kernels, self._layers = kernels, layers
        self._weights: list[Tensor] = []  # in float32, whose addresses the kernels have
        self._structs = (LayerStruct * len(layers.layers))(*map(self._struct, layers.layers))
        first, wide = layers.layers[0], layers.layers[0].down
        assert isinstance(wide, KernelProduct)
        weight, eps = _norm(layers.norm)
        self._forward: ForwardStruct = ForwardStruct(
            layers=self._structs, count=len(layers.layers), hidden=layers.like.shape[1], heads=layers.heads,
            kv_heads=layers.kv_heads, dim=layers.dim, wide=wide.inputs, norm=self._address(weight),
            eps=eps or _norm(first.norm_mlp)[1], is_bfloat16=layers.like.dtype == torch.bfloat16,
        )  # fmt: skip

    def __call__(self, x: Tensor, cache: Cache) -> Tensor:
        """Return the output (n, hidden) of the last layer for the input x (n, hidden) of the first, which is overwritten.

        Prompts are fed in parts of ROWS tokens, which gives the same bits with less scratch memory.
        """
        angles = self._layers.ropes[0].until(cache.capacity)
        cos, sin = (cache.rows(table).float().contiguous() for table in angles)  # (n, rotary)
        given, x = x.dtype, x.float().contiguous()
        out = torch.empty_like(x)
        kept = {layer: torch.empty_like(x) for layer in range(self._forward.count) if layer in cache.aux_layers}
        assert len(kept) == len(cache.aux_layers), "a tap that no layer writes"
        if cache.is_tree or len(x) <= ROWS:
            self._run(x, out, cache, (cos, sin), 0, kept)
        else:
            for first in range(0, len(x), ROWS):
                part = slice(first, first + ROWS)
                of_part = {layer: rows[part] for layer, rows in kept.items()}
                self._run(x[part], out[part], cache, (cos[part], sin[part]), first, of_part)
        for layer, rows in kept.items():
            cache.tap(layer, rows.to(given))
        return out.to(given)

    def _run(
        self, x: Tensor, out: Tensor, cache: Cache, angles: tuple[Tensor, Tensor], skipped: int, kept: dict[int, Tensor]
    ) -> None:
        """Run the layers on x (n, hidden), which follow `skipped` tokens of the same feed.

        The inputs of the layers in `kept` are written to their tensors (n, hidden).
        """
        forward = ForwardStruct.from_buffer_copy(self._forward)
        masks = [cache.mask(layer.bias).float() for layer in self._layers.layers] if cache.is_tree else []  # (n, total)
        pointers = (ctypes.c_void_p * len(masks))(*(mask.data_ptr() for mask in masks))
        forward.masks = ctypes.cast(pointers, ctypes.c_void_p) if masks else None
        forward.x, forward.out, forward.n = x.data_ptr(), out.data_ptr(), len(x)
        forward.first = cache.first + skipped
        forward.total = forward.first + len(x)
        forward.cache, forward.capacity = cache.storage.data_ptr(), cache.capacity
        (cos, sin), threads = angles, torch.get_num_threads()
        forward.cos, forward.sin, forward.rotary = cos.data_ptr(), sin.data_ptr(), cos.shape[-1]
        inputs = (ctypes.c_void_p * forward.count)(*(_address_in(kept, layer) for layer in range(forward.count)))
        forward.inputs = ctypes.cast(inputs, ctypes.c_void_p) if kept else None
        library, reference = self._kernels.library, ctypes.byref(forward)
        shared = x.new_empty(library.specbench_shared(reference))
        own = x.new_empty(threads * library.specbench_own(reference))
        forward.shared, forward.own = shared.data_ptr(), own.data_ptr()
        library.specbench_forward(self._kernels.level, reference, threads)

    def _struct(self, layer: "Layer") -> LayerStruct:
        """Return a layer as the kernels read it."""
        adjust = layer.adjust if isinstance(layer.adjust, HeadNorm) else None
        norms = _norm(layer.norm)[0], _norm(layer.norm_mlp)[0], adjust.weight if adjust else None
        return LayerStruct(
            *(_matrix(each) for each in (layer.qkv, layer.out, layer.up, layer.down)),
            *map(self._address, norms),
            layer.bias.scale, adjust.eps if adjust else 0.0, layer.rope is not None, layer.bias.window or 0,
        )  # fmt: skip

    def _address(self, weight: Tensor | None) -> int | None:
        """Return the address of a weight in float32, which is kept."""
        if weight is None:
            return None
        self._weights.append(weight.float().contiguous())
        return self._weights[-1].data_ptr()


def whole_layers(layers: "Layers") -> WholeLayers | None:
    """Return the layers as one call; None if one of them has another form, or if the machine has no kernels."""
    found = kernels_for(layers.like.device, layers.like.dtype)
    if found is None or len(layers.ropes) != 1:
        return None
    norms = [layers.norm, *(norm for layer in layers.layers for norm in (layer.norm, layer.norm_mlp))]
    known = all(isinstance(norm, nn.Identity) or type(norm) is RMSNorm for norm in norms)
    if not known or not all(_fits(layers, layer) for layer in layers.layers):
        return None
    epsilons = {norm.eps for norm in norms if isinstance(norm, RMSNorm)}
    return WholeLayers(found, layers) if len(epsilons) == 1 else None


def _fits(layers: "Layers", layer: "Layer") -> bool:
    """Return whether the kernels implement everything that a layer does besides its norms."""
    products = (layer.qkv, layer.out, layer.up, layer.down)
    plain = layer.after is None and layer.after_mlp is None and layer.bias.by_distance is None
    head_norm = layer.adjust is None or isinstance(layer.adjust, HeadNorm)
    if not plain or not head_norm or not all(isinstance(each, KernelProduct) for each in products):
        return False
    hidden, wide, seen = layers.like.shape[1], _matrix(layers.layers[0].down).inputs, layers.heads * layers.dim
    shapes = [(struct.inputs, struct.outputs) for struct in map(_matrix, products)]
    return shapes == [
        (hidden, seen + 2 * layers.kv_heads * layers.dim),
        (seen, hidden),
        (hidden, 2 * wide),
        (wide, hidden),
    ]


def _address_in(kept: dict[int, Tensor], layer: int) -> int | None:
    return kept[layer].data_ptr() if layer in kept else None


def _matrix(product: object) -> MatrixStruct:
    assert isinstance(product, KernelProduct)
    return product.struct


def _norm(norm: object) -> tuple[Tensor | None, float]:
    """Return the weight and the epsilon of a norm; without a weight for an Identity."""
    return (norm.weight.data, norm.eps) if isinstance(norm, RMSNorm) else (None, 0.0)
