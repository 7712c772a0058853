"""Products of a few rows with the matrix of a linear layer: which kernel multiplies, and how the matrix is stored.

Speculation pays if a block of tokens costs little more than one token. On a CPU, MKL's float32 product of five rows costs
three to five times as much as that of one row; oneDNN's, with a matrix that is packed once, costs about as much as one
row, but its call takes longer. The rule is in `is_packed` and `Packed`. It depends on the shape of the matrix, the dtype, the
number of rows and the processor's instructions, never on a timing at run time, so that token ids are reproducible.

- On an x86-64 CPU, large matrices in float32 and bfloat16 are stored packed. oneDNN reads a matrix that the caches do not
  hold faster for four rows than for one, so smaller blocks are padded with zeros.
- All other matrices in float32 on a CPU are stored transposed, (in, out), but for those of experts, which keep their layout.
  The rest are views of the loaded weights.
- Of these, the larger ones are stored packed as well, for blocks of four rows and more. oneDNN's call takes 11 to 13 us, as
  long as a whole product of smaller matrices or fewer rows.

The limits were measured on two AMD EPYC with AVX-512, of families 25 and 26, at one and two threads (docs/engines.md), and on
no other processor. With the second copy, a block of five tokens of the tiny target takes 17 % less time on family 26.

Weights that are always multiplied together are concatenated. The loaded model's own weights become views of the result. The
weights of a matrix that is only stored packed are released, and unpacked when transformers' own module is used.
"""

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specbench.machine.memory import use_huge_pages

LARGE = 1 << 18  # elements of a matrix that the caches do not hold
LEAST_PACKED = {
    torch.float32: LARGE,
    torch.bfloat16: 1 << 15,
}  # elements from which on packing saves more than it costs
FULL_BLOCK = 4  # rows for which oneDNN reads a large matrix fastest
LEAST_FOR_BLOCKS = 3 << 15  # elements of a float32 matrix from which on it has a packed copy for blocks
BLOCK = 4  # rows from which on that copy is used

_mkldnn: Any = torch.ops.mkldnn


class Product(Protocol):
    """A linear layer."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that its input must have; None for any."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, in) -> (n, out)."""

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual (n, out) plus the product of x (n, in). The residual may be overwritten."""


def is_packed(device: torch.device, dtype: torch.dtype, numbers: int) -> bool:
    """Return whether a matrix with this many numbers is stored packed."""
    return can_pack(device, dtype) and numbers >= LEAST_PACKED[dtype]


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether oneDNN has fast products for matrices of this dtype on this processor."""
    if device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64") or not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(_mkldnn._is_mkldnn_bf16_supported()))


class Packed:
    """A matrix in oneDNN's layout. Gradients with respect to its input come from an unpacked copy, made for each call."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Copy weight (out, in) into that layout."""
        self.bias, self.dtype = bias, weight.dtype
        self.matrix: Tensor = _mkldnn._reorder_linear_weight(weight.contiguous(), None)
        use_huge_pages(_mkldnn.data_ptr(self.matrix), _mkldnn._nbytes(self.matrix))
        self._rows = FULL_BLOCK - 1 if weight.numel() >= LARGE else 0  # blocks up to this size are padded
        self._padding = weight.new_zeros(self._rows, weight.shape[1])  # (rows, in)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:  # oneDNN's product has no derivative in torch
            return F.linear(x, self.matrix.to_dense(), self.bias)
        n = x.shape[0]
        if n <= self._rows:
            x = torch.cat([x, self._padding[n - 1 :]])
        out: Tensor = _mkldnn._linear_pointwise(x, self.matrix, self.bias, "none", [], "")
        return out[:n]

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        if residual.dtype != self.dtype:
            return residual + self(x)
        if x.shape[0] <= self._rows:
            return residual.add_(self(x))
        out: Tensor = _mkldnn._linear_pointwise.binary(x, residual, self.matrix, self.bias, "add")
        return out


@dataclass(frozen=True, slots=True)
class Plain:
    """A matrix (in, out) and a bias (out,), for torch.mm. Blocks of BLOCK rows and more may have a packed copy."""

    matrix: Tensor
    bias: Tensor | None
    block: Packed | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    def __call__(self, x: Tensor) -> Tensor:
        if self.block is not None and x.shape[0] >= BLOCK:  # faster than len()
            return self.block(x)
        return torch.mm(x, self.matrix) if self.bias is None else torch.addmm(self.bias, x, self.matrix)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        if residual.dtype != self.matrix.dtype:  # T5 in half precision has a float32 residual stream
            return residual + self(x)
        if self.block is not None and x.shape[0] >= BLOCK:
            return self.block.added(residual, x)
        if self.bias is not None:
            residual.add_(self.bias)
        return residual.addmm_(x, self.matrix)


@dataclass(frozen=True)
class Separate:
    """Layers of one input that cannot be concatenated, since some of them are quantized."""

    layers: tuple[nn.Module, ...]
    dtype: None = None

    def __call__(self, x: Tensor) -> Tensor:
        outs = [layer(x) for layer in self.layers]
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual.add_(self(x))


