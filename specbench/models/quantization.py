"""Weight-only quantization of loaded models: torchao rounds and scales; kernels of this package or of torch multiply.

Every linear layer except the LM head stores codes and scales instead of its matrix, if its number of inputs is a multiple of
a group size. Codes are integers, or with nf4 the numbers of quantiles. GPT-2 has no such layer. Kernels multiply in float32
or bfloat16; all other products are in the precision of their input. Embeddings and LM head keep full precision: the embedding
is a lookup table, the LM head determines the distribution directly, and often they are the same matrix. Values are rounded
to the nearest level without calibration. `QuantizationKind` says which groups and levels a kind has. Every form below holds
the same codes, scales and zeros, so it stands for the same matrix.

- `int4`: 16 levels; scales and zeros are rounded to bfloat16. Kernels read four bits per weight: on a CPU in bfloat16 and
  float32, on a GPU from Ampere on in bfloat16, in groups of 32, 64 or 128. Elsewhere the matrix is rebuilt for every product.
- `int8`: 256 levels; scales and zeros are float32. A weight takes a byte. On a CPU a kernel reads the bytes; on a GPU the
  matrix is rebuilt for every product, which saves memory, not time.
- `a8`: the same weights, and the input of every product is rounded to 8 bits, as in W4A8 and W8A8, and as llama.cpp does with
  Q4_0 and Q8_0. Each row is rounded in blocks of 128, 64 or 32 inputs, to 127 steps up to the largest. On a CPU a kernel
  multiplies integers. Elsewhere the rounded input is multiplied as numbers, which gives the same outputs up to the rounding
  of the model's precision, and saves no time.
- `nf4`: 16 quantiles of a normal distribution, one scale per 64 inputs, and quantized scales (Dettmers et al. 2023), as
  torchao unpacks them for every product. It reproduces the outputs of nf4 kernels, not their speed.

On an x86-64 CPU, the kernels of `specbench/kernels/` multiply in float32. Without them, torch's kernels do: for `int4` in
groups of 32, 64 or 128, and for `int8` with one symmetric group per output. These are fast for bfloat16 inputs only, and up
to a hundred times slower for float32; so a float32 input is rounded to bfloat16, and the output is converted back. Five rows
take torch's kernels two to four times as long as one.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.config.quantization_kind import NF4_GROUP, NOT_QUANTIZED, QuantizationKind
from specbench.data.hub import first_line
from specbench.errors import MissingAsset, is_out_of_memory
from specbench.models.panel_codes import Codes, PanelCodes, QuantizedLinear
from specbench.models.products import kernels_for

PRECISIONS = {8: torch.float32, 4: torch.bfloat16}  # of scales and zeros, by bits
TILED = (32, 64, 128)  # inputs that share a scale in torch's kernels for 4 bits
LEAST = 1e-36  # the largest input of a block that is rounded to zeros, since 127 / it would overflow
HELP = (
    "quantization needs torchao, which is not installed\n  help: pip install 'specbench[quantization]'; the bundled pair"
    " tiny-dequantized needs no torchao"
)
BLOCK = 256  # upper limit for the number of nf4 scales that share a scale


class Rebuilt(QuantizedLinear):
    """Codes from which every product rebuilds the matrix; for any device and precision.

    A code of 8 bits takes a byte. Two codes of 4 bits share one: of the first and of the second half of a group.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None

    def __init__(self, layer: nn.Linear, weights: Codes) -> None:
        super().__init__(layer)
        scale, zero = weights.scale, weights.zero
        codes = weights.codes.t().reshape(scale.shape[1], -1, len(scale))  # (groups, size, out)
        self.bits, self.size = weights.bits, codes.shape[1]
        if self.bits == 4:
            first, second = F.pad(codes, (0, 0, 0, self.size % 2)).chunk(2, 1)
            codes = first | second << 4  # (groups, size / 2, out)
        self.register_buffer("codes", codes.contiguous())
        self.register_buffer("scale", scale.t().contiguous().unsqueeze(1))  # (groups, 1, out)
        self.register_buffer("zero", None if zero is None else zero.t().contiguous().unsqueeze(1))

    def product(self, x: Tensor) -> Tensor:
        # With zeros, the parts cancel, so their sum is rounded to x's dtype, not each part
        matrix = self._numbers(self.codes, x.dtype if self.zero is None else torch.float32)  # (groups, size, out)
        matrix.mul_(self.scale)
        if self.zero is not None:
            matrix = matrix.add_(self.zero).to(x.dtype)
        return torch.mm(x, matrix.flatten(0, 1))

    def _numbers(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return stored codes (groups, stored size, n) as numbers (groups, size, n), of which 0 stands for zero."""
        if self.bits == 8:
            return codes.to(dtype)
        return torch.cat([codes & 15, codes >> 4], 1)[:, : self.size].to(dtype).sub_(8)

    def rows(self, outputs: Tensor) -> Tensor:
        matrix = (
            self._numbers(self.codes[:, :, outputs], torch.float32) * self.scale[:, :, outputs].float()
        )  # (groups, size, n)
        if self.zero is not None:
            matrix = matrix + self.zero[:, :, outputs].float()
        return matrix.flatten(0, 1).t()


class ByteRows(QuantizedLinear):
    """A weight is a signed byte times its row's scale, for torch's kernel on a CPU."""

    codes: Tensor
    scale: Tensor
    ones: Tensor

    def __init__(self, layer: nn.Linear, weights: Codes) -> None:
        """Take codes of 8 bits with one group and no zeros."""
        super().__init__(layer)
        self.register_buffer("codes", weights.codes.contiguous())
        self.register_buffer("scale", weights.scale.flatten().clone())
        # The kernel would round scales to bfloat16, which is coarser than eight bits
        self.register_buffer("ones", torch.ones(layer.out_features, dtype=torch.bfloat16))

    def product(self, x: Tensor) -> Tensor:
        return (torch._weight_int8pack_mm(x.to(torch.bfloat16), self.codes, self.ones) * self.scale).to(x.dtype)


class Tiles(QuantizedLinear):
    """Four bits per weight in the layout of torch's kernels, which a CUDA graph can record, with zeros also if symmetric."""

    packed: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear, weights: Codes) -> None:
        """Take codes of 4 bits with groups of a size in TILED."""
        super().__init__(layer)
        codes, scale, groups = weights.codes, weights.scale, weights.scale.shape[1]
        zero = torch.zeros_like(scale) if weights.zero is None else weights.zero
        self.size = layer.in_features // groups
        if codes.device.type == "cpu":
            packed = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        else:
            packed = torch._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], self.size // 16)
        self.register_buffer("packed", packed)
        scales = torch.stack([scale, zero], -1).transpose(0, 1).to(torch.bfloat16)
        self.register_buffer("scales", scales.contiguous())  # (groups, out, 2)

    def product(self, x: Tensor) -> Tensor:
        kernel = torch._weight_int4pack_mm_for_cpu if x.device.type == "cpu" else torch._weight_int4pack_mm
        rows = x.to(torch.bfloat16).contiguous()
        return kernel(rows, self.packed, self.size, self.scales).to(x.dtype)


