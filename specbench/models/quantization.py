"""Floor 0: weight-only quantization of loaded models: torchao rounds and scales, torch multiplies.

Every linear layer but the LM head holds integers and scales in place of its matrix, and multiplies in the precision of what
comes in. Embeddings and LM head stay in full precision: one is looked up in, the other makes the law itself, and often they
are one matrix. Values are rounded to the nearest level; nothing is calibrated.

- `int4`: 16 levels from the least to the greatest of 128 inputs and 0, or of 64 or 32 where only those divide the layer's
  width. In bfloat16 torch's kernels read four bits a weight, on a CPU and on a GPU from Ampere on; in any other precision a
  weight is a byte, and the matrix is made again for every product.
- `int8`: 256 levels around zero, a scale a row. A weight is a byte, and the matrix is made again for every product: it saves
  memory, not time.
- `nf4`: 16 quantiles of a normal law, a scale for 64 inputs, and the scales quantized in turn (Dettmers et al. 2023), as
  torchao unpacks them for every product: for its law, not for its speed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.data.hub import first_line
from specbench.errors import MissingAsset

GROUPS = {"int4": (128, 64, 32), "nf4": (64,)}  # inputs that share a scale; of int8, a row's all do
HELP = "quantization needs torchao, which is not here\n  help: pip install 'specbench[quantization]'"
BLOCK = 256  # nf4's scales that share a scale of their own, at most


class QuantizedLinear(nn.Module):
    """A linear layer over a quantized matrix: x (..., in) -> (..., out), in x's precision.

    Not torchao's own tensors: a product through one costs tens of microseconds of Python, and a forward has hundreds.
    """

    weight = None  # transformers' T5 asks its layers for one

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias = layer.bias

    def product(self, x: Tensor) -> Tensor:
        """(n, in) -> (n, out), without the bias."""
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, x.shape[-1]))
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], -1)


class Bytes(QuantizedLinear):
    """A weight is a signed byte times its group's scale, plus its group's zero: on any device, in any precision."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None

    def __init__(self, layer: nn.Linear, codes: Tensor, scale: Tensor, zero: Tensor | None = None) -> None:
        """codes (out, in); scale and zero (out, groups)."""
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


class Tiles(QuantizedLinear):
    """Four bits a weight, laid out as torch's own bfloat16 kernels read them: plain launches, which a CUDA graph can hold."""

    packed: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear, codes: Tensor, scale: Tensor, zero: Tensor) -> None:
        """codes (out, in), 0 to 15, of which 8 stands for zero; scale and zero (out, groups)."""
        super().__init__(layer)
        self.size = layer.in_features // scale.shape[1]
        if codes.device.type == "cpu":
            packed = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        else:
            packed = torch._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], self.size // 16)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", torch.stack([scale, zero], -1).transpose(0, 1).contiguous())  # (groups, out, 2)

    def product(self, x: Tensor) -> Tensor:
        kernel = torch._weight_int4pack_mm_for_cpu if x.device.type == "cpu" else torch._weight_int4pack_mm
        return kernel(x.contiguous(), self.packed, self.size, self.scales)


