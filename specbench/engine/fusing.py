"""Floor 0: the elementwise parts of a layer as functions, plain or fused by torch.compile.

A layer spends a launch on each of them. Fused, rotary positions are one kernel instead of three, and the gate one instead of
two. Compiling takes seconds, so it is for graphs, which are captured before the clock starts, and for those who ask for it.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Elementwise(NamedTuple):
    """`rotate` turns heads (n, heads, d) in place by cos and signed sin (n, 1, d); `gate` is SiLU of the first half times the
    second, (n, 2 m) -> (n, m)."""

    rotate: Callable[[Tensor, Tensor, Tensor], None]
    gate: Callable[[Tensor], Tensor]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(swapped, sin)


def _gate(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate).mul_(up)


PLAIN = Elementwise(_rotate, _gate)


@cache
def compiled() -> Elementwise:
    """The compiled functions. Each is compiled when it first meets a shape: once for one token, once for any other number."""
    return Elementwise(torch.compile(_rotate, fullgraph=True), torch.compile(_gate, fullgraph=True))
