"""Kinds of quantization, and the texts that name them: `int4`, `int8-a8`, `int4-g64-sym`, ... Imports no torch.

int4 | int8   [-channel | -g32 | -g64 | -g128]   [-sym | -asym]   [-a8]
nf4
a8, for weights that are quantized already
"""

import re
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, Self

from specbench.config.construct import Spelled
from specbench.errors import nearest, suggestion

Weights = Literal["", "int4", "int8", "nf4"]
Group = Literal["", "channel", "g32", "g64", "g128"]
CHANNEL: Literal["channel"] = "channel"
DEFAULT_GROUPS = (128, 64, 32)  # of int4: the first that divides a layer's inputs
NF4_GROUP = 64
BLOCKS = (128, 64, 32)  # inputs of a row that are rounded together, at most those that share a scale
INTEGERS = ("int4", "int8")
GROUPS = (CHANNEL, "g32", "g64", "g128")
MAPPINGS = ("sym", "asym")
ROUNDED = "a8"
PARTS = (GROUPS, MAPPINGS, (ROUNDED,))  # after the first, in their order
KNOWN = (
    "int4 or int8, then -channel, -g32, -g64 or -g128, then -sym or -asym, then -a8, each optional; nf4; a8 for a quantized"
    " checkpoint"
)


@dataclass(frozen=True)
class QuantizationKind(Spelled):
    """How the weights of a model are quantized when they are loaded, and whether products round their inputs.

    Two texts of the same meaning are one value, with the shorter one as its text: `int4-asym` is `int4`, `int8-channel` is
    `int8`.

    Args:
        weights: Integers of 4 or 8 bits, or 4-bit quantiles of a normal distribution; empty if weights are not quantized.
        group: The inputs that share a scale. By default 128 with int4, or 64 or 32 if only those divide a layer's inputs, and
            all inputs of an output (`channel`) with int8. Layers that a stated size does not divide are not quantized.
        symmetric: Whether the levels lie around zero; else they span the smallest and the largest weight of a group and zero.
            None is the default: int8 is symmetric, int4 is not.
        rounds_inputs: Whether products round their inputs to 8 bits. Alone it is `a8`, for weights that are quantized
            already.
    """

    pattern: ClassVar[str] = (
        rf"^((int4|int8)(-({'|'.join(GROUPS)}))?(-({'|'.join(MAPPINGS)}))?(-{ROUNDED})?|nf4|{ROUNDED})?$"
    )

    weights: Weights = ""
    group: Group = ""
    symmetric: bool | None = None
    rounds_inputs: bool = False

    def __post_init__(self) -> None:
        assert self.weights in INTEGERS or not (self.group or self.symmetric), self.weights
        assert self.weights != "nf4" or not self.rounds_inputs
        if self.weights == "int8" and self.group == CHANNEL:
            object.__setattr__(self, "group", "")
        if self.symmetric is None:
            object.__setattr__(self, "symmetric", self.weights == "int8")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the kind of a text. Raises ValueError, which names the wrong part and the nearest right text."""
        if text == ROUNDED:
            return cls(rounds_inputs=True)
        if text in ("", "nf4"):
            return cls(text)  # type: ignore[arg-type]  # mypy does not narrow a text to a Literal
        first, *parts = text.split("-")
        if first == "nf4":
            raise ValueError(f": nf4 has no further parts, such as '{parts[0]}' (did you mean 'nf4'?)")
        if first not in INTEGERS:
            raise ValueError(f"{suggestion(text, _texts()) or suggestion(first, _texts())}; known: {KNOWN}")
        places = [next((i for i, known in enumerate(PARTS) if part in known), None) for part in parts]
        if None in places:
            part = parts[places.index(None)]
            mended = [_nearest_part(each) if place is None else each for each, place in zip(parts, places, strict=True)]
            raise ValueError(f": unknown part '{part}' (did you mean '{_ordered(first, mended)}'?); known: {KNOWN}")
        for at, known in enumerate(PARTS):
            if places.count(at) > 1:
                given = [part for part in parts if part in known]
                raise ValueError(
                    f": '{given[0]}' and '{given[1]}' exclude each other (did you mean '{_ordered(first, parts)}'?)"
                )
        if [*parts] != (ordered := _ordered(first, parts)).split("-")[1:]:
            raise ValueError(f": the order of its parts is wrong (did you mean '{ordered}'?)")
        group = next((part for part in parts if part in GROUPS), "")
        mapping = next((part for part in parts if part in MAPPINGS), None)
        return cls(first, group, None if mapping is None else mapping == "sym", ROUNDED in parts)  # type: ignore[arg-type]

    def __str__(self) -> str:
        default = self.symmetric == (self.weights == "int8")
        mapping = "" if default else "sym" if self.symmetric else "asym"
        return "-".join(filter(None, (self.weights, self.group, mapping, ROUNDED if self.rounds_inputs else "")))

    def __bool__(self) -> bool:
        return bool(self.weights or self.rounds_inputs)

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return 8 if self.weights == "int8" else 4

    def group_of(self, inputs: int) -> int:
        """Return how many inputs of a layer share a scale; 0 if the layer is not quantized, since no size divides them."""
        if self.weights == "nf4":
            sizes: tuple[int, ...] = (NF4_GROUP,)
        elif self.group == CHANNEL or (not self.group and self.weights == "int8"):
            sizes = (inputs,)
        else:
            sizes = (int(self.group[1:]),) if self.group else DEFAULT_GROUPS
        group = next((size for size in sizes if inputs % size == 0), 0)
        return 0 if self.rounds_inputs and group % BLOCKS[-1] else group

    def block_of(self, inputs: int) -> int:
        """Return how many inputs of a row are rounded together; 0 if inputs are not rounded."""
        group = self.group_of(inputs) if self.rounds_inputs else 0
        return next((size for size in BLOCKS if group and group % size == 0), 0)


NOT_QUANTIZED = QuantizationKind()


def _texts() -> list[str]:
    """Return every text of a kind."""
    choices = (("", *(f"-{part}" for part in known)) for known in PARTS)
    return ["nf4", ROUNDED, *map("".join, product(INTEGERS, *choices))]


def _nearest_part(word: str) -> str:
    """Return the known part that is the nearest to a word, for a group by its number; empty if none is near."""
    if number := re.fullmatch(r"g?(\d+)", word):
        return min(GROUPS[1:], key=lambda group: abs(int(group[1:]) - int(number[1])))
    return nearest(word, (part for known in PARTS for part in known))


def _ordered(first: str, parts: list[str]) -> str:
    """Return the text with the first part of each choice, in their order."""
    chosen = (next((part for part in parts if part in known), "") for known in PARTS)
    return "-".join(filter(None, (first, *chosen)))
