"""The parts of a layer that torch.compile fuses: elementwise operations and attention.

Fusion reduces rotary embeddings from three kernels to one, and the gate from two to one. Compiling takes seconds, so only
graphs use it, which are captured before timing starts, and only on request.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention


class Elementwise(NamedTuple):
    """Two elementwise functions.

    `rotate` rotates heads (n, heads, d) in place by cos and signed sin (n, 1, d). `gate` is SiLU of the first half
    times the second, (n, 2 m) -> (n, m).
    """

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
    """Return the compiled functions.

    Each is compiled when it first sees a shape: once for one token, once for any other number.
    """
    return Elementwise(torch.compile(_rotate, fullgraph=True), torch.compile(_gate, fullgraph=True))


SHAPES = 256  # shapes that a function may be compiled for; two models have more block sizes than torch's limit of 8


def _attention(q: Tensor, keys: Tensor, values: Tensor, visible: BlockMask, scale: float) -> Tensor:
    """Attend with q (1, heads, n, d) to visible keys and values (1, key-value heads, span, d): (1, heads, n, d)."""
    out = flex_attention(q, keys, values, block_mask=visible, scale=scale, enable_gqa=q.shape[1] != keys.shape[1])
    assert isinstance(out, Tensor)
    return out


@cache
def compiled_attention() -> Callable[[Tensor, Tensor, Tensor, BlockMask, float], Tensor]:
    """Return FlexAttention, compiled for each shape, since it splits the keys only for a fixed number of queries."""
    return torch.compile(_attention, fullgraph=True, dynamic=False)


@contextmanager
def compiling() -> Iterator[None]:
    """Allow as many compiled shapes as graphs have."""
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        yield
