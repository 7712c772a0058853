"""Key-value caches of a lean model, preallocated, and attention over them. Dropping positions costs nothing.

The cache of a CUDA graph stores its positions on the device.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from specbench.decoding.sampling import to_device
from specbench.decoding.session import AuxLayers
from specbench.models.model_runner import Feed

STEP = 256  # positions; capacities are this times a power of two
BLOCK = 128  # positions that FlexAttention reads or skips as a unit
MIN_DIM = 16  # smallest head dimension that FlexAttention supports


class Bias(NamedTuple):
    """How a layer's attention weights positions: the factor of its scores, and what is added to them.

    A layer with a `window` attends to a position itself and the `window` - 1 before it. `by_distance` (heads, m) are learned
    biases of the distances 0 .. m - 1.
    """

    scale: float
    window: int | None = None
    by_distance: Tensor | None = None


class Cache:
    """Keys and values of every layer, (layers, heads of keys then of values, capacity, head dim).

    It also records the inputs of the layers in `aux_layers`. A forward is `begin`, then one `attend` per layer. The positions
    before a feed's start are valid; later ones are left over from earlier forwards and never read. The cache grows by copying
    and never moves otherwise.
    """

    aux_layers: AuxLayers = ()

    def __init__(self, layers: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = self._start = self._total = 0
        self._heads = heads
        self._storage = torch.empty(layers, 2 * heads, 0, dim, dtype=dtype, device=device)
        self._masks: dict[tuple[int | None, int], tuple[int, Tensor | None]] = {}
        self._feed: Feed
        self._write: tuple[Tensor, ...] = ()
        self.source: list[tuple[Tensor, Tensor]] = []  # an encoder's keys and values by layer, (1, heads, m, d) each
        self._tapped: list[Tensor] = []

    def begin(self, feed: Feed) -> None:
        """Make room for the tokens of a feed, whose keys and values `attend` writes."""
        self._feed, self._start = feed, feed.first
        self._total = self._start + len(feed.tokens)
        if self._total > self.capacity:
            self.reserve(self._total)
        self._masks, self._tapped = {}, []
        self._write = ()

    def _open(self) -> None:
        """Make the views of each layer that `attend` writes and reads."""
        self._write = (
            self._storage[:, :, self._start : self._total].transpose(1, 2).unbind(0)
        )  # per layer: (n, 2 heads, d)
        read = self._storage[:, None, :, : self._total]  # (layers, 1, 2 heads, cached, d)
        self._keys, self._values = read[:, :, : self._heads].unbind(0), read[:, :, self._heads :].unbind(0)

    @property
    def first(self) -> int:
        """Where the tokens that are being fed are stored."""
        return self._start

    @property
    def total(self) -> int:
        """The number of positions, including the tokens that are being fed."""
        return self._total

    @property
    def is_tree(self) -> bool:
        """Whether the tokens that are being fed are a tree."""
        return self._feed.parents is not None

    def mask(self, bias: Bias) -> Tensor:
        """Return the mask (n, total) that is added to the fed tokens' attention scores."""
        key = bias.window, -1
        if key not in self._masks:
            self._masks[key] = 0, added(self._feed.distances(), bias, self._storage.dtype)
        found = self._masks[key][1]
        assert found is not None
        return found

    @property
    def storage(self) -> Tensor:
        """The tensor that holds all layers."""
        return self._storage

    def tap(self, layer: int, x: Tensor) -> None:
        """Record a copy of the input x (n, hidden) of a layer if it is in `aux_layers`. The layer may overwrite x."""
        if layer in self.aux_layers:
            self._tapped.append(x.clone())

    def tapped(self) -> Tensor | None:
        """Return the recorded inputs of the last forward, in ascending order of layers (n, m hidden); None without any."""
        if not self.aux_layers:
            return None
        assert len(self._tapped) == len(self.aux_layers), "a tap that is no layer"
        return torch.cat(self._tapped, -1)

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Move the tokens of a path in the tree that begins at `start` to the positions from `start` on."""
        at = to_device([start + place for place in path], self._storage.device)
        self._storage[:, :, start : start + len(path)] = self._storage[:, :, at]

    def reserve(self, positions: int) -> None:
        """Grow to the next power of two times STEP that holds this many positions."""
        self.capacity = max(self.capacity, STEP)
        while self.capacity < positions:
            self.capacity *= 2
        layers, heads, _, dim = self._storage.shape
        larger = self._storage.new_empty(layers, heads, self.capacity, dim)
        larger[:, :, : self._start] = self._storage[:, :, : self._start]
        self._storage = larger

    def rows(self, table: Tensor) -> Tensor:
        """Return a table's rows for the positions that are being fed: (positions, ...) -> (n, ...)."""
        if self._feed.parents is None:
            return table[self._start : self._total]
        return table[to_device(self._feed.positions(), table.device)]

    def attend(self, layer: int, q: Tensor, kv: Tensor, bias: Bias) -> Tensor:
        """Store kv (n, keys then values, d), and attend with q (n, heads, d) to the cached positions: (n, heads * d)."""
        if not self._write:
            self._open()
        self._write[layer].copy_(kv)
        first, mask = self._visible(bias)
        keys, values = self._keys[layer], self._values[layer]
        if first:
            keys, values = keys[:, :, first:], values[:, :, first:]
        return attention(q, keys, values, mask, bias.scale)

    def attend_source(self, layer: int, q: Tensor) -> Tensor:
        """Attend with q (n, heads, d), unscaled, to the encoder's output: (n, heads * d)."""
        return attention(q, *self.source[layer], None, 1.0)

    def _visible(self, bias: Bias) -> tuple[int, Tensor | None]:
        """Return the first position that any fed token attends to, and the mask from there on, once per forward."""
        key = bias.window, id(bias.by_distance)
        if key not in self._masks:
            first = 0 if bias.window is None else max(0, self._feed.start + 1 - bias.window)
            alone = self._total - self._feed.start == 1 and bias.by_distance is None
            self._masks[key] = (
                first,
                None if alone else added(self._feed.distances()[:, first:], bias, self._storage.dtype),
            )
        return self._masks[key]


