"""Sessions with a key-value cache: memoised pure functions of the token sequence.

The caller owns the sequence and always passes all of it. The session finds the longest prefix that its cache holds,
drops the rest, and feeds the missing tokens in one forward. There is no rollback call that a method could forget.
"""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Usage

Feeds = list[tuple[int, int]]  # per forward: tokens fed, and positions cached before
KEPT_ROWS = 64  # newest positions whose logits are kept; an older one costs a forward


class DraftSettings(NamedTuple):
    """The settings that a draft graph is captured for: k tokens over a vocabulary of V, and the sampler's settings."""

    k: int
    vocabulary: int
    temperature: float
    top_k: int
    top_p: float
    feeds: bool  # whether it starts with a forward of the sequence's last token


class DraftInputs(NamedTuple):
    """The inputs of a draft: the last forward's logits (1, V), or the last token (1,) if it has not been fed.

    `states` (1, H) are those of the previous position, for drafts whose forwards read them.
    """

    logits: Tensor | None = None
    states: Tensor | None = None
    token: Tensor | None = None


class DraftOutputs(NamedTuple):
    """The outputs of a draft: k tokens with their distributions, and the outputs of its m forwards."""

    tokens: Tensor  # (k,)
    probs: Tensor  # (k, V)
    logits: Tensor  # (m, V), m = k if the draft `feeds`, else k - 1
    states: Tensor  # (m, H)


class DraftGraph(Protocol):
    """A whole draft in a single launch."""

    def replay(self, start: DraftInputs, uniforms: Tensor | None, first: int) -> DraftOutputs:
        """Draft, feeding positions from `first` on. The outputs are valid until the next replay."""


