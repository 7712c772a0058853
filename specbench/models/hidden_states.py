"""Floor 0: the last layer's hidden states of a sequence, kept for those who read them: gates, stop rules, EAGLE heads."""

import torch
from torch import Tensor


class States:
    """A growing tensor of rows, (length, H); cutting back is a position."""

    def __init__(self) -> None:
        self._held = torch.empty(0, 0)
        self.length = 0

    def append(self, rows: Tensor) -> None:
        """Hold rows (n, H) behind what is held; an empty one takes any H."""
        total = self.length + len(rows)
        if total > len(self._held):
            larger = rows.new_empty(max(256, 2 * total), rows.shape[-1])
            if self.length:
                larger[: self.length] = self._held[: self.length]
            self._held = larger
        self._held[self.length : total] = rows
        self.length = total

    def cut(self, length: int) -> None:
        self.length = min(self.length, length)

    def rows(self, start: int, end: int) -> Tensor:
        """(end - start, H), a copy: later rounds overwrite what is held."""
        assert 0 <= start < end <= self.length
        return self._held[start:end].clone()
