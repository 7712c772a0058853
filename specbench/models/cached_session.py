"""Floor 0: a session is a memoised pure function of a token sequence, and what it has cost.

The caller owns the sequence and always passes all of it. The session finds the longest prefix that it has in its cache,
forgets the rest, and feeds what is missing in one forward. Nobody rolls a cache back, so nobody can forget to.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.usage import Usage
from specbench.models.draft_graph import Drafted, DraftGraph, Drafting, Start
from specbench.models.hidden_states import States

Feeds = list[tuple[int, int]]  # forwards: tokens fed, and positions cached before
KEPT_ROWS = 64  # logits kept of the newest positions; asking for an older one costs a forward, never a wrong answer


class CachedSession(ABC):
    """The bookkeeping of a session: what is cached, which logits are kept, and the clock around every forward.

    A subclass feeds tokens behind what is cached and cuts its cache back. On a CUDA device forwards are timed by events,
    and nothing is waited for until `settle`.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.usage = Usage()
        self.keeps_hidden = False
        self._states = States()
        self._name, self._device = name, device
        self._ids: list[int] = []  # what the cache holds
        self._rows: list[Tensor] = []  # logits (V,) of the newest positions of _ids
        self._finite: list[Tensor] = []  # of forwards that were not waited for
        self._events: list[tuple[Feeds, Any, Any]] = []  # forwards, and the CUDA events around them

    def score(self, ids: list[int], start: int) -> Tensor:
        assert 0 <= start < len(ids)
        known = common_prefix(ids, self._ids)
        first = len(self._ids) - len(self._rows)  # the oldest position whose logits are kept
        if start < first:
            known = min(known, start)
        if known < len(ids):
            self._cut(known)
            fed = to_device(ids[known:], self._device)
            new = self._timed(fed, keep=len(ids) - max(known, start), known=known)
            rows = [*self._rows, *new.unbind()] if start <= known else [*new.unbind()]
            self._rows, self._ids = rows[-KEPT_ROWS:], list(ids)
            if len(new) == len(ids) - start:
                return new
        else:
            rows = self._rows[: len(self._rows) - (len(self._ids) - len(ids))]
        return torch.stack(rows[len(rows) - (len(ids) - start) :])

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        if self._device.type == "cpu":
            return roll(self, ids, k, sampler, eos)
        return self.roll_at_once(ids, k, sampler, eos)

    def roll_at_once(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """`roll` with one read of the device: each token is fed before it is read.

        For devices that it costs to wait for. What was drafted after an EOS is dropped, so the draft is distributed alike.
        """
        if k == 0:
            return Draft([], torch.empty(0, 0))
        if k == 1 and 0 < self.known(ids) == len(ids) - 1 and (out := self._next(ids, sampler)) is not None:
            drawn, probs, rows = out
        else:
            logits = self.score(ids, len(ids) - 1)  # (1, V)
            self._cut(len(ids))
            drawn, probs, rows = self._drafted(logits, k, sampler, len(ids))
        tokens = read_tokens(drawn)
        self._ids, self._rows = ids + tokens[:-1], [*self._rows, *rows][-KEPT_ROWS:]
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), k)
        return Draft(tokens[:length], probs[:length])

    def find_draft(self, drafting: Drafting, length: int, start: Start) -> DraftGraph | None:
        """The graph of such a draft within `length` positions, if there is one."""
        return None

    def _drafted(self, logits: Tensor, k: int, sampler: Sampler, known: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Tokens (k,) after `known` cached positions, what they were drawn from (k, V), and the logits of the k - 1 forwards.

        The first is drawn from logits (1, V). No token is read, so the host does not wait.
        """
        uniforms = sampler.uniforms(k, self._device)
        start = Start(logits, self._draft_states())
        drafting = Drafting(k, logits.shape[-1], sampler.temperature, sampler.top_k, sampler.top_p, feeds=False)
        graph = self.find_draft(drafting, known + k - 1, start) if k > 1 and type(sampler) is Sampler else None
        if graph is not None:
            return self._replayed(graph, start, uniforms, known, k - 1)
        drawn: list[Tensor] = []
        laws: list[Tensor] = []
        rows: list[Tensor] = []
        for i in range(k):
            if drawn:
                fed = drawn[-1].clamp_min(0)  # INVALID, which `read_tokens` reports, has no embedding
                logits = self._timed(fed, keep=1, known=known + i - 1)
                rows.append(logits[0])
            token, law = sampler.draw(logits, None if uniforms is None else uniforms[i : i + 1])  # (1,), (1, V)
            drawn.append(token)
            laws.append(law)
        return torch.cat(drawn), torch.cat(laws), rows

    def _next(self, ids: list[int], sampler: Sampler) -> tuple[Tensor, Tensor, list[Tensor]] | None:
        """Feed the last of ids and draw the next token in one graph. Returns None if no such graph was captured."""
        if not self._rows or self._draft_states() is not None or type(sampler) is not Sampler:
            return None
        known, vocabulary = len(ids) - 1, self._rows[-1].shape[-1]
        drafting = Drafting(1, vocabulary, sampler.temperature, sampler.top_k, sampler.top_p, feeds=True)
        start = Start(token=to_device(ids[-1:], self._device))
        graph = self.find_draft(drafting, len(ids), start)
        if graph is None:
            return None
        self._cut(known)
        return self._replayed(graph, start, sampler.uniforms(1, self._device), known, 1)

    def _replayed(
        self, graph: DraftGraph, start: Start, uniforms: Tensor | None, known: int, forwards: int
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Replay a draft and book its forwards; returns what `_drafted` does."""
        with torch.inference_mode(), self._clock([(1, known + i) for i in range(forwards)]):
            out = Drafted(*(each.clone() for each in graph.replay(start, uniforms, known)))
        self._require_finite(out.logits)
        self._fed_by_graph(out)
        return out.tokens, out.probs, [*out.logits.unbind()]

    def _draft_states(self) -> Tensor | None:
        """States (1, H) of the newest position, for forwards that read them."""
        return None

    def _fed_by_graph(self, out: Drafted) -> None:
        """Keep what the forwards of a draft graph gave; a session with a cache of its own also counts their positions."""
        self._keep(out.states)

    def hidden(self, ids: list[int], start: int) -> Tensor:
        assert self.keeps_hidden
        if self.known(ids) < len(ids):
            self.score(ids, len(ids) - 1)
        return self._states.rows(start, len(ids))

    def known(self, ids: list[int]) -> int:
        return common_prefix(ids, self._ids)

    def settle(self) -> None:
        if self._events:
            torch.cuda.synchronize(self._device)
        for feeds, begin, end in self._events:
            self._book(feeds, begin.elapsed_time(end) / 1e3)
        if self._finite and not bool(torch.stack(self._finite).all()):
            raise FloatingPointError(f"{self._name}: NaN or infinite logits")
        self._events, self._finite = [], []

    @abstractmethod
    def logits_of(self, states: Tensor) -> Tensor: ...

    @abstractmethod
    def _forget(self, known: int) -> None:
        """Cut the cache back to its first `known` positions."""

    @abstractmethod
    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        """Feed `tokens` (n,) behind what is cached. The logits of the last `keep`, (keep, V), float32 or better; and the
        states of all, (n, H), where they are kept."""

    def _cut(self, known: int) -> None:
        """Cut cache and kept logits back to the first `known` positions."""
        extra = len(self._ids) - known
        if extra:
            self._forget(known)
            self._states.cut(known)
            self._rows, self._ids = self._rows[:-extra], self._ids[:known]

    def _timed(self, tokens: Tensor, keep: int, known: int) -> Tensor:
        """`_forward` after `known` cached positions, booked."""
        feeds = [(len(tokens), known)]
        if self._device.type == "cuda":
            with self._clock(feeds):
                logits, states = self._forward(tokens, keep)
            self._require_finite(logits)
        else:  # without the context manager, whose microseconds a small model on a CPU would show
            start = time.perf_counter()
            logits, states = self._forward(tokens, keep)
            self._require_finite(logits)
            self._book(feeds, time.perf_counter() - start)
        self._keep(states)
        return logits

    @contextmanager
    def _clock(self, feeds: Feeds) -> Iterator[None]:
        """Book the time of what runs inside, in equal parts to these forwards."""
        if self._device.type != "cuda":
            start = time.perf_counter()
            try:
                yield
            finally:
                self._book(feeds, time.perf_counter() - start)
            return
        cuda: Any = torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((feeds, begin, end))

    def _require_finite(self, logits: Tensor) -> None:
        """Raise FloatingPointError for logits that are not finite; on a CUDA device `settle` does, so that nobody waits."""
        if self._device.type == "cuda":
            self._finite.append(logits.sum().isfinite())
        elif not math.isfinite(logits.sum().item()):
            raise FloatingPointError(f"{self._name}: NaN or infinite logits")

    def _keep(self, states: Tensor | None) -> None:
        if self.keeps_hidden:
            assert states is not None
            self._states.append(states)

    def _book(self, feeds: Feeds, seconds: float) -> None:
        for fed, known in feeds:
            if known:
                self.usage.decoding(fed, seconds / len(feeds), known)
            else:
                self.usage.prefill(fed, seconds / len(feeds))
