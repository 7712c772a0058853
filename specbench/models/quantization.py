"""Weight-only quantization of loaded models: torchao rounds and scales; kernels of this package or of torch multiply.

Every linear layer except the LM head stores codes and scales instead of its matrix, if its number of inputs is a multiple of
a group size. Codes are integers, or with nf4 the numbers of quantiles. GPT-2 has no such layer. Kernels multiply in float32
or bfloat16; all other products are in the precision of their input. Embeddings and LM head keep full precision: the embedding
is a lookup table, the LM head determines the distribution directly, and often they are the same matrix. Values are rounded
to the nearest level without calibration.

- `int4`: 16 levels from the minimum to the maximum of 128 inputs and 0, or of 64 or 32 if only those divide the layer's
  width; scales and zeros are rounded to bfloat16. Kernels read four bits per weight: on a CPU in bfloat16 and float32, on a
  GPU from Ampere on in bfloat16. In any other precision a weight takes a byte, and the matrix is rebuilt for every product.
- `int8`: 256 levels around zero, one scale per row. A weight takes a byte. On a CPU a kernel reads the bytes; on a GPU the
  matrix is rebuilt for every product, which saves memory, not time.
- `int4-a8` and `int8-a8`: the same weights, and the input of every product is rounded to 8 bits, as in W4A8 and W8A8, and as
  llama.cpp does with Q4_0 and Q8_0. Each row is rounded in blocks of 128, 64 or 32 inputs, to 127 steps up to the largest.
  On a CPU a kernel multiplies integers. Elsewhere the rounded input is multiplied as numbers, which gives the same outputs
  and saves no time.
- `nf4`: 16 quantiles of a normal distribution, one scale per 64 inputs, and quantized scales (Dettmers et al. 2023), as
  torchao unpacks them for every product. It reproduces the outputs of nf4 kernels, not their speed.

On an x86-64 CPU, the kernels of `specbench/kernels/` multiply in float32. Without them, torch's kernels do. These are fast
for bfloat16 inputs only, and up to a hundred times slower for float32; so a float32 input is rounded to bfloat16, and the
output is converted back. Five rows take torch's kernels two to four times as long as one.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.data.hub import first_line
from specbench.errors import MissingAsset
from specbench.models.panel_codes import Codes, PanelCodes, QuantizedLinear
from specbench.models.products import kernels_for

PRECISIONS = {8: torch.float32, 4: torch.bfloat16}  # of scales and zeros in panels, by bits
GROUPS = {"int4": (128, 64, 32), "nf4": (64,)}  # inputs that share a scale; for int8, a whole row
ROUNDED_INPUTS = "a8"  # the kind for weights that are quantized already: only inputs are rounded
ROUNDED = "-a8"  # ending of the kinds whose products round their input to 8 bits
BLOCKS = (128, 64, 32)  # inputs of a row that are rounded together, at most those that share a scale
HELP = (
    "quantization needs torchao, which is not installed\n  help: pip install 'specbench[quantization]'; the bundled pair"
    " tiny-dequantized needs no torchao"
)
BLOCK = 256  # upper limit for the number of nf4 scales that share a scale


class Bytes(QuantizedLinear):
    """A weight is a signed byte times its group's scale, plus its group's zero; for any device and precision."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None

    def __init__(self, layer: Any, codes: Tensor, scale: Tensor, zero: Tensor | None = None) -> None:
        """Take codes (out, in); scale and zero (out, groups)."""
        super().__init__(layer)
        groups = scale.shape[1]
        self.register_buffer("codes", codes.t().contiguous().view(groups, -1, len(codes)))  # (groups, size, out)
        self.register_buffer("scale", scale.t().contiguous().unsqueeze(1))  # (groups, 1, out)
        self.register_buffer("zero", None if zero is None else zero.t().contiguous().unsqueeze(1))

    def product(self, x: Tensor) -> Tensor:
        matrix = self.codes.to(x.dtype).mul_(self.scale)
        if self.zero is not None:
            matrix.add_(self.zero)
        return torch.mm(x, matrix.flatten(0, 1))

    def rows(self, outputs: Tensor) -> Tensor:
        matrix = self.codes[:, :, outputs].float() * self.scale[:, :, outputs].float()  # (groups, size, n)
        if self.zero is not None:
            matrix = matrix + self.zero[:, :, outputs].float()
        return matrix.flatten(0, 1).t()