class NormalFloat(QuantizedLinear):
    """torchao's NF4 tensor, unpacked for every product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        scales = layer.weight.numel() // NF4_GROUP
        self.packed = _to_nf4()(layer.weight.data, NF4_GROUP, math.gcd(BLOCK, scales))

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.packed.to(x.dtype))


def rounded_rows(x: Tensor, block: int) -> Tensor:
    """Return rows (n, in) that are rounded to 8 bits in blocks of inputs, as numbers: what the kernels multiply with."""
    blocks = x.float().view(len(x), -1, block)  # (n, blocks, block)
    top = blocks.abs().amax(-1, keepdim=True)
    factor = torch.where(top > LEAST, 127.0 / top, 0.0)
    rounded = (blocks * factor).round() * (top / 127.0)  # (n, blocks, block)
    return rounded.view(x.shape).to(x.dtype)


class RoundedInputs(QuantizedLinear):
    """A quantized layer whose input is rounded to 8 bits."""

    def __init__(self, layer: Any, inner: QuantizedLinear, block: int) -> None:
        super().__init__(layer)
        self.inner, self.block = inner, block

    def rows(self, outputs: Tensor) -> Tensor:
        return self.inner.rows(outputs)

    def product(self, x: Tensor) -> Tensor:
        return self.inner.product(rounded_rows(x, self.block))


def layers(model: Any, kind: QuantizationKind) -> dict[str, nn.Linear]:
    """Return the layers that are quantized, by name: linear layers except the LM head, if a group size divides the inputs.

    GPT-2 has none, since its layers are of transformers' own class `Conv1D`.
    """
    return {name: layer for name, layer in linear_layers(model).items() if kind.group_of(layer.in_features)}


def linear_layers(model: Any) -> dict[str, nn.Linear]:
    """Return the linear layers of a model except the LM head, by name."""
    head = model.get_output_embeddings()
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }


@dataclass(frozen=True)
class MatrixBytes:
    """The bytes of a quantized matrix (out, in).

    `read` are its codes and scales, which a product reads at least. `rebuilt` are the bytes that a product writes and reads
    again on a GPU that has no kernel for its form, where the matrix is rebuilt in the model's precision; else 0.
    """

    read: int
    rebuilt: int


def sizes(model: Any, kind: QuantizationKind, dtype: torch.dtype) -> dict[int, MatrixBytes]:
    """Return the bytes of each quantized matrix by the id of its weight. Empty if `kind` quantizes no weights."""
    return {
        id(layer.weight): _bytes_of(layer, kind, dtype)
        for layer in (layers(model, kind).values() if kind.weights else ())
    }


def _bytes_of(layer: nn.Linear, kind: QuantizationKind, dtype: torch.dtype) -> MatrixBytes:
    numbers, size = layer.weight.numel(), kind.group_of(layer.in_features)
    groups = numbers // size
    if kind.weights == "nf4":
        read = numbers // 2 + groups + groups // math.gcd(BLOCK, groups) * dtype.itemsize
    else:
        per_group = PRECISIONS[kind.bits].itemsize * (1 if kind.symmetric else 2)
        read = numbers * kind.bits // 8 + groups * per_group
    has_tiles = _fits_tiles(kind.bits, size, layer.out_features) and dtype == torch.bfloat16 and kind.weights != "nf4"
    return MatrixBytes(read, 0 if has_tiles else 2 * numbers * dtype.itemsize)


def _fits_tiles(bits: int, group: int, outputs: int) -> bool:
    """Return whether torch's kernels for 4 bits support such a matrix."""
    return bits == 4 and group in TILED and outputs % 16 == 0


