"""Products of a few rows with the matrix of a linear layer: which kernel multiplies, and how the matrix is stored.

Decoding reads every weight once per forward, so a product should take no longer than reading its matrix, for one row as for a
block. On a CPU, torch's kernels take longer: one row reaches a fourth to four fifths of the read bandwidth, depending on
shape and processor, and blocks cost several times as much.

- On an x86-64 CPU, matrices in float32 and bfloat16 are stored in panels, for the kernels of `specbench/kernels/`.
- Without these kernels, float32 matrices on a CPU are stored transposed, (in, out), which is faster for one row.
- All other matrices, for example on a GPU, are views of the loaded weights.

The choice depends on the device, the dtype and `kernels.rule()`, never on a timing at run time, so that token ids are
reproducible.

Weights that are always multiplied together are concatenated, and the loaded model's own weights become views of the result.
When a matrix is stored in panels, the original weights are released; they are unpacked if transformers' own module is used.
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specbench.kernels import Kernels, MatrixStruct, kernels
from specbench.machine.memory import use_huge_pages

ALIGNMENT = 64  # bytes, of a matrix in a block
PANELED = (torch.float32, torch.bfloat16)  # dtypes of matrices that the kernels multiply


class Product(Protocol):
    """A linear layer."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that its input must have; None for any."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, in) -> (n, out)."""

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual (n, out) plus the product of x (n, in). The residual may be overwritten."""


def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels | None:
    """Return the kernels that multiply matrices of this dtype on a device; None if torch does."""
    return kernels() if device.type == "cpu" and dtype in PANELED else None