class ByteRows(QuantizedLinear):
    """A weight is a signed byte times its row's scale, for torch's kernel on a CPU."""

    codes: Tensor
    scale: Tensor
    ones: Tensor

    def __init__(self, layer: nn.Linear, codes: Tensor, scale: Tensor) -> None:
        """Take codes (out, in) and scale (out, 1)."""
        super().__init__(layer)
        self.register_buffer("codes", codes.contiguous())
        self.register_buffer("scale", scale.flatten().clone())
        # The kernel would round scales to bfloat16, which is coarser than eight bits
        self.register_buffer("ones", torch.ones(len(codes), dtype=torch.bfloat16))

    def product(self, x: Tensor) -> Tensor:
        return (torch._weight_int8pack_mm(x.to(torch.bfloat16), self.codes, self.ones) * self.scale).to(x.dtype)


class Tiles(QuantizedLinear):
    """Four bits per weight in the layout of torch's kernels, which a CUDA graph can record."""

    packed: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear, codes: Tensor, scale: Tensor, zero: Tensor) -> None:
        """Take codes (out, in), 0 to 15, where 8 represents zero; scale and zero (out, groups)."""
        groups = scale.shape[1]

        super().__init__(layer)
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
        scales = layer.weight.numel() // GROUPS["nf4"][0]
        self.packed = _to_nf4()(layer.weight.data, GROUPS["nf4"][0], math.gcd(BLOCK, scales))

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.packed.to(x.dtype))


def rounded_rows(x: Tensor, block: int) -> Tensor:
    """Return rows (n, in) that are rounded to 8 bits in blocks of inputs, as numbers: what the kernels multiply with."""
    blocks = x.float().view(len(x), -1, block)  # (n, blocks, block)
    top = blocks.abs().amax(-1, keepdim=True)
    factor = torch.where(top > 0.0, 127.0 / top, 0.0)
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


def layers(model: Any, kind: str) -> dict[str, nn.Linear]:
    """Return the layers that are quantized, by name: linear layers except the LM head, if a group size divides the inputs.

    GPT-2 has none, since its layers are of transformers' own class `Conv1D`.
    """
    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name: layer for name, layer in linear.items() if layer is not head and group_of(layer.in_features, kind)}


def group_of(inputs: int, kind: str) -> int:
    """Return how many inputs of a layer share a scale; 0 if no group size divides them."""
    if kind == f"int8{ROUNDED}":
        return inputs if inputs % BLOCKS[-1] == 0 else 0
    return next((size for size in GROUPS.get(kind.removesuffix(ROUNDED), (inputs,)) if inputs % size == 0), 0)


def sizes(model: Any, kind: str, itemsize: int) -> dict[int, int]:
    """Return the minimum bytes that a product reads of each quantized matrix, codes and scales, by the id of its weight.

    `itemsize` is the size of a scale in bytes; int4's scales and zeros have at most two bytes each. Empty if `kind` is empty.
    """
    bytes_by_weight: dict[int, int] = {}
    for layer in layers(model, kind).values() if kind else ():
        numbers = layer.weight.numel()
        groups = numbers // group_of(layer.in_features, kind)
        if kind == "nf4":
            bytes_by_weight[id(layer.weight)] = numbers // 2 + groups + groups // math.gcd(BLOCK, groups) * itemsize
        else:
            bytes_by_weight[id(layer.weight)] = (
                numbers // 2 + 2 * groups * min(itemsize, 2) if kind.startswith("int4") else numbers + groups * itemsize
            )
    return bytes_by_weight


def _fits_kernel(kind: str, outputs: int, inputs: int) -> bool:
    """Return whether torch's CPU kernel supports matrices of this shape; the int8 kernel reads past the end of others."""
    return outputs % 16 == 0 if kind == "int4" else inputs % 32 == 0


def quantization_method(config: Any) -> str:
    """Return the method that quantized a checkpoint before it was saved (gptq, awq, ...); empty if none did."""
    stored = stored_table(config)
    method = stored.get("quant_method", "a method that its config does not name") if stored else ""
    return str(getattr(method, "value", method))


def equivalent_kind(config: Any) -> str:
    """Return the kind whose size matches a checkpoint that transformers loads; empty if there is none."""
    stored = stored_table(config)
    bits = (
        stored.get("bits")
        or stored.get("w_bit")
        or (4 if stored.get("load_in_4bit") else 8 if stored.get("load_in_8bit") else 0)
    )
    return {4: "int4", 8: "int8"}.get(bits, "")


