"""Key-value caches of a lean model, preallocated, and attention over them. Truncating one only moves a position.

The cache of a CUDA graph stores its positions on the device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from specbench.models.engine.fusing import compiled_attention

STEP = 256  # positions; capacities are this times a power of two
BLOCK = 128  # positions that FlexAttention reads or skips as a unit
MIN_DIM = 16  # smallest head dimension that FlexAttention supports


class Cache:
    """Keys and values of every layer, (layers, capacity, keys then values, head dim).

    A forward is `begin`, then one `attend` per layer, then `end`. The first `length` positions are valid; later ones
    are left over from earlier rounds and never read. The cache grows by copying and never moves otherwise.
    """

    def __init__(self, layers: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = self.capacity = self._total = 0
        self._heads = heads
        self._storage = torch.empty(layers, 0, 2 * heads, dim, dtype=dtype, device=device)
        self._masks: dict[int | None, Tensor | None] = {}

    def begin(self, n: int) -> None:
        """Make room for n more positions, which `attend` writes and reads and `end` makes valid."""
        self._total = self.length + n
        if self._total > self.capacity:
            self._grow(self._total)
        self._masks = {}
        self._write = self._storage[:, self.length : self._total].unbind(0)  # per layer: (n, 2 heads, d)
        read = self._storage[:, None, : self._total].transpose(2, 3)  # (layers, 1, 2 heads, cached, d)
        self._keys, self._values = read[:, :, : self._heads].unbind(0), read[:, :, self._heads :].unbind(0)

    @property
    def storage(self) -> Tensor:
        """The tensor that holds all layers."""
        return self._storage

    def end(self) -> None:
        """Make the positions of this forward valid."""
        self.length = self._total

    def rows(self, table: Tensor) -> Tensor:
        """Return a table's rows for the positions that are being fed: (positions, ...) -> (n, ...)."""
        return table[self.length : self._total]

    def distances(self) -> Tensor:
        """Return the distance from each fed position back to each cached one, (n, cached); negative for later positions."""
        device = self._storage.device
        fed = torch.arange(self.length, self._total, device=device)
        return fed[:, None] - torch.arange(self._total, device=device)

    def mask(self, window: int | None = None) -> Tensor | None:
        """Return an additive mask (n, cached), -inf for later positions and those `window` or more before.

        None if nothing is masked. Computed once per forward.
        """
        if window not in self._masks:
            n, seen = self._total - self.length, window is None or window >= self._total
            self._masks[window] = (
                None if n == 1 and seen else attention_mask(self.distances(), window, self._storage.dtype)
            )
        return self._masks[window]

    def attend(self, layer: int, q: Tensor, kv: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Store kv (n, keys then values, d), and attend with q (n, heads, d) to all cached positions: (n, heads * d)."""
        self._write[layer].copy_(kv)
        return attention(q, self._keys[layer], self._values[layer], mask, scale)

    def _grow(self, least: int) -> None:
        """Grow to the next power of two times STEP that holds `least` positions."""
        self.capacity = max(self.capacity, STEP)
        while self.capacity < least:
            self.capacity *= 2
        layers, _, heads, dim = self._storage.shape
        larger = self._storage.new_empty(layers, self.capacity, heads, dim)
        larger[:, : self.length] = self._storage[:, : self.length]
        self._storage = larger


def attention_mask(distances: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return -inf where a distance is negative, or at least `window`; else 0."""
    hidden = distances < 0 if window is None else (distances < 0) | (distances >= window)
    return torch.zeros(distances.shape, dtype=dtype, device=distances.device).masked_fill_(hidden, -torch.inf)


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend with q (n, heads, d) to keys and values (1, key-value heads, cached, d): (n, heads * d).

    The mask is (n, cached) or (heads, n, cached).

    Query heads that share a key-value head are concatenated as if they were more positions.
    """
    n, heads, d = q.shape
    shared = keys.shape[1]
    group = heads // shared
    if group == 1:
        if n == 1 and q.dtype == torch.bfloat16 and q.device.type == "cpu":
            q = torch.cat([q, q])  # torch's kernel takes three to five times as long for one row as for two
        out = F.scaled_dot_product_attention(q.transpose(0, 1).unsqueeze(0), keys, values, mask, scale=scale)
        return out[0, :, :n].transpose(0, 1).reshape(n, heads * d)
    q = q.view(n, shared, group, d).permute(1, 2, 0, 3).reshape(1, shared, group * n, d)
    if mask is not None:
        mask = mask.repeat(group, 1)  # (group * n, cached)
    out = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale)
    return out.view(shared, group, n, d).permute(2, 0, 1, 3).reshape(n, heads * d)


class GraphCache(Cache):
    """n tokens at positions that are known on the device only, within the first `span` positions of another cache.

    It reads from and writes to that cache. Attention reads the whole span and masks unused positions.
    """

    def __init__(self, storage: Tensor, n: int, span: int) -> None:
        both = storage.shape[2]
        self.length, self.capacity, self._heads = 0, span, both // 2
        self._storage, self._span = storage, torch.arange(span, device=storage.device)  # (span,)
        self.positions = torch.arange(n, device=storage.device)  # (n,), overwritten before every replay
        read = storage[:, None, :span].transpose(2, 3)  # (layers, 1, 2 heads, span, d)
        self._keys, self._values = read[:, :, : self._heads].unbind(0), read[:, :, self._heads :].unbind(0)

    def begin(self, n: int = 0) -> None:
        self._masks = {}

    def end(self) -> None:
        pass

    def rows(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.positions)

    def distances(self) -> Tensor:
        return self.positions[:, None] - self._span

    def mask(self, window: int | None = None) -> Tensor | None:
        if window not in self._masks:
            self._masks[window] = attention_mask(self.distances(), window, self._storage.dtype)
        return self._masks[window]

    def attend(self, layer: int, q: Tensor, kv: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        self._storage[layer].index_copy_(0, self.positions, kv)
        return attention(q, self._keys[layer], self._values[layer], mask, scale)


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

    def begin(self, n: int = 0) -> None:
        self._seen = None

    def mask(self, window: int | None = None) -> None:
        assert window is None

    @staticmethod
    def fits(n: int, query_heads: int, storage: Tensor) -> bool:
        """Return whether FlexAttention's decoding kernel takes n tokens.

        Its tile holds all queries that share a key-value head.
        """
        return storage.shape[-1] >= MIN_DIM and n * query_heads // (storage.shape[2] // 2) <= BLOCK

    def attend(self, layer: int, q: Tensor, kv: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        if self._seen is None:  # once per forward
            self._seen = self._visible()
        self._storage[layer].index_copy_(0, self.positions, kv)
        n, heads, d = q.shape
        # (1, heads, n, d)
        out = compiled_attention()(
            q.transpose(0, 1).unsqueeze(0), self._keys[layer], self._values[layer], self._seen, scale
        )
        return out[0].transpose(0, 1).reshape(n, heads * d)

    def _visible(self) -> BlockMask:
        """Return the mask of the n tokens: all positions up to each token's own."""
        positions = self.positions

        def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return key <= positions[query]

        count = (positions[-1:] // BLOCK + 1).to(torch.int32).view(1, 1, 1)
        return BlockMask.from_kv_blocks(
            count, self._blocks, BLOCK_SIZE=BLOCK, mask_mod=is_visible, seq_lengths=(len(positions), self.capacity),
            compute_q_blocks=False,
        )  # fmt: skip
