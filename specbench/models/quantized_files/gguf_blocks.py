"""GGUF blocks of Q8_0, Q4_0 and Q4_1: 32 inputs with a float16 scale d, and for Q4_1 a float16 minimum m.

A block of Q8_0 is d and 32 signed bytes q, and a weight is q * d. A block of Q4_0 is d and 16 bytes. Their lower halves are
inputs 0 to 15 and their upper halves inputs 16 to 31, and a weight is (q - 8) * d. Q4_1 has d, m, and the bytes of Q4_0, and
a weight is q * d + m.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.models.panel_codes import Codes
from specbench.models.quantized_files.stored_format import (
    DamagedLayer,
    Decoded,
    StoredFormat,
    bytes_of_codes,
    in_one_precision,
    part,
)

GROUP = 32  # inputs of a block
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Gguf(StoredFormat):
    """A GGUF file. `types` are those of the weights that stay quantized, by the name of the module."""

    types: Mapping[str, str]
    dequantized: tuple[str, ...]  # types of quantized weights that are read as floating-point numbers
    rows: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # of the file (out,), by module, if they are in another order
    markers: ClassVar[tuple[str, ...]] = ("weight",)

    @classmethod
    def of(cls, table: Table) -> "Gguf":
        """Return the format that `gguf_file.table_of_gguf` describes. Raises ValueError if transformers loads the file."""
        types, others = table.get("types"), table.get("dequantized")
        if not table.get("is_plain") or not isinstance(types, dict) or not isinstance(others, list):
            raise ValueError("GGUF of an architecture whose weights have another layout there")
        return cls(types, tuple(others))

    @property
    def label(self) -> str:
        kept = ", ".join(sorted(set(self.types.values()))) or "no type that stays quantized"
        return f"GGUF, {kept}" + (f"; dequantized: {', '.join(self.dequantized)}" if self.dequantized else "")

    def decoded(self, name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Decoded:
        blocks, rows = part(tensors, "weight"), self.rows.get(name)
        return Decoded(codes_of_blocks(blocks if rows is None else blocks[rows], self.types[name], shape))

    def bytes_of(self, name: str, shape: tuple[int, int]) -> int | None:
        kind = self.types.get(name)
        per_group = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 8}
        return None if kind is None else bytes_of_codes(shape, 8 if kind == "Q8_0" else 4, GROUP, per_group[kind])


def codes_of_blocks(blocks: Tensor, kind: str, shape: tuple[int, int]) -> Codes:
    """Return the codes of a matrix (out, in) stored as rows of blocks (out, bytes), uint8. Raises DamagedLayer."""
    outputs, inputs = shape
    size = BLOCK_BYTES[kind]
    if inputs % GROUP or tuple(blocks.shape) != (outputs, inputs // GROUP * size):
        raise DamagedLayer(f"{kind} blocks of the shape {list(blocks.shape)} for {outputs} x {inputs} weights")
    by_block = blocks.view(outputs, -1, size)  # (out, groups, bytes)
    scale = by_block[..., :2].contiguous().view(torch.float16).squeeze(-1)  # (out, groups)
    if kind == "Q8_0":
        return in_one_precision(Codes(8, by_block[..., 2:].reshape(outputs, inputs).view(torch.int8), scale))
    halves = by_block[..., size - GROUP // 2 :]  # (out, groups, 16)
    codes = torch.cat([halves & 15, halves >> 4], -1).flatten(1)  # (out, in)
    if kind == "Q4_0":
        return in_one_precision(Codes(4, codes, scale))
    least = by_block[..., 2:4].contiguous().view(torch.float16).squeeze(-1)
    return in_one_precision(Codes(4, codes, scale, least.float() + 8.0 * scale.float()))