def placement(config: Any, device: torch.device) -> Table:
    """Return loading arguments for a checkpoint that is quantized already and cannot be moved later."""
    return {"device_map": {"": device}} if quantization_method(config) and device.type != "cpu" else {}


@contextmanager
def explained(role: str, source: str, config: Any) -> Iterator[None]:
    """Raise MissingAsset, one line with the library's name, if transformers lacks a library to load such a checkpoint."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ImportError, RuntimeError, ValueError) as error:
        if method := quantization_method(config):
            raise MissingAsset(f"model '{role}': {source} is quantized by {method}: {first_line(error)}") from None
        raise


def stored_table(config: Any) -> dict[str, Any]:
    """Return the checkpoint's quantization config as a table; empty if there is none."""
    stored = getattr(config, "quantization_config", None) or {}
    return dict(stored if isinstance(stored, dict) else stored.to_dict())


def quantize(model: Any, kind: str) -> None:
    """Replace a loaded model's linear layers with quantized ones, on the same device."""
    for name, layer in layers(model, kind).items():
        model.set_submodule(name, quantized(layer, kind))


@torch.no_grad()
def quantized(layer: nn.Linear, kind: str) -> QuantizedLinear:
    """Return the quantized form of a linear layer. Raises MissingAsset without torchao."""
    if kind == "nf4":
        return NormalFloat(layer)
    weights, plain = _codes(layer, kind.removesuffix(ROUNDED)), kind.removesuffix(ROUNDED)
    block = block_of(layer.in_features, kind)
    if found := kernels_for(layer.weight.device, layer.weight.dtype):
        return PanelCodes(layer, found.width, _in_precision(weights), block)
    has_kernel = _has_kernel(plain, layer.weight)
    if plain == "int4" and has_kernel:
        assert weights.zero is not None
        inner: QuantizedLinear = Tiles(layer, weights.codes, weights.scale, weights.zero)
    elif plain == "int8" and has_kernel:
        inner = ByteRows(layer, weights.codes, weights.scale)
    else:
        moved = weights.codes if plain == "int8" else (weights.codes.int() - 8).to(torch.int8)
        inner = Bytes(layer, moved, weights.scale, weights.zero)
    return RoundedInputs(layer, inner, block) if block else inner


def block_of(inputs: int, kind: str) -> int:
    """Return how many inputs of a row are rounded together by a kind of quantization; 0 if inputs are not rounded."""
    if not kind.endswith(ROUNDED):
        return 0
    group = group_of(inputs, kind)
    return next((size for size in BLOCKS if group and group % size == 0), 0)


def _codes(layer: nn.Linear, kind: str) -> Codes:
    """Return the quantized matrix of a layer, with scales and zeros in the weight's precision. Raises MissingAsset."""
    weight, mapping = layer.weight.data, torchao().MappingType
    if kind == "int8":
        codes, scale, _ = _rounded(weight, layer.in_features, mapping.SYMMETRIC, torch.int8, (-128, 127))
        return Codes(8, codes, scale)
    size = group_of(layer.in_features, kind)
    codes, scale, at_zero = _rounded(weight, size, mapping.ASYMMETRIC, torch.uint8, (0, 15))
    return Codes(4, codes, scale, (8 - at_zero) * scale)  # a weight is (code - 8) * scale + zero


def _in_precision(weights: Codes) -> Codes:
    """Return a quantized matrix with scales and zeros in the precision of panels."""
    precision = PRECISIONS[weights.bits]
    zero = None if weights.zero is None else weights.zero.to(precision)
    return replace(weights, scale=weights.scale.to(precision), zero=zero)


def _rounded(
    weight: Tensor, size: int, mapping: Any, kind: torch.dtype, levels: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes (out, in), and scale and the code of zero, (out, groups), in the weight's precision."""
    scale, at_zero = torchao().choose_qparams_affine(weight, mapping, (1, size), kind, *levels, eps=1e-6)
    codes = torchao().quantize_affine(weight, (1, size), scale, at_zero, kind, *levels)
    return codes, scale.view(len(weight), -1), at_zero.view(len(weight), -1).to(weight.dtype)


def _has_kernel(kind: str, weight: Tensor) -> bool:
    """Return whether torch has a kernel for a quantized form of this weight."""
    if kind == "int4" and len(weight) % 16:
        return False
    if weight.device.type == "cpu":
        return _fits_kernel(kind, *weight.shape) and weight.dtype in (torch.bfloat16, torch.float32)
    return (
        kind == "int4"
        and weight.device.type == "cuda"
        and weight.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(weight.device)[0] >= 8
    )


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
