"""The preallocated key-value cache of a lean model, and attention over it. Truncating it only moves a position."""

import torch
import torch.nn.functional as F
from torch import Tensor

STEP = 256  # positions; capacities are this times a power of two


class Cache:
    """Keys and values of every layer, (layers, capacity, keys then values, head dim).

    A forward is `begin`, then one `attend` per layer, then `end`. The first `length` positions are valid; later ones
    are left over from earlier rounds and never read. The cache grows by copying and never moves otherwise.
    """

    def __init__(self, layers: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = self.capacity = self._total = 0
        self._heads = heads
        self._held = torch.empty(layers, 0, 2 * heads, dim, dtype=dtype, device=device)
        self._masks: dict[int | None, Tensor | None] = {}

    def begin(self, n: int) -> None:
        """Make room for n more positions, which `attend` writes and reads and `end` makes valid."""
        self._total = self.length + n
        if self._total > self.capacity:
            self._grow(self._total)
        self._masks = {}
        self._write = self._held[:, self.length : self._total].unbind(0)  # per layer: (n, 2 heads, d)
        read = self._held[:, None, : self._total].transpose(2, 3)  # (layers, 1, 2 heads, held, d)
        self._keys, self._values = read[:, :, : self._heads].unbind(0), read[:, :, self._heads :].unbind(0)

    @property
    def held(self) -> Tensor:
        """The tensor that holds all layers."""
        return self._held

    def end(self) -> None:
        """Make the positions of this forward valid."""
        self.length = self._total

    def rows(self, table: Tensor) -> Tensor:
        """Return a table's rows for the positions that are being fed: (positions, ...) -> (n, ...)."""
        return table[self.length : self._total]

    def distances(self) -> Tensor:
        """Return the distance from each fed position back to each cached one, (n, held); negative for later positions."""
        device = self._held.device
        fed = torch.arange(self.length, self._total, device=device)
        return fed[:, None] - torch.arange(self._total, device=device)

    def mask(self, window: int | None = None) -> Tensor | None:
        """Return an additive mask (n, held), -inf for later positions and those `window` or more before.

        None if nothing is masked. Computed once per forward.
        """
        if window not in self._masks:
            n, seen = self._total - self.length, window is None or window >= self._total
            self._masks[window] = (
                None if n == 1 and seen else attention_mask(self.distances(), window, self._held.dtype)
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
        layers, _, heads, dim = self._held.shape
        larger = self._held.new_empty(layers, self.capacity, heads, dim)
        larger[:, : self.length] = self._held[:, : self.length]
        self._held = larger


def attention_mask(distances: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return -inf where a distance is negative, or at least `window`; else 0."""
    hidden = distances < 0 if window is None else (distances < 0) | (distances >= window)
    return torch.zeros(distances.shape, dtype=dtype, device=distances.device).masked_fill_(hidden, -torch.inf)


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend with q (n, heads, d) to keys and values (1, key-value heads, held, d): (n, heads * d); mask (n, held) or
    (heads, n, held).

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
        mask = mask.repeat(group, 1)  # (group * n, held)
    out = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale)
    return out.view(shared, group, n, d).permute(2, 0, 1, 3).reshape(n, heads * d)