class CachedSession(ABC):
    """The bookkeeping of a session: cached tokens, kept logits, and timing of every forward.

    A subclass feeds tokens after the cached ones and truncates its cache. On a CUDA device forwards are timed by
    events, and nothing waits for the device until `finish`.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.usage = Usage()
        self.keeps_hidden = False
        self._states = States()
        self._name, self._device = name, device
        self._ids: list[int] = []  # the cached tokens
        self._rows: list[Tensor] = []  # logits (V,) of the newest positions of _ids
        self._finite: list[Tensor] = []  # flags () of forwards that have not been checked
        self._events: list[tuple[Feeds, Any, Any]] = []  # forwards, and the CUDA events around them

    def score(self, ids: list[int], start: int) -> Tensor:
        assert 0 <= start < len(ids)
        cached = common_prefix(ids, self._ids)
        first = len(self._ids) - len(self._rows)  # the oldest position whose logits are kept
        if start < first:
            cached = min(cached, start)
        if cached < len(ids):
            self._cut(cached)
            fed = to_device(ids[cached:], self._device)
            new = self._timed(fed, keep=len(ids) - max(cached, start), cached=cached)
            rows = [*self._rows, *new.unbind()] if start <= cached else [*new.unbind()]
            self._rows, self._ids = rows[-KEPT_ROWS:], list(ids)
            if new.shape[0] == len(ids) - start:
                return new
        else:
            rows = self._rows[: len(self._rows) - (len(self._ids) - len(ids))]
        return torch.stack(rows[len(rows) - (len(ids) - start) :])

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        if self._device.type == "cpu":
            return roll(self, ids, k, sampler, eos)
        return self.roll_at_once(ids, k, sampler, eos)

    def roll_at_once(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft as `roll` does with one read of the device: each token is fed before it is read.

        For devices that are expensive to wait for. Tokens drafted after an EOS are dropped, so drafts have the same
        distribution.
        """
        if k == 0:
            return Draft([], torch.empty(0, 0))
        if k == 1 and 0 < self.cached_length(ids) == len(ids) - 1 and (out := self._next(ids, sampler)) is not None:
            drawn, probs, rows = out
        else:
            logits = self.score(ids, len(ids) - 1)  # (1, V)
            self._cut(len(ids))
            drawn, probs, rows = self._drafted(logits, k, sampler, len(ids))
        tokens = read_tokens(drawn)
        self._ids, self._rows = ids + tokens[:-1], [*self._rows, *rows][-KEPT_ROWS:]
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), k)
        return Draft(tokens[:length], probs[:length])

    def find_draft(self, drafting: DraftSettings, length: int, start: DraftInputs) -> DraftGraph | None:
        """Return the graph of such a draft within `length` positions, or None."""
        return None

    def _drafted(self, logits: Tensor, k: int, sampler: Sampler, cached: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return tokens (k,) after the first `cached` positions, their distributions (k, V), and the forwards' logits.

        There are k - 1 forwards. The first token is drawn from logits (1, V). No token is read, so the host does not wait.
        """
        uniforms = sampler.uniforms(k, self._device)
        start = DraftInputs(logits, self._draft_states())
        drafting = DraftSettings(k, logits.shape[-1], sampler.temperature, sampler.top_k, sampler.top_p, feeds=False)
        graph = self.find_draft(drafting, cached + k - 1, start) if k > 1 and type(sampler) is Sampler else None
        if graph is not None:
            return self._replayed(graph, start, uniforms, cached, k - 1)
        drawn: list[Tensor] = []
        distributions: list[Tensor] = []
        rows: list[Tensor] = []
        for i in range(k):
            if drawn:
                fed = drawn[-1].clamp_min(0)  # INVALID, for which `read_tokens` raises, has no embedding
                logits = self._timed(fed, keep=1, cached=cached + i - 1)
                rows.append(logits[0])
            token, row = sampler.draw(logits, None if uniforms is None else uniforms[i : i + 1])  # (1,), (1, V)
            drawn.append(token)
            distributions.append(row)
        return torch.cat(drawn), torch.cat(distributions), rows

    def _next(self, ids: list[int], sampler: Sampler) -> tuple[Tensor, Tensor, list[Tensor]] | None:
        """Feed the last of ids and draw the next token in one graph. Returns None if no such graph was captured."""
        if not self._rows or self._draft_states() is not None or type(sampler) is not Sampler:
            return None
        cached, vocabulary = len(ids) - 1, self._rows[-1].shape[-1]
        drafting = DraftSettings(1, vocabulary, sampler.temperature, sampler.top_k, sampler.top_p, feeds=True)
        start = DraftInputs(token=to_device(ids[-1:], self._device))
        graph = self.find_draft(drafting, len(ids), start)
        if graph is None:
            return None
        self._cut(cached)
        return self._replayed(graph, start, sampler.uniforms(1, self._device), cached, 1)

    def _replayed(
        self, graph: DraftGraph, start: DraftInputs, uniforms: Tensor | None, cached: int, forwards: int
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Replay a draft graph and record its forwards; returns what `_drafted` does."""
        with torch.inference_mode(), self._clock([(1, cached + i) for i in range(forwards)]):
            out = DraftOutputs(*(each.clone() for each in graph.replay(start, uniforms, cached)))
        self._require_finite(out.logits)
        self._fed_by_graph(out)
        return out.tokens, out.probs, [*out.logits.unbind()]

    def _draft_states(self) -> Tensor | None:
        """Return the states (1, H) of the newest position, for forwards that read them."""
        return None

    def _fed_by_graph(self, out: DraftOutputs) -> None:
        """Keep the outputs of a draft graph's forwards. A session with its own cache also counts their positions."""
        self._keep(out.states)

    def hidden(self, ids: list[int], start: int) -> Tensor:
        assert self.keeps_hidden
        if self.cached_length(ids) < len(ids):
            self.score(ids, len(ids) - 1)
        return self._states.rows(start, len(ids))

    def room(self, ids: list[int]) -> int:
        return sys.maxsize  # `LimitedSession` wraps a session that has a limit

    def cached_length(self, ids: list[int]) -> int:
        return common_prefix(ids, self._ids)

    def finish(self) -> None:
        if self._events:
            torch.cuda.synchronize(self._device)
        for feeds, begin, end in self._events:
            self._record(feeds, begin.elapsed_time(end) / 1e3)
        if self._finite and not bool(torch.stack(self._finite).all()):
            raise FloatingPointError(f"{self._name}: NaN or infinite logits")
        self._events, self._finite = [], []

    @abstractmethod
    def logits_of(self, states: Tensor) -> Tensor: ...

    @abstractmethod
    def _forget(self, cached: int) -> None:
        """Truncate the cache to its first `cached` positions."""

    @abstractmethod
    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        """Feed `tokens` (n,) after the cached ones.

        Returns logits (keep, V) of the last `keep`, float32 or better, and the states (n, H) of all if they are kept.
        """

    def _cut(self, cached: int) -> None:
        """Truncate cache and kept logits to the first `cached` positions."""
        extra = len(self._ids) - cached
        if extra:
            self._forget(cached)
            self._states.cut(cached)
            self._rows, self._ids = self._rows[:-extra], self._ids[:cached]

    def _timed(self, tokens: Tensor, keep: int, cached: int) -> Tensor:
        """Run `_forward` after the first `cached` positions, and record its time."""
        feeds = [(tokens.shape[0], cached)]  # faster than len()
        if self._device.type == "cuda":
            with self._clock(feeds):
                logits, states = self._forward(tokens, keep)
            self._require_finite(logits)
        else:  # no context manager: its overhead is visible with small models
            start = time.perf_counter()
            logits, states = self._forward(tokens, keep)
            self._require_finite(logits)
            self._record(feeds, time.perf_counter() - start)
        self._keep(states)
        return logits

    @contextmanager
    def _clock(self, feeds: Feeds) -> Iterator[None]:
        """Record the time of the body, in equal parts for these forwards."""
        if self._device.type != "cuda":
            start = time.perf_counter()
            try:
                yield
            finally:
                self._record(feeds, time.perf_counter() - start)
            return
        cuda: Any = torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((feeds, begin, end))

    def _require_finite(self, logits: Tensor) -> None:
        """Raise FloatingPointError for logits that are not finite; on a CUDA device, `finish` raises it later."""
        if self._device.type == "cuda":
            self._finite.append(logits.sum().isfinite())
        elif not math.isfinite(logits.sum().item()):
            raise FloatingPointError(f"{self._name}: NaN or infinite logits")

    def _keep(self, states: Tensor | None) -> None:
        """Store hidden states if they are kept."""
        if self.keeps_hidden:
            assert states is not None
            self._states.append(states)

    def _record(self, feeds: Feeds, seconds: float) -> None:
        """Record forwards that took `seconds` together."""
        for fed, cached in feeds:
            if cached:
                self.usage.decoding(fed, seconds / len(feeds), cached)
            else:
                self.usage.prefill(fed, seconds / len(feeds))


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
