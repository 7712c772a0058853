"""Floor 0: a session is a memoised pure function of a token sequence, and what it has cost.

The caller owns the sequence and always passes all of it. The session finds the longest prefix that it has in its cache,
forgets the rest, and feeds what is missing in one forward. Nobody rolls a cache back, so nobody can forget to.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from specbench.calls import Calls
from specbench.sampling import Draft, Sampler, read_tokens

KEPT_ROWS = 64  # logits kept of the newest positions; asking for an older one costs a forward, never a wrong answer


class Concurrent(Protocol):
    """A session that works while others do: asked first, it answers later."""

    @property
    def calls(self) -> Calls:
        """What it has cost so far; a new object with every answer."""

    @property
    def busy(self) -> float:
        """Seconds that it worked on its last answer; 0 where nobody can tell."""

    @property
    def moved(self) -> int:
        """Bytes that went to it and came from it so far."""

    def ask(self, ids: list[int], start: int) -> None:
        """Begin what `Session.score` does."""

    def answer(self) -> Tensor:
        """What `Session.score` would have given."""

    def settle(self) -> None:
        """As `Session.settle`."""


class Session(Protocol):
    """What a method sees of a model: next-token logits after any prefix, drafts that follow them, and what they cost."""

    @property
    def calls(self) -> Calls: ...

    def score(self, ids: list[int], start: int) -> Tensor:
        """Logits (len(ids) - start, V): row j is the next token's after ids[: start + j + 1]."""

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, a forward each, none behind an EOS. The first forward reads what is unread."""

    def settle(self) -> None:
        """Book what a device has not told yet. Raises FloatingPointError for logits that were not finite."""


def roll(
    session: Session,
    ids: list[int],
    k: int,
    sampler: Sampler,
    eos: frozenset[int],
    stops: Callable[[Tensor], bool] | None = None,
) -> Draft:
    """`Session.roll` by one `score` a token, each read before the next.

    `stops` is asked, with the logits (1, V), whether to draw no further token.
    """
    tokens: list[int] = []
    laws: list[Tensor] = []
    stopped = False
    while len(tokens) < k and not (tokens and tokens[-1] in eos):
        read = ids + tokens
        logits = session.score(read, len(read) - 1)  # (1, V)
        stopped = stops is not None and stops(logits)
        if stopped:
            break
        token, law = sampler.draw(logits)  # (1,), (1, V)
        tokens += read_tokens(token)
        laws.append(law)
    return Draft(tokens, torch.cat(laws) if laws else torch.empty(0, 0), stopped)


class CachedSession(ABC):
    """The bookkeeping of a session: what is cached, which logits are kept, and the clock around every forward.

    A subclass feeds tokens behind what is cached and cuts its cache back. On a CUDA device forwards are timed by events,
    and nothing is waited for until `settle`.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.calls = Calls()
        self._name, self._device = name, device
        self._ids: list[int] = []  # what the cache holds
        self._rows: list[Tensor] = []  # logits (V,) of the newest positions of _ids
        self._finite: list[Tensor] = []  # of forwards that were not waited for
        self._events: list[tuple[int, int, Any, Any]] = []  # tokens fed, cached before, and what CUDA timed around it

    def score(self, ids: list[int], start: int) -> Tensor:
        assert 0 <= start < len(ids)
        known = common_prefix(ids, self._ids)
        first = len(self._ids) - len(self._rows)  # the oldest position whose logits are kept
        if start < first:
            known = min(known, start)
        if known < len(ids):
            self._cut(known)
            fed = torch.tensor(ids[known:], device=self._device)
            new = self._timed(fed, keep=len(ids) - max(known, start), known=known)
            rows = [*self._rows, *new.unbind()] if start <= known else [*new.unbind()]
            self._rows, self._ids = rows[-KEPT_ROWS:], list(ids)
            if len(new) == len(ids) - start:
                return new
        else:
            rows = self._rows[: len(self._rows) - (len(self._ids) - len(ids))]
        return torch.stack(rows[len(rows) - (len(ids) - start) :])

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def settle(self) -> None:
        if self._events:
            torch.cuda.synchronize(self._device)
        for fed, known, begin, end in self._events:
            self._book(fed, known, begin.elapsed_time(end) / 1e3)
        if self._finite and not bool(torch.stack(self._finite).all()):
            raise FloatingPointError(f"{self._name}: NaN or infinite logits")
        self._events, self._finite = [], []

    @abstractmethod
    def _forget(self, known: int) -> None:
        """Cut the cache back to its first `known` positions."""

    @abstractmethod
    def _forward(self, tokens: Tensor, keep: int) -> Tensor:
        """Feed `tokens` (n,) behind what is cached; the logits of the last `keep`, (keep, V), float32 or better."""

    def _cut(self, known: int) -> None:
        """Cut cache and kept logits back to the first `known` positions."""
        extra = len(self._ids) - known
        if extra:
            self._forget(known)
            self._rows, self._ids = self._rows[:-extra], self._ids[:known]

    def _timed(self, tokens: Tensor, keep: int, known: int) -> Tensor:
        """`_forward` behind `known` cached positions, booked."""
        if self._device.type == "cuda":
            cuda: Any = torch.cuda
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            logits = self._forward(tokens, keep)
            end.record()
            self._finite.append(logits.sum().isfinite())
            self._events.append((len(tokens), known, begin, end))
            return logits
        start = time.perf_counter()
        logits = self._forward(tokens, keep)
        finite = math.isfinite(logits.sum().item())
        self._book(len(tokens), known, time.perf_counter() - start)
        if not finite:
            raise FloatingPointError(f"{self._name}: NaN or infinite logits")
        return logits

    def _book(self, fed: int, known: int, seconds: float) -> None:
        if known:
            self.calls.decoding(fed, seconds, known)
        else:
            self.calls.prefill(fed, seconds)


