"""The interface of a format of quantized files, and what formats share: packed integers and zeros."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.models.panel_codes import SCALES, Codes

CENTER = {4: 8, 8: 128}  # the unsigned number that stands for zero in codes of these bits
WORD = 32  # bits of the integers that codes are packed into


class DamagedLayer(ValueError):
    """Tensors of a layer that do not fit together or the model."""


@dataclass(frozen=True)
class Decoded:
    """A layer of a file.

    `order` (in,) is the input that each column of the codes multiplies; None if columns are in the order of the inputs.
    """

    codes: Codes
    order: Tensor | None = None


class StoredFormat(ABC):
    """How the layers of a checkpoint are stored."""

    markers: ClassVar[tuple[str, ...]]  # names of tensors, one of which each quantized layer has

    @property
    @abstractmethod
    def label(self) -> str:
        """The format in words, for notes."""

    @abstractmethod
    def decoded(self, name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Decoded:
        """Return the matrix (out, in) of a layer from its tensors by name. Raises DamagedLayer if they do not fit."""

    @abstractmethod
    def bytes_of(self, name: str, shape: tuple[int, int]) -> int | None:
        """Return the bytes in memory of a layer's codes, scales and zeros; None if the layer is not quantized."""


def group_in(table: Table, *keys: str) -> int:
    """Return the inputs per group that one of these keys gives, 128 if none does; 0 for one group per output.

    Raises ValueError for a value that is no number of inputs.
    """
    value = next((found for key in keys if (found := table.get(key)) is not None), 128)
    if not isinstance(value, int) or value == 0:
        raise ValueError(f"{keys[0]} = {value!r}, which is no number of inputs")
    return max(value, 0)


def part(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of a layer. Raises DamagedLayer if the file lacks it."""
    if name not in tensors:
        raise DamagedLayer(f"no {name} beside {', '.join(sorted(tensors))}")
    return tensors[name]


def require_shape(tensors: Mapping[str, Tensor], name: str, *shapes: tuple[int, ...]) -> Tensor:
    """Return a tensor of a layer. Raises DamagedLayer if it is missing or has none of these shapes."""
    found = part(tensors, name)
    if tuple(found.shape) not in shapes:
        raise DamagedLayer(f"{name} has the shape {list(found.shape)}, not {' or '.join(str(list(s)) for s in shapes)}")
    return found


def bits_of(words: int, numbers: int) -> int:
    """Return the bits per number if this many words hold them. Raises DamagedLayer for others than 4 and 8."""
    found = next((bits for bits in CENTER if -(-numbers * bits // WORD) == words), 0)
    if not found:
        raise DamagedLayer(f"{words} words for {numbers} inputs do not have 4 or 8 bits per weight")
    return found


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the unsigned numbers in 32-bit words (n, m), lowest bits first: (n, m * 32 / bits), uint8."""
    if words.dtype not in (torch.int32, torch.uint32):
        raise DamagedLayer(f"packed integers have the type {words.dtype}, not int32")
    octets = words.contiguous().view(torch.uint8)  # (n, 4 m), little-endian
    if bits == 8:
        return octets
    return torch.stack([octets & 15, octets >> 4], -1).flatten(1)


def signed(numbers: Tensor, bits: int) -> Tensor:
    """Return unsigned numbers as codes: 4 bits stay, 8 bits become signed."""
    return numbers if bits == 4 else (numbers ^ 128).view(torch.int8)


def with_zero_points(bits: int, codes: Tensor, scale: Tensor, points: Tensor) -> Codes:
    """Return codes whose weight is (number - point) * scale. `points` (out, groups) are unsigned numbers."""
    shift = CENTER[bits] - points.int()  # (out, groups)
    return in_one_precision(Codes(bits, codes, scale, shift * scale.float() if bool(shift.any()) else None))


def in_one_precision(weights: Codes) -> Codes:
    """Return codes whose scales keep their type; with zeros, both are float32, since a narrower type would round zeros."""
    scale, zero = weights.scale.contiguous(), weights.zero
    if scale.dtype not in SCALES:
        raise DamagedLayer(f"scales have the type {scale.dtype}, not float32, bfloat16 or float16")
    if not bool(scale.isfinite().all()):
        raise DamagedLayer("a scale is not finite")
    if zero is None:
        return Codes(weights.bits, weights.codes, scale)
    return Codes(weights.bits, weights.codes, scale.float(), zero.float().contiguous())


def bytes_of_codes(shape: tuple[int, int], bits: int, group: int, per_group: int) -> int:
    """Return the bytes of codes with `per_group` bytes of scales and zeros per group of inputs; 0 is a whole row."""
    outputs, inputs = shape
    return outputs * inputs * bits // 8 + outputs * (inputs // group if group else 1) * per_group
