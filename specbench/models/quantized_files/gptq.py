"""GPTQ checkpoints (Frantar et al. 2023), 4 and 8 bits, as AutoGPTQ and GPTQModel write them.

A layer has `qweight` (in * bits / 32, out), whose words hold consecutive inputs, `scales` (groups, out), `qzeros` (groups,
out * bits / 32), and with the order of activations `g_idx` (in,), the group of each input. Files of the format `gptq` hold
zero points minus 1, those of `gptq_v2` the points themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.models.quantized_files.stored_format import (
    CENTER,
    DamagedLayer,
    Decoded,
    StoredFormat,
    bits_of,
    bytes_of_codes,
    group_in,
    part,
    require_shape,
    signed,
    unpacked,
    with_zero_points,
)

ONES = {4: 0x11111111, 8: 0x01010101}  # a word of ones, by bits
OFFSETS = {"gptq": 1, "gptq_v2": 0}  # what is added to stored zero points, by `checkpoint_format`


@dataclass(frozen=True)
class Gptq(StoredFormat):
    """A GPTQ checkpoint. `group` is 0 for one scale per output; the layers' tensors take precedence."""

    bits: int
    group: int
    is_symmetric: bool
    offset: int
    markers: ClassVar[tuple[str, ...]] = ("qweight",)

    @classmethod
    def of(cls, table: Table) -> "Gptq":
        """Return the format that a quantization config describes. Raises ValueError if it is another."""
        bits = table.get("bits")
        form = str(table.get("checkpoint_format") or "gptq")
        if not isinstance(bits, int) or bits not in CENTER:
            raise ValueError(f"GPTQ with {bits} bits; only 4 and 8 are read")
        if form not in OFFSETS:
            raise ValueError(f"GPTQ in the form '{form}'; only {' and '.join(OFFSETS)} are read")
        return cls(bits, group_in(table, "group_size"), bool(table.get("sym", True)), OFFSETS[form])

    @property
    def label(self) -> str:
        return f"GPTQ, {self.bits} bits, {f'groups of {self.group}' if self.group else 'one group per output'}"

    def decoded(self, name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Decoded:
        outputs, inputs = shape
        words, scales = part(tensors, "qweight"), part(tensors, "scales")
        bits = bits_of(len(words), inputs)
        require_shape(tensors, "qweight", (inputs * bits // 32, outputs))
        groups = len(scales)
        require_shape(tensors, "scales", (groups, outputs))
        require_shape(tensors, "qzeros", (groups, outputs * bits // 32))
        if inputs % max(groups, 1) or not groups:
            raise DamagedLayer(f"{inputs} inputs cannot be divided into {groups} equal groups")
        numbers = unpacked(words.t(), bits)  # (out, in)
        # Added to whole words, since writers subtract it from them: a zero point of 0 borrows from its neighbor
        points = unpacked(tensors["qzeros"] + self.offset * ONES[bits], bits).int()  # (groups, out)
        order = order_of(tensors.get("g_idx"), inputs, groups)
        if order is not None:
            numbers = numbers[:, order]
        return Decoded(with_zero_points(bits, signed(numbers, bits), scales.t(), points.t()), order)

    def bytes_of(self, name: str, shape: tuple[int, int]) -> int | None:
        return bytes_of_codes(shape, self.bits, self.group, 2 if self.is_symmetric else 8)


def order_of(group_of_input: Tensor | None, inputs: int, groups: int) -> Tensor | None:
    """Return the inputs (in,) sorted by group; None if they are. Raises DamagedLayer if groups differ in size."""
    if group_of_input is None:
        return None
    size = inputs // groups
    if tuple(group_of_input.shape) != (inputs,):
        raise DamagedLayer(f"g_idx has the shape {list(group_of_input.shape)}, not {[inputs]}")
    sorted_groups, order = group_of_input.long().sort(stable=True)
    if not torch.equal(sorted_groups, torch.arange(inputs) // size):
        raise DamagedLayer(f"g_idx does not assign {size} inputs to each of {groups} groups")
    return None if torch.equal(order, torch.arange(inputs)) else order
