"""A key-value cache whose positions are stored on the device only, for CUDA graphs."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from specbench.models.engine.cache import Cache, attention, attention_mask
from specbench.models.engine.fusing import compiled_attention

BLOCK = 128  # positions that FlexAttention reads or skips as a unit
MIN_DIM = 16  # smallest head dimension that FlexAttention supports


class Place(Cache):
    """n tokens at positions that are known on the device only, within the first `span` positions of another cache.

    It reads from and writes to that cache. Attention reads the whole span and masks unused positions.
    """

    def __init__(self, held: Tensor, n: int, span: int) -> None:
        both = held.shape[2]
        self.length, self.capacity, self._heads = 0, span, both // 2
        self._held, self._span = held, torch.arange(span, device=held.device)  # (span,)
        self.positions = torch.arange(n, device=held.device)  # (n,), overwritten before every replay
        read = held[:, None, :span].transpose(2, 3)  # (layers, 1, 2 heads, span, d)
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
            self._masks[window] = attention_mask(self.distances(), window, self._held.dtype)
        return self._masks[window]

    def attend(self, layer: int, q: Tensor, kv: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        self._held[layer].index_copy_(0, self.positions, kv)
        return attention(q, self._keys[layer], self._values[layer], mask, scale)


class SplitPlace(Place):
    """A place whose attention reads occupied blocks only, using FlexAttention.

    The number of blocks is on the device, so one span serves sequences of every length. FlexAttention's decoding kernel
    distributes the blocks over the multiprocessors.
    """

    def __init__(self, held: Tensor, n: int, span: int) -> None:
        super().__init__(held, n, span)
        blocks = -(-span // BLOCK)
        self._blocks = torch.arange(blocks, dtype=torch.int32, device=held.device).view(1, 1, 1, blocks)
        self._seen: BlockMask | None = None

    def begin(self, n: int = 0) -> None:
        self._seen = None

    def mask(self, window: int | None = None) -> None:
        assert window is None

    @staticmethod
    def fits(n: int, query_heads: int, held: Tensor) -> bool:
        """Return whether FlexAttention's decoding kernel takes n tokens: its tile holds all queries that share a
        key-value head.
        """
        return held.shape[-1] >= MIN_DIM and n * query_heads // (held.shape[2] // 2) <= BLOCK

    def attend(self, layer: int, q: Tensor, kv: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        if self._seen is None:  # once per forward
            self._seen = self._visible()
        self._held[layer].index_copy_(0, self.positions, kv)
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