def added(distances: Tensor, bias: Bias, dtype: torch.dtype) -> Tensor:
    """Return the mask for positions at these distances (n, cached): (n, cached), or (heads, n, cached) with learned biases.

    It is added to attention scores. -inf hides a position that is later or beyond the window.
    """
    hidden = distances < 0 if bias.window is None else (distances < 0) | (distances >= bias.window)
    if bias.by_distance is not None:
        learned: Tensor = bias.by_distance[:, distances.clamp_min(0)]
        return learned.masked_fill(hidden, -torch.inf)
    return torch.zeros(distances.shape, dtype=dtype, device=distances.device).masked_fill_(hidden, -torch.inf)


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend with q (n, heads, d) to keys and values (1, key-value heads, cached, d): (n, heads * d).

    The mask is (n, cached) or (heads, n, cached).

    Query heads that share a key-value head are concatenated as if they were more positions.
    """
    n, heads, d = q.shape
    kv_heads = keys.shape[1]
    group_size = heads // kv_heads
    doubles = n == group_size == 1 and q.dtype == torch.bfloat16 and q.device.type == "cpu"
    if n == 1 and not doubles:  # one row needs no permutation
        out = F.scaled_dot_product_attention(q.view(1, kv_heads, group_size, d), keys, values, mask, scale=scale)
        return out.reshape(1, heads * d)
    if group_size == 1:
        if doubles:
            q = torch.cat([q, q])  # torch's kernel takes three to five times as long for one row as for two
        out = F.scaled_dot_product_attention(q.transpose(0, 1).unsqueeze(0), keys, values, mask, scale=scale)
        return out[0, :, :n].transpose(0, 1).reshape(n, heads * d)
    q = q.view(n, kv_heads, group_size, d).permute(1, 2, 0, 3).reshape(1, kv_heads, group_size * n, d)
    if mask is not None:
        mask = mask.repeat(group_size, 1)  # (group_size * n, cached)
    out = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale)
    return out.view(kv_heads, group_size, n, d).permute(2, 0, 1, 3).reshape(n, heads * d)


class GraphCache(Cache):
    """n tokens at positions that are known on the device only, within the first `span` positions of another cache.

    It reads from and writes to that cache. Attention reads the whole span and masks unused positions.
    """

    def __init__(self, storage: Tensor, n: int, span: int) -> None:
        both = storage.shape[1]
        self.capacity, self._heads = span, both // 2
        self._storage, self._span = storage, torch.arange(span, device=storage.device)  # (span,)
        self.positions = torch.arange(n, device=storage.device)  # (n,), overwritten before every replay
        read = storage[:, None, :, :span]  # (layers, 1, 2 heads, span, d)
        self._keys, self._values = read[:, :, : self._heads].unbind(0), read[:, :, self._heads :].unbind(0)

    def begin(self, feed: Feed | None = None) -> None:
        self._masks, self._tapped = {}, []

    def rows(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.positions)

    def attend(self, layer: int, q: Tensor, kv: Tensor, bias: Bias) -> Tensor:
        self._storage[layer].index_copy_(1, self.positions, kv.transpose(0, 1))
        _, mask = self._visible(bias)
        return attention(q, self._keys[layer], self._values[layer], mask, bias.scale)

    def _visible(self, bias: Bias) -> tuple[int, Tensor | None]:
        key = bias.window, id(bias.by_distance)
        if key not in self._masks:
            self._masks[key] = 0, added(self.positions[:, None] - self._span, bias, self._storage.dtype)
        return self._masks[key]


class TreeGraphCache(GraphCache):
    """A graph cache whose n tokens are a tree. `depths` (n,) are their positions in their sequences.

    `within` (n, n) are the distances from each token back to the others, negative for no predecessor.
    """

    def __init__(self, storage: Tensor, n: int, span: int) -> None:
        super().__init__(storage, n, span)
        self.depths = self.positions.clone()
        self.within = self.positions[:, None] - self.positions

    def rows(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.depths)

    def _visible(self, bias: Bias) -> tuple[int, Tensor | None]:
        key = bias.window, id(bias.by_distance)
        if key not in self._masks:
            place = self._span - self.positions[0]  # (span,): of each position in the tree
            inside = self.within.index_select(1, place.clamp(0, len(self.positions) - 1))  # (n, span)
            inside = torch.where(place < len(self.positions), inside, -1)
            distances = torch.where(place < 0, self.depths[:, None] - self._span, inside)
            self._masks[key] = 0, added(distances, bias, self._storage.dtype)
        return self._masks[key]


class FlexGraphCache(GraphCache):
    """A graph cache whose attention reads occupied blocks only, using FlexAttention.

    The number of blocks is on the device, so one span serves sequences of every length. FlexAttention's decoding kernel
    distributes the blocks over the multiprocessors.
    """

    def __init__(self, storage: Tensor, n: int, span: int) -> None:
        super().__init__(storage, n, span)
        blocks = -(-span // BLOCK)
        self._blocks = torch.arange(blocks, dtype=torch.int32, device=storage.device).view(1, 1, 1, blocks)
        self._seen: BlockMask | None = None

    def begin(self, feed: Feed | None = None) -> None:
        super().begin()
        self._seen = None

    @staticmethod
    def fits(n: int, query_heads: int, storage: Tensor) -> bool:
        """Return whether FlexAttention's decoding kernel takes n tokens.

        Its tile holds all queries that share a key-value head.
        """
        return storage.shape[-1] >= MIN_DIM and n * query_heads // (storage.shape[1] // 2) <= BLOCK

    def attend(self, layer: int, q: Tensor, kv: Tensor, bias: Bias) -> Tensor:
        if bias.window is not None or bias.by_distance is not None:
            return super().attend(layer, q, kv, bias)
        if self._seen is None:  # once per forward
            self._seen = self._occupied()
        self._storage[layer].index_copy_(1, self.positions, kv.transpose(0, 1))
        n, heads, d = q.shape
        # (1, heads, n, d)
        out = compiled_attention()(
            q.transpose(0, 1).unsqueeze(0), self._keys[layer], self._values[layer], self._seen, bias.scale
        )
        return out[0].transpose(0, 1).reshape(n, heads * d)

    def _occupied(self) -> BlockMask:
        """Return the mask of the n tokens: all positions up to each token's own."""
        positions = self.positions

        def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return key <= positions[query]

        count = (positions[-1:] // BLOCK + 1).to(torch.int32).view(1, 1, 1)
        return BlockMask.from_kv_blocks(
            count, self._blocks, BLOCK_SIZE=BLOCK, mask_mod=is_visible, seq_lengths=(len(positions), self.capacity),
            compute_q_blocks=False,
        )  # fmt: skip


def _attention(q: Tensor, keys: Tensor, values: Tensor, visible: BlockMask, scale: float) -> Tensor:
    """Attend with q (1, heads, n, d) to visible keys and values (1, key-value heads, span, d): (1, heads, n, d)."""
    out = flex_attention(q, keys, values, block_mask=visible, scale=scale, enable_gqa=q.shape[1] != keys.shape[1])
    assert isinstance(out, Tensor)
    return out


@functools.cache
def compiled_attention() -> Callable[[Tensor, Tensor, Tensor, BlockMask, float], Tensor]:
    """Return FlexAttention, compiled for each shape, since it splits the keys only for a fixed number of queries."""
    return torch.compile(_attention, fullgraph=True, dynamic=False)