class NormalFloat(QuantizedLinear):
    """torchao's NF4 tensor, unpacked for every product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        scales = layer.weight.numel() // GROUPS["nf4"][0]
        self.packed = _to_nf4()(layer.weight.data, GROUPS["nf4"][0], math.gcd(BLOCK, scales))

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.packed.to(x.dtype))


def layers(model: Any, kind: str) -> dict[str, nn.Linear]:
    """The layers that are quantized, by name: those but the LM head whose width a group divides; the others stay as they are.

    None of GPT-2's are, which transformers stores in a class of its own.
    """
    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name: each for name, each in linear.items() if each is not head and group_of(each.in_features, kind)}


def group_of(inputs: int, kind: str) -> int:
    """How many inputs of a layer share a scale; 0 where no group divides them."""
    return next((size for size in GROUPS.get(kind, (inputs,)) if inputs % size == 0), 0)


def sizes(model: Any, kind: str, itemsize: int) -> dict[int, int]:
    """Bytes that a product has to read at least of every quantized matrix, by the id of its weight: bits, and scales.

    `itemsize` is the bytes of a scale, and of the zero that int4 has beside it. No kind is no such matrix.
    """
    found: dict[int, int] = {}
    for layer in layers(model, kind).values() if kind else ():
        numbers = layer.weight.numel()
        groups = numbers // group_of(layer.in_features, kind)
        if kind == "nf4":
            found[id(layer.weight)] = numbers // 2 + groups + groups // math.gcd(BLOCK, groups) * itemsize
        else:
            found[id(layer.weight)] = (
                numbers // 2 + 2 * groups * itemsize if kind == "int4" else numbers + groups * itemsize
            )
    return found


def stored_by(config: Any) -> str:
    """The method that a checkpoint was quantized with before it was saved: gptq, awq, bitsandbytes; empty where none was."""
    told = _stored(config)
    method = told.get("quant_method", "a method that its config does not name") if told else ""
    return str(getattr(method, "value", method))


def stored_as(config: Any) -> str:
    """The kind here that is as large as what such a checkpoint holds; empty where there is none."""
    told = _stored(config)
    bits = (
        told.get("bits")
        or told.get("w_bit")
        or (4 if told.get("load_in_4bit") else 8 if told.get("load_in_8bit") else 0)
    )
    return {4: "int4", 8: "int8"}.get(bits, "")


def placement(config: Any, device: torch.device) -> dict[str, Any]:
    """What transformers is told of the device for a checkpoint that is quantized already, and may not be moved later."""
    return {"device_map": {"": device}} if stored_by(config) and device.type != "cpu" else {}


@contextmanager
def explained(role: str, source: str, config: Any) -> Iterator[None]:
    """Raises MissingAsset, one line with the library's name, for what transformers lacks to load such a checkpoint."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ImportError, RuntimeError, ValueError) as error:
        if method := stored_by(config):
            raise MissingAsset(f"model '{role}': {source} is quantized by {method}: {first_line(error)}") from None
        raise


def _stored(config: Any) -> dict[str, Any]:
    told = getattr(config, "quantization_config", None) or {}
    return dict(told if isinstance(told, dict) else told.to_dict())


def quantize(model: Any, kind: str) -> None:
    """Put quantized layers in the place of a loaded model's own, on the device where they are."""
    for name, layer in layers(model, kind).items():
        model.set_submodule(name, quantized(layer, kind))


@torch.no_grad()
def quantized(layer: nn.Linear, kind: str) -> QuantizedLinear:
    """A linear layer's quantized double. Raises MissingAsset where there is no torchao."""
    if kind == "nf4":
        return NormalFloat(layer)
    weight, mapping = layer.weight.data, torchao().MappingType
    if kind == "int8":
        codes, scale, _ = _rounded(weight, layer.in_features, mapping.SYMMETRIC, torch.int8, (-128, 127))
        return Bytes(layer, codes, scale)
    size = group_of(layer.in_features, kind)
    codes, scale, at_zero = _rounded(weight, size, mapping.ASYMMETRIC, torch.uint8, (0, 15))
    zero = (8 - at_zero) * scale  # a weight is (code - 8) * scale + zero
    if weight.dtype == torch.bfloat16 and layer.out_features % 16 == 0 and _has_kernel(weight.device):
        return Tiles(layer, codes, scale, zero)
    return Bytes(layer, (codes.int() - 8).to(torch.int8), scale, zero)


def _rounded(
    weight: Tensor, size: int, mapping: Any, kind: torch.dtype, levels: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (out, in), and scale and the code of zero, (out, groups), in the weight's precision."""
    scale, at_zero = torchao().choose_qparams_affine(weight, mapping, (1, size), kind, *levels, eps=1e-6)
    codes = torchao().quantize_affine(weight, (1, size), scale, at_zero, kind, *levels)
    return codes, scale.view(len(weight), -1), at_zero.view(len(weight), -1).to(weight.dtype)


def _has_kernel(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8)


def torchao() -> Any:
    """torchao's quantization, which takes seconds to import. Raises MissingAsset, saying what to install, without it."""
    try:
        from torchao import quantization
    except ImportError:
        raise MissingAsset(HELP) from None
    return quantization


def _to_nf4() -> Any:
    if hasattr(torchao(), "to_nf4"):
        return torchao().to_nf4
    from torchao import dtypes  # where it was before 0.18

    return dtypes.to_nf4
