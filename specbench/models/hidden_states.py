"""The last layer's hidden states of a sequence, kept for verifiers, stop rules and EAGLE heads."""

import torch
from torch import Tensor


class States:
    """A growable tensor of rows (length, H) that can be truncated in constant time."""

    def __init__(self) -> None:
        self._held = torch.empty(0, 0)
        self.length = 0

    def append(self, rows: Tensor) -> None:
        """Append rows (n, H). The first call determines H."""
        total = self.length + len(rows)
        if total > len(self._held):
            larger = rows.new_empty(max(256, 2 * total), rows.shape[-1])
            if self.length:
                larger[: self.length] = self._held[: self.length]
            self._held = larger
        self._held[self.length : total] = rows
        self.length = total

    def cut(self, length: int) -> None:
        """Truncate to `length` rows."""
        self.length = min(self.length, length)

    def rows(self, start: int, end: int) -> Tensor:
        """Return a copy (end - start, H), since later rounds overwrite the rows."""
        assert 0 <= start < end <= self.length
        return self._held[start:end].clone()
