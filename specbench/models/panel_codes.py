"""Quantized matrices in panels, for the kernels of `specbench/kernels/`: codes of 4 or 8 bits, scales and zeros of groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specbench.kernels import MatrixStruct, kernels
from specbench.machine.memory import return_freed_memory
from specbench.models.products import KernelProduct, addresses, in_panels, on_huge_pages

SCALES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
)  # dtypes of scales and zeros, in the order of `Scales` of cpu.cpp


@dataclass(frozen=True)
class Codes:
    """A quantized matrix: a weight is its code times the scale of its group of inputs, plus the group's zero.

    Args:
        bits: 8 for signed codes; 4 for codes from 0 to 15, which stand for -8 to 7.
        codes: (out, in), int8 or uint8.
        scale: (out, groups), of a dtype in SCALES.
        zero: (out, groups), of the scale's dtype; None without zeros.
    """

    bits: int
    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None

    def matrix(self) -> Tensor:
        """Return the matrix (out, in) that the codes stand for, in float64."""
        codes, shape = self.codes.double() - (8 if self.bits == 4 else 0), self.codes.shape
        matrix = codes.view(*self.scale.shape, -1) * self.scale.double().unsqueeze(-1)  # (out, groups, size)
        if self.zero is not None:
            matrix = matrix + self.zero.double().unsqueeze(-1)
        return matrix.view(shape)


class QuantizedLinear(nn.Module):
    """A linear layer with a quantized matrix: x (..., in) -> (..., out), of x's dtype.

    torchao's own tensors are not used: a product through one costs tens of microseconds of Python, and a forward has
    hundreds. It takes the bias and the numbers of inputs and outputs of the layer that it replaces.
    """

    weight = None  # transformers' T5 reads this attribute of its layers

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.bias, self.in_features, self.out_features = layer.bias, layer.in_features, layer.out_features

    def rows(self, outputs: Tensor) -> Tensor:
        """Return rows of the matrix (n, in), dequantized in float32, for numbers of outputs (n,)."""
        raise AssertionError

    def product(self, x: Tensor) -> Tensor:
        """Return (n, in) -> (n, out), without the bias."""
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, x.shape[-1]))
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], -1)


def rows_of(layer: Any, outputs: Tensor) -> Tensor:
    """Return rows (n, in) of the matrix of a linear layer, quantized or not."""
    if isinstance(layer, QuantizedLinear):
        return layer.rows(outputs)
    rows: Tensor = layer.weight.data[outputs.to(layer.weight.device)]
    return rows


class PanelCodes(QuantizedLinear):
    """A matrix in panels for `specbench/kernels/`, with 4 or 8 bits per weight. Products are in float32, or of integers.

    Args:
        layer: The layer that it replaces.
        width: The outputs of a panel.
        weights: The codes, scales and zeros.
        block: The inputs of a row that are rounded to 8 bits together; 0 multiplies with the input as it is.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None

    def __init__(self, layer: Any, width: int, weights: Codes, block: int = 0) -> None:
        super().__init__(layer)
        self.outputs, self.inputs = weights.codes.shape
        self.bits, self.block, self.precision = weights.bits, block, weights.scale.dtype
        panels = in_panels(weights.codes, width)  # (panels, in, width)
        if block:  # (panels, in / 4, width, 4)
            panels = panels.view(len(panels), -1, 4, width).transpose(2, 3).contiguous()
        if weights.bits == 4:
            panels = (panels[:, :, : width // 2] | panels[:, :, width // 2 :] << 4).contiguous()
        self.register_buffer("codes", on_huge_pages(panels))
        self.register_buffer("scale", in_panels(weights.scale, width))  # (panels, groups, width)
        self.register_buffer("zero", None if weights.zero is None else in_panels(weights.zero, width))
        self._product: CodesProduct | None = None

    def product(self, x: Tensor) -> Tensor:
        if self._product is None:
            self._product = CodesProduct([self], None)
        return self._product(x)

    def rows(self, outputs: Tensor) -> Tensor:
        width, n = self.scale.shape[2], len(outputs)
        panel, at = outputs // width, outputs % width
        half = width // 2
        if self.bits == 4:  # outputs j and j + width / 2 share a byte
            octets = self.codes[panel, :, at % half].view(n, -1)  # (n, in)
            codes = torch.where((at < half).unsqueeze(1), octets & 15, octets >> 4).float() - 8.0
        else:
            codes = self.codes[panel, :, at].view(n, -1).float()
        if self.precision == torch.bfloat16:  # see `in_panels`
            at = at % half * 2 + at // half
        matrix = codes.view(n, self.scale.shape[1], -1) * self.scale[panel, :, at].float().unsqueeze(-1)
        if self.zero is not None:
            matrix = matrix + self.zero[panel, :, at].float().unsqueeze(-1)
        return matrix.view(n, -1)

    def joined(self, layers: Sequence["PanelCodes"]) -> "CodesProduct | None":
        """Return one product for layers with the same input.

        None if a layer before the last does not fill its panels, if only some of the layers have a bias, or if their codes
        have different forms.
        """
        width = self.scale.shape[2]
        biases: list[Any] = [layer.bias for layer in layers]
        mixed = any(bias is None for bias in biases) and any(bias is not None for bias in biases)
        forms = {
            (layer.bits, layer.block, layer.precision, layer.scale.shape[1], layer.zero is None) for layer in layers
        }
        if mixed or len(forms) > 1 or any(layer.outputs % width for layer in layers[:-1]):
            return None
        return CodesProduct(layers, None if biases[0] is None else torch.cat(biases).float())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_product": None}  # a copy has other addresses


class CodesProduct(KernelProduct):
    """The product of quantized layers with the same input. Their codes become views of one matrix."""

    def __init__(self, layers: Sequence[PanelCodes], bias: Tensor | None) -> None:
        parts = {name: [getattr(layer, name) for layer in layers] for name in ("codes", "scale", "zero")}
        whole = {
            name: None if each[0] is None else each[0] if len(each) == 1 else on_huge_pages(torch.cat(each))
            for name, each in parts.items()
        }
        if len(layers) > 1:
            for name, tensor in whole.items():
                pieces = (
                    [None] * len(layers) if tensor is None else tensor.split([len(each) for each in parts.pop(name)])
                )
                for layer, piece in zip(layers, pieces, strict=True):
                    setattr(layer, name, piece)
                    layer._product = None  # it has the addresses of the earlier tensors
            del parts
            return_freed_memory()  # else the earlier tensors of all layers add up to a third of the model
        self._tensors, inputs = (*whole.values(), bias), layers[0].inputs  # kept, for their addresses
        pointers = addresses(whole["codes"], bias, whole["scale"], whole["zero"])
        first, groups = layers[0], layers[0].scale.shape[1]
        assert first.codes.device.type == "cpu" and first.scale.dtype == first.precision, "moved or converted"
        found = kernels()
        assert found is not None
        outputs, form = sum(layer.outputs for layer in layers), SCALES.index(first.precision)
        struct = MatrixStruct(*pointers, inputs, outputs, inputs // groups, first.bits, form, first.block)
        super().__init__(found, struct, None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x.float(), None).to(x.dtype)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)