class KernelProduct:
    """A product by `specbench/kernels/` with a matrix in panels. `dtype` is the input's dtype; None for any."""

    def __init__(self, kernels: Kernels, struct: MatrixStruct, dtype: torch.dtype | None) -> None:
        self.struct, self.dtype, self.outputs, self.inputs = struct, dtype, int(struct.outputs), int(struct.inputs)
        self._product, self._level = kernels.library.specbench_product, kernels.level
        self._matrix = ctypes.pointer(struct)

    def multiply(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """Return x (n, in) times the matrix, plus a residual (n, out) of its dtype if there is one: (n, out)."""
        assert x.shape == (len(x), self.inputs) and x.device.type == "cpu", (x.shape, x.device)
        x, n = x.contiguous(), x.shape[0]
        if residual is not None:
            residual = residual.contiguous()
        out = x.new_empty(n, self.outputs)
        self._product(
            self._level, self._matrix, x.data_ptr(), n, None if residual is None else residual.data_ptr(),
            out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return out


class Panels(KernelProduct):
    """A matrix (out, in) in panels, (panels, in, width): see `in_panels`.

    Gradients with respect to the input are computed with an unpacked copy, made for each call.
    """

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None = None) -> None:
        """Copy weight (out, in) into panels."""
        self.bias = None if bias is None else bias.float()
        self.panels, (outputs, inputs) = in_panels(weight, kernels.width), weight.shape
        pointers = addresses(self.panels, self.bias, None, None)
        struct = MatrixStruct(*pointers, inputs, outputs, inputs, 8 * weight.dtype.itemsize)
        super().__init__(kernels, struct, weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():  # the kernels have no derivative
            return F.linear(x, self.unpacked(), None if self.bias is None else self.bias.to(x.dtype))
        assert x.dtype == self.dtype, x.dtype
        return self.multiply(x, None)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        if residual.dtype != self.dtype or x.requires_grad:
            return residual + self(x)
        return self.multiply(x, residual)

    def unpacked(self) -> Tensor:
        """Return the matrix as (out, in)."""
        width = self.panels.shape[2]
        out = self.panels.new_empty(self.outputs, self.inputs)
        for at, panel in enumerate(self.panels):
            columns = (
                panel.view(-1, width // 2, 2).transpose(1, 2).flatten(1) if self.dtype == torch.bfloat16 else panel
            )
            rows = out[at * width : (at + 1) * width]
            rows.copy_(columns[:, : len(rows)].t())
        use_huge_pages(out.data_ptr(), out.nbytes)
        return out


def in_panels(matrix: Tensor, width: int) -> Tensor:
    """Return a matrix (out, k) in panels of `width` outputs, (panels, k, width); the last panel is padded with zeros.

    A panel holds weights in the order in which the kernel uses them: for each input, one weight per output. It is read once,
    in order, while its `width` sums stay in registers. The kernels' width is 16 or 32. With a width of 4, a matrix w of 6
    outputs and 2 inputs becomes

        panel 0:  w[0,0] w[1,0] w[2,0] w[3,0]   w[0,1] w[1,1] w[2,1] w[3,1]
        panel 1:  w[4,0] w[5,0]   0      0      w[4,1] w[5,1]   0      0

    In bfloat16, outputs j and j + width / 2 of a panel are neighbors: w[0,0] w[2,0] w[1,0] w[3,0]. Two weights share a word
    of 32 bits, and bfloat16 is the upper half of a float32. So the kernel gets outputs 0 .. width / 2 - 1 by shifting all
    words and the other half by masking them; each half is a vector of consecutive outputs.
    """
    outputs, k = matrix.shape
    whole, rest = divmod(outputs, width)
    block = _block.get()
    panels = (matrix.new_empty if block is None else block.new)((whole + bool(rest), k, width), dtype=matrix.dtype)
    panels[:whole] = matrix[: whole * width].reshape(whole, width, k).transpose(1, 2)
    if rest:
        panels[whole] = 0
        panels[whole, :, :rest] = matrix[whole * width :].t()
    for panel in panels if matrix.dtype == torch.bfloat16 else ():
        panel.copy_(panel.view(k, 2, -1).transpose(1, 2).flatten(1))
    if block is None:
        use_huge_pages(panels.data_ptr(), panels.nbytes)  # pages that were never written cannot move
    return panels


class Block:
    """A buffer for the panels of a model. Each part of it is handed out once.

    A single matrix that is smaller than a huge page cannot be placed on one, but all matrices of a model together can. For a
    model of 25M parameters, this makes reading the weights a fifth faster.
    """

    def __init__(self, size: int) -> None:
        """Reserve `size` bytes, if the system allows it. Only bytes that are written take memory."""
        try:
            self._bytes = torch.empty(size, dtype=torch.uint8, device="cpu")
        except RuntimeError:  # more than the system allows in one allocation
            self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._used = 0

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor in the block, or elsewhere if the rest of the block is too small."""
        count = math.prod(shape) * dtype.itemsize
        end = self._used + count
        if end > len(self._bytes):
            return torch.empty(shape, dtype=dtype, device="cpu")
        part, self._used = self._bytes[self._used : end], -(-end // ALIGNMENT) * ALIGNMENT
        return part.view(dtype).view(*shape)

    def use_huge_pages(self) -> None:
        """Move the written part to huge pages."""
        use_huge_pages(self._bytes.data_ptr(), min(self._used, len(self._bytes)))


_block: ContextVar[Block | None] = ContextVar("block", default=None)


@contextmanager
def in_one_block(size: int) -> Iterator[None]:
    """Store the panels that are packed within this context in one block of `size` bytes."""
    block = Block(size)
    token = _block.set(block)
    try:
        yield
    finally:
        _block.reset(token)
        block.use_huge_pages()


def on_huge_pages(matrix: Tensor) -> Tensor:
    """Move a contiguous tensor on a CPU to huge pages, in place, and return it."""
    use_huge_pages(matrix.data_ptr(), matrix.nbytes)
    return matrix


def addresses(*tensors: Tensor | None) -> list[int | None]:
    """Return the addresses of contiguous tensors on a CPU; None stays None."""
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


@dataclass(frozen=True, slots=True)
class Plain:
    """A matrix (in, out) and a bias (out,), for torch.mm."""

    matrix: Tensor
    bias: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.matrix) if self.bias is None else torch.addmm(self.bias, x, self.matrix)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        if residual.dtype != self.matrix.dtype:  # T5 in half precision has a float32 residual stream
            return residual + self(x)
        if self.bias is not None:
            residual.add_(self.bias)
        return residual.addmm_(x, self.matrix)


@dataclass(frozen=True)
class Separate:
    """Layers with the same input that cannot be concatenated, since some of them are quantized."""

    layers: tuple[nn.Module, ...]
    dtype: None = None

    def __call__(self, x: Tensor) -> Tensor:
        outs = [layer(x) for layer in self.layers]
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual.add_(self(x))


@runtime_checkable
class HasProduct(Protocol):
    """A linear layer that has its own product, such as a quantized layer."""

    def joined(self, layers: Sequence[Any]) -> Product | None:
        """Return one product for layers of this class with one input, outputs concatenated; None to keep them apart."""


def product_of(modules: Iterable[nn.Module], shared: bool = False) -> Product:
    """Return one product for linear layers with the same input, their outputs concatenated.

    Quantized layers stay separate unless their class can join them. `shared` weights are read elsewhere too, for example if
    the LM head is also the embedding. They are never changed or released: a packed or transposed matrix is then a copy.
    """
    layers: list[Any] = list(modules)
    if all(isinstance(layer, HasProduct) for layer in layers):
        joined: Product | None = layers[0].joined(layers)
        if joined is not None:
            return joined
    if not all(map(is_linear, layers)):
        return Separate(tuple(layers))
    weights = [_weight(layer) for layer in layers]
    whole = weights[0] if len(layers) == 1 else torch.cat(weights)  # (outs, in)
    bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
    if found := kernels_for(whole.device, whole.dtype):
        product = Panels(found, whole, bias)
        if not shared:
            for layer in layers:
                layer.weight.data = whole.new_empty(0)
            _on_use(layers, lambda: _set_weights(layers, product.unpacked()))
        return product
    # With (in, out) in memory, multiplying one row in float32 on a CPU is a fifth faster, also in transformers' own modules.
    # For a shared matrix this is not worth a copy.
    transposed = whole.device.type == "cpu" and whole.dtype == torch.float32 and not shared
    matrix = whole.t().contiguous() if transposed else whole.t()
    if whole.device.type == "cpu" and not shared and matrix.data_ptr() == weights[0].data_ptr():
        matrix = matrix.clone()  # the weight may be a view of a mapped file, which would stay resident as a whole
    if not shared:
        _set_weights(layers, matrix.t())
    if bias is not None:
        parts = torch.split(bias, [len(weight) for weight in weights])
        for layer, part in zip(layers, parts, strict=True):
            layer.bias.data = part
    return Plain(matrix, bias)


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
    """Return the products of a module's experts, whose matrices are parameters (experts, out, in) with these names."""
    if not module.get_parameter(names[0]).numel():
        module.state_dict()  # its hook unpacks
    weights = [module.get_parameter(name) for name in names]
    found = kernels_for(weights[0].device, weights[0].dtype)
    if found is None:
        # Keep transformers' layout: another one would change the last bits of its outputs
        for weight in weights:
            weight.data = weight.data.clone()
        return [[Plain(matrix.t(), None) for matrix in weight.data] for weight in weights]
    packed = [[Panels(found, matrix) for matrix in weight.data] for weight in weights]
    for weight in weights:
        weight.data = weight.data.new_empty(0)

    def restore() -> None:
        for weight, products in zip(weights, packed, strict=True):
            weight.data = torch.stack([product.unpacked() for product in products])

    _on_use([module], restore)
    return [list(products) for products in packed]


def _on_use(modules: Sequence[Any], restore: Callable[[], None]) -> None:
    """Call `restore` before the first forward or state dict of modules whose weights were freed.

    A copy of such a module has neither weights nor the packed matrix, so for a copy the hooks raise RuntimeError.
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
