"""Checkpoints of compressed-tensors with integer weights: 4 and 8 bits, packed into words or one byte each.

With `pack-quantized` a layer has `weight_packed` (out, in * bits / 32), whose words hold consecutive inputs as unsigned
numbers, and `weight_shape`; zero points are packed along the outputs. With `int-quantized` (`naive-quantized`) it has
`weight` (out, in) and zero points, both int8. `weight_scale` is (out, groups), `weight_g_idx` (in,) the group of each input.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.models.quantized_files.gptq import order_of
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

PACKED, BYTES = "pack-quantized", ("int-quantized", "naive-quantized")
KINDS = {"int with 4 bits", "int with 8 bits"}
STRATEGIES = ("tensor", "channel", "group")


@dataclass(frozen=True)
class CompressedTensors(StoredFormat):
    """A checkpoint of compressed-tensors. `bits` are those of codes in memory; `group` is 0 for one scale per output."""

    bits: int
    group: int
    is_symmetric: bool
    rounds_inputs: bool  # whether its config also rounds the inputs of products, which is not done here
    markers: ClassVar[tuple[str, ...]] = ("weight_packed", "weight_scale")

    @classmethod
    def of(cls, table: Table) -> "CompressedTensors":
        """Return the format that a quantization config describes. Raises ValueError if it is another."""
        groups, sparsity = tables_in(table.get("config_groups")), tables_in([table.get("sparsity_config")])
        weights = [scheme for group in groups for scheme in tables_in([group.get("weights")])]
        forms = {str(group.get("format") or table.get("format")) for group in groups} or {str(table.get("format"))}
        kinds = {f"{scheme.get('type', 'int')} with {scheme.get('num_bits')} bits" for scheme in weights}
        if not forms <= {PACKED, *BYTES} or not weights:
            raise ValueError(
                f"compressed-tensors in the form {', '.join(sorted(forms))}; only {', '.join((PACKED, *BYTES))} are read"
            )
        if not kinds <= KINDS:
            raise ValueError(f"compressed-tensors of {', '.join(sorted(kinds))}; only int with 4 and 8 bits is read")
        if odd := {str(scheme.get("strategy", "tensor")) for scheme in weights} - set(STRATEGIES):
            raise ValueError(f"compressed-tensors by {', '.join(sorted(odd))}; only {', '.join(STRATEGIES)} are read")
        if any(each.get("format", "dense") != "dense" for each in sparsity):
            raise ValueError("compressed-tensors with sparse weights, which are not read")
        if table.get("kv_cache_scheme"):
            raise ValueError("compressed-tensors with a quantized cache, which is not supported")
        if table.get("transform_config"):
            raise ValueError("compressed-tensors with transforms of inputs, which are not read")
        first = weights[0]
        bits = 4 if forms == {PACKED} and first.get("num_bits") == 4 else 8
        group = group_in(first, "group_size") if first.get("group_size") else 0
        is_symmetric, rounds = bool(first.get("symmetric", True)), any(each.get("input_activations") for each in groups)
        return cls(bits, group, is_symmetric, rounds)

    @property
    def label(self) -> str:
        groups = f"groups of {self.group}" if self.group else "one group per output"
        return f"compressed-tensors, {self.bits} bits, {groups}" + (
            "; its config specifies 8-bit inputs" if self.rounds_inputs else ""
        )

    def decoded(self, name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Decoded:
        outputs, inputs = shape
        if "weight_packed" in tensors:
            words = tensors["weight_packed"]
            bits = bits_of(words.shape[-1], inputs)
            require_shape(tensors, "weight_packed", (outputs, -(-inputs * bits // 32)))
            if "weight_shape" in tensors and tensors["weight_shape"].tolist() != [outputs, inputs]:
                raise DamagedLayer(f"weight_shape is {tensors['weight_shape'].tolist()}, not {[outputs, inputs]}")
            numbers = unpacked(words, bits)[:, :inputs]  # (out, in)
        else:
            stored = require_shape(tensors, "weight", (outputs, inputs))
            if stored.dtype != torch.int8:
                raise DamagedLayer(f"weight has the type {stored.dtype}, not int8")
            bits, numbers = 8, stored.view(torch.uint8) ^ 128
        scale = part(tensors, "weight_scale")
        scale = scale.reshape(-1, 1).expand(outputs, 1) if scale.numel() in (1, outputs) else scale
        if scale.ndim != 2 or len(scale) != outputs or inputs % scale.shape[1]:
            raise DamagedLayer(f"weight_scale has the shape {list(scale.shape)} for {outputs} x {inputs} weights")
        groups = scale.shape[1]
        order = order_of(tensors.get("weight_g_idx"), inputs, groups)
        if order is not None:
            numbers = numbers[:, order]
        points = _points(tensors, bits, (outputs, groups))
        return Decoded(with_zero_points(bits, signed(numbers, bits), scale, points), order)

    def bytes_of(self, name: str, shape: tuple[int, int]) -> int | None:
        return bytes_of_codes(shape, self.bits, self.group, 2 if self.is_symmetric else 8)


def _points(tensors: Mapping[str, Tensor], bits: int, shape: tuple[int, int]) -> Tensor:
    """Return the zero points (out, groups) as unsigned numbers; the center if the layer has none."""
    outputs, groups = shape
    if "weight_zero_point" not in tensors:
        return torch.full(shape, CENTER[bits])  # (out, groups)
    stored = tensors["weight_zero_point"]
    if stored.dtype == torch.int32:
        require_shape(tensors, "weight_zero_point", (-(-outputs * bits // 32), groups))
        return unpacked(stored.t(), bits)[:, :outputs].t()
    if stored.numel() not in (1, outputs * groups):
        raise DamagedLayer(f"weight_zero_point has the shape {list(stored.shape)}, not {list(shape)}")
    points = stored.int() + CENTER[bits]
    return points.reshape(shape) if points.numel() > 1 else points.reshape(1, 1).expand(shape)


def tables_in(value: object) -> list[Table]:
    """Return the tables among the values of a table or a list; none for anything else."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [each for each in values if isinstance(each, dict)]
