"""AWQ checkpoints (Lin et al. 2024), 4 bits, in the `gemm` form of AutoAWQ.

A layer has `qweight` (in, out / 8), `qzeros` (groups, out / 8) and `scales` (groups, out). The numbers of eight consecutive
outputs share a word; from the lowest bits they are outputs 0, 2, 4, 6, 1, 3, 5, 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specbench.config.construct import Table
from specbench.models.quantized_files.stored_format import (
    DamagedLayer,
    Decoded,
    StoredFormat,
    bytes_of_codes,
    group_in,
    part,
    require_shape,
    unpacked,
    with_zero_points,
)

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of outputs 0 to 7 in a word, from the lowest bits


@dataclass(frozen=True)
class Awq(StoredFormat):
    """An AWQ checkpoint. `group` is 0 for one scale per output; the layers' tensors take precedence."""

    group: int
    markers: ClassVar[tuple[str, ...]] = ("qweight",)

    @classmethod
    def of(cls, table: Table) -> "Awq":
        """Return the format that a quantization config describes. Raises ValueError if it is another."""
        bits = table.get("bits") or table.get("w_bit")
        form = str(table.get("version") or table.get("format") or "gemm").lower()
        if bits != 4 or form != "gemm":
            raise ValueError(f"AWQ with {bits} bits in the form '{form}'; only 4 bits in the form 'gemm' are read")
        return cls(group_in(table, "group_size", "q_group_size"))

    @property
    def label(self) -> str:
        return f"AWQ, 4 bits, {f'groups of {self.group}' if self.group else 'one group per output'}"

    def decoded(self, name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Decoded:
        outputs, inputs = shape
        scales = part(tensors, "scales")
        groups = len(scales)
        words = require_shape(tensors, "qweight", (inputs, outputs // 8))
        require_shape(tensors, "scales", (groups, outputs))
        require_shape(tensors, "qzeros", (groups, outputs // 8))
        if not groups or inputs % groups:
            raise DamagedLayer(f"{inputs} inputs cannot be divided into {groups} equal groups")
        numbers = _in_order(words).t().contiguous()  # (out, in)
        return Decoded(with_zero_points(4, numbers, scales.t(), _in_order(tensors["qzeros"]).t()))

    def bytes_of(self, name: str, shape: tuple[int, int]) -> int | None:
        return bytes_of_codes(shape, 4, self.group, 8)


def _in_order(words: Tensor) -> Tensor:
    """Return the numbers of words (n, out / 8) in the order of outputs: (n, out)."""
    return unpacked(words, 4).view(len(words), -1, 8)[:, :, list(PLACES)].flatten(1)
