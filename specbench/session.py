"""Floor 0: a session is a memoised pure function of a token sequence, and the only place that knows what a KV cache is.

The caller owns the sequence and always passes all of it. The session finds the longest prefix that it has in its cache,
forgets the rest, and feeds what is missing in one forward. Nobody rolls a cache back, so nobody can forget to.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

KEPT_ROWS = 64  # logits kept of the newest positions; asking for an older one costs a forward, never a wrong answer


@dataclass
class Calls:
    """What a session has cost. The first forward, with the encoder's, is prefill; all others are decoding."""

    prefill_fed: int = 0  # tokens of the first forward, and of the encoder's
    prefill_seconds: float = 0.0
    encodes: int = 0  # encoder forwards: at most one a prompt
    forwards: int = 0
    fed: int = 0
    seconds: float = 0.0
    by_fed: dict[int, list[float]] = field(default_factory=dict)  # tokens fed -> [forwards, seconds]

    def decoding(self, fed: int, seconds: float) -> None:
        self.forwards += 1
        self.fed += fed
        self.seconds += seconds
        size = self.by_fed.setdefault(fed, [0, 0.0])
        size[0] += 1
        size[1] += seconds


class Session(Protocol):
    """What a method sees of a model: next-token logits after any prefix, and what they cost."""

    calls: Calls

    def score(self, ids: list[int], start: int) -> Tensor:
        """Logits (len(ids) - start, V): row j is the next token's after ids[: start + j + 1]."""


class EagerSession:
    """A session over any transformers decoder-only or encoder-decoder model, run eagerly, batch size 1.

    `vocabulary` crops the logits to the V that all models of a pair share. For an encoder-decoder model `source` holds the
    encoder's ids, and `ids` is the decoder's prefix; the encoder runs once, with the first forward. Raises ValueError for
    an architecture whose cache cannot be cut back (sliding windows, recurrent states), naming the layer type.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int, source: list[int] | None = None) -> None:
        self.calls = Calls()
        self._model, self._vocabulary = model, vocabulary
        self._source = source
        self._encoded: Any = None
        self._cache = new_cache(model)
        self._ids: list[int] = []  # what the cache holds
        self._rows: list[Tensor] = []  # logits (V,) of the newest positions of _ids

    def score(self, ids: list[int], start: int) -> Tensor:
        assert 0 <= start < len(ids)
        known = common_prefix(ids, self._ids)
        first = len(self._ids) - len(self._rows)  # the oldest position whose logits are kept
        if start < first:
            known = min(known, start)
        if known < len(ids):
            self._forget(known)
            new = self._forward(ids[known:], keep=len(ids) - max(known, start))
            rows = [*self._rows, *new] if start <= known else list(new)
            self._rows, self._ids = rows[-KEPT_ROWS:], list(ids)
            if len(new) == len(ids) - start:
                return new
        else:
            rows = self._rows[: len(self._rows) - (len(self._ids) - len(ids))]
        return torch.stack(rows[len(rows) - (len(ids) - start) :])

    def _forget(self, known: int) -> None:
        """Cut cache and kept logits back to the first `known` positions."""
        extra = len(self._ids) - known
        if extra:
            self._cache.crop(-extra)
            self._rows = self._rows[:-extra]
            self._ids = self._ids[:known]

    def _forward(self, tokens: list[int], keep: int) -> Tensor:
        """Feed `tokens` behind what is cached, timed until the logits can be read; the last `keep` rows, (keep, V)."""
        begin, first = time.perf_counter(), not self._ids
        fed = torch.tensor([tokens], device=self._model.device)
        with torch.inference_mode():
            if self._source is None:
                out = self._model(input_ids=fed, past_key_values=self._cache, use_cache=True, logits_to_keep=keep)
            else:
                out = self._model(
                    decoder_input_ids=fed, encoder_outputs=self._encode(), past_key_values=self._cache, use_cache=True
                )
            logits: Tensor = out.logits[0, -keep:, : self._vocabulary]
            logits = logits if logits.dtype == torch.float64 else logits.float()
            finite = bool(logits.sum().isfinite())
        seconds = time.perf_counter() - begin
        if first:
            self.calls.prefill_fed += len(tokens)
            self.calls.prefill_seconds += seconds
        else:
            self.calls.decoding(len(tokens), seconds)
        if not finite:
            raise FloatingPointError(f"{self._model.config.name_or_path}: NaN or infinite logits")
        return logits

    def _encode(self) -> Any:
        assert self._source is not None
        if self._encoded is None:
            source = torch.tensor([self._source], device=self._model.device)
            self._encoded = self._model.get_encoder()(input_ids=source)
            self.calls.encodes += 1
            self.calls.prefill_fed += len(self._source)
        return self._encoded


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