def quantization_method(config: Any) -> str:
    """Return the method that quantized a checkpoint before it was saved (gptq, awq, ...); empty if none did."""
    stored = stored_table(config)
    method = stored.get("quant_method", "a method that its config does not name") if stored else ""
    return str(getattr(method, "value", method))


def equivalent_kind(config: Any) -> QuantizationKind:
    """Return the kind whose size matches a checkpoint that transformers loads; NOT_QUANTIZED if there is none."""
    stored = stored_table(config)
    bits = (
        stored.get("bits")
        or stored.get("w_bit")
        or (4 if stored.get("load_in_4bit") else 8 if stored.get("load_in_8bit") else 0)
    )
    return {4: QuantizationKind("int4"), 8: QuantizationKind("int8")}.get(bits, NOT_QUANTIZED)


def placement(config: Any, device: torch.device) -> Table:
    """Return loading arguments for a checkpoint that is quantized already and cannot be moved later."""
    return {"device_map": {"": device}} if quantization_method(config) and device.type != "cpu" else {}


@contextmanager
def explained(role: str, source: str, config: Any) -> Iterator[None]:
    """Raise MissingAsset, one line with the library's name, if transformers lacks a library to load such a checkpoint."""
    try:
        yield
    except (ImportError, RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        if method := quantization_method(config):
            raise MissingAsset(f"model '{role}': {source} is quantized by {method}: {first_line(error)}") from None
        raise


def stored_table(config: Any) -> dict[str, Any]:
    """Return the checkpoint's quantization config as a table; empty if there is none."""
    stored = getattr(config, "quantization_config", None) or {}
    return dict(stored if isinstance(stored, dict) else stored.to_dict())


def quantize(model: Any, kind: QuantizationKind) -> None:
    """Replace a loaded model's linear layers with quantized ones, on the same device, and free their matrices in turn."""
    found = layers(model, kind)
    for name in [*found]:
        model.set_submodule(name, quantized(found.pop(name), kind))


@torch.no_grad()
def quantized(layer: nn.Linear, kind: QuantizationKind) -> QuantizedLinear:
    """Return the quantized form of a linear layer. Raises MissingAsset without torchao."""
    if kind.weights == "nf4":
        return NormalFloat(layer)
    weights, block = codes_of(layer.weight.data, kind), kind.block_of(layer.in_features)
    if found := kernels_for(layer.weight.device, layer.weight.dtype):
        return PanelCodes(layer, found.width, weights, block)
    if not block:
        return _form_of(weights, layer.weight)(layer, weights)
    # torch's kernels would round float32 inputs a second time
    form = Rebuilt if layer.weight.dtype == torch.float32 else _form_of(weights, layer.weight)
    return RoundedInputs(layer, form(layer, weights), block)


def codes_of(weight: Tensor, kind: QuantizationKind) -> Codes:
    """Return a matrix (out, in) in integers, with scales and zeros of the kind's precision. Raises MissingAsset."""
    mapping = torchao().MappingType.SYMMETRIC if kind.symmetric else torchao().MappingType.ASYMMETRIC
    half, size, precision = 2 ** (kind.bits - 1), kind.group_of(weight.shape[1]), PRECISIONS[kind.bits]
    integers, moved = (torch.int8, 0) if kind.symmetric else (torch.uint8, half)
    levels = (moved - half, moved + half - 1)
    scale, at_zero = torchao().choose_qparams_affine(weight, mapping, (1, size), integers, *levels, eps=1e-6)
    codes = torchao().quantize_affine(weight, (1, size), scale, at_zero, integers, *levels)  # (out, in)
    stored, dtype = (half, torch.uint8) if kind.bits == 4 else (0, torch.int8)
    codes = (codes.to(torch.int16) - moved + stored).to(dtype)
    is_zero = weight.view(len(weight), -1, size).eq(0).all(-1)  # (out, groups)
    scale = scale.view(is_zero.shape).masked_fill(is_zero, 0.0)  # groups of zeros add zero, without rounding
    moves = half - at_zero.view(is_zero.shape).float()  # from the code of zero to half of the levels
    zero = None if kind.symmetric else (moves * scale).to(precision)  # (out, groups)
    return Codes(kind.bits, codes, scale.to(precision), zero)


def _form_of(weights: Codes, weight: Tensor) -> type[Rebuilt] | type[ByteRows] | type[Tiles]:
    """Return how codes are stored for torch's products on the weight's device: for one of its kernels if it has one."""
    outputs, inputs = weights.codes.shape
    groups = weights.scale.shape[1]
    fits_tiles = _fits_tiles(weights.bits, inputs // groups, outputs)
    if weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32):
        # The kernel for 8 bits reads past the end of rows that are not a multiple of its step
        fits_rows = weights.bits == 8 and groups == 1 and weights.zero is None and inputs % 32 == 0
        return Tiles if fits_tiles else ByteRows if fits_rows else Rebuilt
    is_recent = weight.device.type == "cuda" and torch.cuda.get_device_capability(weight.device)[0] >= 8
    return Tiles if fits_tiles and is_recent and weight.dtype == torch.bfloat16 else Rebuilt


def torchao() -> Any:
    """Return torchao's quantization module, which takes seconds to import.

    Raises MissingAsset with installation help without it.
    """
    try:
        from torchao import quantization  # optional, and slow to import
    except ImportError:
        raise MissingAsset(HELP) from None
    return quantization


def _to_nf4() -> Any:
    """Return torchao's NF4 conversion, wherever its version has it."""
    if hasattr(torchao(), "to_nf4"):
        return torchao().to_nf4
    from torchao import dtypes  # its location before torchao 0.18

    return dtypes.to_nf4
