"""Sessions with a key-value cache: cached pure functions of the token sequence.

The caller owns the sequence and always passes all of it. The session finds the longest prefix that is cached, and its feeder
drops the rest and reads the missing tokens in one forward. There is no rollback call that a method could forget.
"""

import sys

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Usage
from specbench.models.feeding import DraftInputs, Feed, Feeder, TimedFeeder, UnreadDraft

KEPT_ROWS = 64  # newest positions whose logits are kept; an older one costs a forward


class CachedSession:
    """A session over a feeder. Keeps the cached tokens, the logits of the newest positions, and hidden states on request."""

    def __init__(self, feeder: Feeder) -> None:
        self.feeder, self.timed = feeder, TimedFeeder(feeder)
        self._states = States()
        self._ids: list[int] = []  # the cached tokens
        self._rows: list[Tensor] = []  # logits (V,) of the newest positions of _ids

    @property
    def usage(self) -> Usage:
        return self.timed.usage

    @property
    def keeps_hidden(self) -> bool:
        return self.feeder.keeps_states

    @keeps_hidden.setter
    def keeps_hidden(self, value: bool) -> None:
        self.feeder.keeps_states = value

    def score(self, ids: list[int], start: int) -> Tensor:
        assert 0 <= start < len(ids)
        cached = common_prefix(ids, self._ids)
        first = len(self._ids) - len(self._rows)  # the oldest position whose logits are kept
        if start < first:
            cached = min(cached, start)
        if cached < len(ids):
            self._cut(cached)
            tokens = to_device(ids[cached:], self.feeder.device)
            out = self.timed.feed(Feed(tokens, cached), len(ids) - max(cached, start))
            self._keep(out.states)
            new = out.logits
            rows = [*self._rows, *new.unbind()] if start <= cached else [*new.unbind()]
            self._rows, self._ids = rows[-KEPT_ROWS:], list(ids)
            if new.shape[0] == len(ids) - start:
                return new
        else:
            rows = self._rows[: len(self._rows) - (len(self._ids) - len(ids))]
        return torch.stack(rows[len(rows) - (len(ids) - start) :])

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        if self.feeder.device.type == "cpu":
            return roll(self, ids, k, sampler, eos)
        return self.roll_at_once(ids, k, sampler, eos)

    def roll_at_once(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft as `roll` does with one read of the device: each token is fed before it is read.

        For devices that are expensive to wait for. Tokens drafted after an EOS are dropped, so drafts have the same
        distribution.
        """
        if k == 0:
            return Draft([], torch.empty(0, 0))
        out = self._next(ids, sampler) if k == 1 else None
        if out is None:
            logits = self.score(ids, len(ids) - 1)  # (1, V)
            self._cut(len(ids))
            out = self.timed.draft(DraftInputs(logits), k, sampler, len(ids))
        for states in out.states:
            self._keep(states)
        tokens = read_tokens(out.tokens)
        rows = [row for logits in out.logits for row in logits.unbind()]
        self._ids, self._rows = ids + tokens[:-1], [*self._rows, *rows][-KEPT_ROWS:]
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), k)
        return Draft(tokens[:length], out.probs[:length])

    def _next(self, ids: list[int], sampler: Sampler) -> UnreadDraft | None:
        """Feed the last of ids and draw the next token in one graph; None if there is none, or if more has to be fed."""
        cached = len(ids) - 1
        if not self._rows or not 0 < self.cached_length(ids) == cached:
            return None
        token = to_device(ids[-1:], self.feeder.device)
        out = self.timed.draw_next(token, cached, self._rows[-1].shape[-1], sampler)
        if out is not None:
            self._cut(cached)
        return out

    def hidden(self, ids: list[int], start: int) -> Tensor:
        assert self.keeps_hidden
        if self.cached_length(ids) < len(ids):
            self.score(ids, len(ids) - 1)
        return self._states.rows(start, len(ids))

    def room(self, ids: list[int]) -> int:
        return sys.maxsize  # `LimitedSession` wraps a session that has a limit

    def cached_length(self, ids: list[int]) -> int:
        return common_prefix(ids, self._ids)

    def logits_of(self, states: Tensor) -> Tensor:
        return self.feeder.logits_of(states)

    def finish(self) -> None:
        self.timed.finish()

    def _cut(self, cached: int) -> None:
        """Forget everything after the first `cached` positions."""
        extra = len(self._ids) - cached
        if extra:
            self._states.cut(cached)
            self._rows, self._ids = self._rows[:-extra], self._ids[:cached]

    def _keep(self, states: Tensor | None) -> None:
        """Store hidden states if they are kept."""
        if self.feeder.keeps_states:
            assert states is not None
            self._states.append(states)


class States:
    """A growable tensor of rows (length, H) that can be truncated in constant time."""

    def __init__(self) -> None:
        self._storage = torch.empty(0, 0)
        self.length = 0

    def append(self, rows: Tensor) -> None:
        """Append rows (n, H). The first call determines H."""
        total = self.length + len(rows)
        if total > len(self._storage):
            larger = rows.new_empty(max(256, 2 * total), rows.shape[-1])
            if self.length:
                larger[: self.length] = self._storage[: self.length]
            self._storage = larger
        self._storage[self.length : total] = rows
        self.length = total

    def cut(self, length: int) -> None:
        """Truncate to `length` rows."""
        self.length = min(self.length, length)

    def rows(self, start: int, end: int) -> Tensor:
        """Return a copy (end - start, H), since later rounds overwrite the rows."""
        assert 0 <= start < end <= self.length
        return self._storage[start:end].clone()