class EagerSession(CachedSession):
    """A session over any transformers decoder-only or encoder-decoder model, run eagerly, batch size 1.

    `vocabulary` crops the logits to the V that all models of a pair share. For an encoder-decoder model `source` holds the
    encoder's ids, and `ids` is the decoder's prefix; the encoder runs once, with the first forward. Raises ValueError for
    an architecture whose cache cannot be cut back (sliding windows, recurrent states), naming the layer type.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int, source: list[int] | None = None) -> None:
        super().__init__(model.config.name_or_path, model.device)
        self._model, self._vocabulary = model, vocabulary
        self._source = source
        self._encoded: Any = None
        self._cache = new_cache(model)

    def _forget(self, known: int) -> None:
        self._cache.crop(known - len(self._ids))

    def _forward(self, tokens: Tensor, keep: int) -> Tensor:
        fed = tokens.unsqueeze(0)
        with torch.inference_mode():
            if self._source is None:
                out = self._model(input_ids=fed, past_key_values=self._cache, use_cache=True, logits_to_keep=keep)
            else:
                if self._encoded is None:
                    self._encoded = encoded(self._model, self._source, self.calls)
                out = self._model(
                    decoder_input_ids=fed, encoder_outputs=self._encoded, past_key_values=self._cache, use_cache=True
                )
            logits: Tensor = out.logits[0, -keep:, : self._vocabulary]
            return logits if logits.dtype == torch.float64 else logits.float()


def encoded(model: PreTrainedModel, source: list[int], calls: Calls) -> Any:
    """The encoder's output for `source`, as transformers gives it; its seconds belong to the forward that asks for it."""
    calls.encodes += 1
    calls.prefill_fed += len(source)
    return model.get_encoder()(input_ids=torch.tensor([source], device=model.device))


def window_of(model: PreTrainedModel) -> int | None:
    """The most tokens that a model can read; None is no limit, as for relative positions."""
    return None if model.config.is_encoder_decoder else model.config.max_position_embeddings


def new_cache(model: PreTrainedModel) -> Cache:
    """An empty cache that can be cut back to any length. Raises ValueError, naming the layer type, where none can."""
    cache = DynamicCache(config=model.config)
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            kind = type(layer).__name__
            raise ValueError(f"{model.config.name_or_path}: a cache of {kind} cannot be cut back after a rejection")
    return EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix, by bisection over slices: long prompts compare at C speed."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # a[:low] == b[:low], a[:high] != b[:high]
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