def product_of(modules: Iterable[nn.Module], shared: bool = False) -> Product:
    """Return the product of linear layers of one input, their outputs concatenated. Quantized layers stay separate.

    `shared` weights are read elsewhere too, as those of an LM head that is also the embedding. They are never changed or
    released, so what is packed or transposed is a copy.
    """
    layers: list[Any] = list(modules)
    if not all(map(is_linear, layers)):
        return Separate(tuple(layers))
    weights = [_weight(layer) for layer in layers]
    whole = weights[0] if len(layers) == 1 else torch.cat(weights)  # (outs, in)
    bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
    if is_packed(whole.device, whole.dtype, whole.numel()):
        product = Packed(whole, bias)
        if not shared:
            for layer in layers:
                layer.weight.data = whole.new_empty(0)
            _on_use(layers, lambda: _set_weights(layers, _unpacked(product)))
        return product
    # In the order in which a single row is multiplied, which is a fifth faster in float32 on a CPU, also for transformers.
    # A large shared matrix is not worth its copy.
    transposed = whole.device.type == "cpu" and whole.dtype == torch.float32 and not (shared and whole.numel() >= LARGE)
    matrix = whole.t().contiguous() if transposed else whole.t()
    if whole.device.type == "cpu" and not shared and matrix.data_ptr() == weights[0].data_ptr():
        matrix = matrix.clone()  # the weight may be a view of a file, all of which would stay resident
    if not shared:
        _set_weights(layers, matrix.t())
    if bias is not None:
        parts = torch.split(bias, [len(weight) for weight in weights])
        for layer, part in zip(layers, parts, strict=True):
            layer.bias.data = part
    return Plain(matrix, bias, _for_blocks(whole, bias) if transposed else None)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer whose weight is a plain matrix."""
    return isinstance(module, nn.Linear | Conv1D)


def _weight(layer: Any) -> Tensor:
    """Return the weight of a linear layer, (out, in). Unpacks it first if its storage was released."""
    if layer.weight.numel() == 0:
        layer.state_dict()  # its hook unpacks
    weight: Tensor = layer.weight.data
    return weight.t() if isinstance(layer, Conv1D) else weight


def _set_weights(layers: Sequence[Any], whole: Tensor) -> None:
    """Make the weights of linear layers views of a concatenated matrix (outs, in)."""
    at = 0
    for layer in layers:
        size = layer.nf if isinstance(layer, Conv1D) else layer.out_features
        part = whole[at : at + size]
        layer.weight.data = part.t() if isinstance(layer, Conv1D) else part
        at += size


def expert_products(module: nn.Module, names: Sequence[str]) -> list[list[Product]]:
    """Return the products of the experts that a module holds in parameters with these names, (experts, out, in) each."""
    if not module.get_parameter(names[0]).numel():
        module.state_dict()  # its hook unpacks
    weights = [module.get_parameter(name) for name in names]
    if not all(is_packed(weight.device, weight.dtype, weight[0].numel()) for weight in weights):
        # transformers' layout, since another one would change the last bits of its outputs
        for weight in weights:
            weight.data = weight.data.clone()
        return [[Plain(matrix.t(), None, _for_blocks(matrix, None)) for matrix in weight.data] for weight in weights]
    packed = [[Packed(matrix) for matrix in weight.data] for weight in weights]
    for weight in weights:
        weight.data = weight.data.new_empty(0)

    def restore() -> None:
        for weight, products in zip(weights, packed, strict=True):
            weight.data = torch.stack(list(map(_unpacked, products)))

    _on_use([module], restore)
    return [list(products) for products in packed]


def _for_blocks(matrix: Tensor, bias: Tensor | None) -> Packed | None:
    """Return a packed copy of a float32 matrix (out, in) if it pays for blocks."""
    pays = matrix.dtype == torch.float32 and matrix.numel() >= LEAST_FOR_BLOCKS
    return Packed(matrix, bias) if pays and can_pack(matrix.device, matrix.dtype) else None


def _unpacked(product: Packed) -> Tensor:
    """Return a packed matrix as (out, in)."""
    whole: Tensor = product.matrix.to_dense()
    use_huge_pages(whole.data_ptr(), whole.nbytes)
    return whole


def _on_use(modules: Sequence[Any], restore: Callable[[], None]) -> None:
    """Call `restore` before the first forward or state dict of modules whose weights were freed.

    The hooks raise RuntimeError for a copy of such a module, which has neither weights nor the packed matrix.
    """
    handles: list[Any] = []

    def called(module: nn.Module, *_: object) -> None:
        if module not in modules:
            raise RuntimeError("this module was copied while its weights were packed: call state_dict() before copying")
        for handle in handles:
            handle.remove()
        handles.clear()
        restore()

    for module in modules:
        handles.append(module.register_forward_pre_hook(called))
        handles.append(module.register_state_dict_pre_hook(called))
