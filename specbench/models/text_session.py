"""Drafts through text by a model with another tokenizer (SLEM). Timor et al. 2025, arXiv 2502.05202."""

from typing import Protocol

from transformers import PreTrainedTokenizerBase

from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session, Usage
from specbench.models.vocabulary_map import TokenBytes

GREEDY = Sampler(0.0)
TAIL = 10  # committed tokens that are encoded again with the drafted text, so that a token may continue a word
PARTIAL = "\N{REPLACEMENT CHARACTER}"  # of bytes that are no whole character


class Codec(Protocol):
    """The texts of tokens, and the tokens of texts, without special tokens."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def continued(self, before: list[int], text: str) -> list[int] | None:
        """Return tokens that stand for exactly this text after other tokens; None if there are none."""


class TokenizerCodec:
    """A codec of a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._bytes = tokenizer, TokenBytes(tokenizer)

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def continued(self, before: list[int], text: str) -> list[int] | None:
        return self._bytes.continued(before, text)


class TextSession:
    """Drafts for a target by a model that reads and writes text.

    The committed tokens are decoded and encoded with the drafter's tokenizer. What the drafter writes is decoded, and encoded
    with the target's tokenizer. If the drafter's tokens are `ab` and `c` and the target's are `a` and `bc`, a draft of two
    tokens, `ab` `c`, is drafted as `a` `bc`.

    Args:
        session: The drafter, in its own ids.
        own: The drafter's codec.
        target: The target's codec.
        start: The drafter's ids before every sequence, at least one.
        eos: The drafter's EOS ids, which end a draft.
        end: The target's token for the end of a text; by default the lowest of its EOS ids.
    """

    def __init__(
        self, session: Session, own: Codec, target: Codec, start: list[int], eos: frozenset[int], end: int | None = None
    ) -> None:
        self._session, self._own, self._target, self._start, self._eos = session, own, target, start, eos
        self._end = end

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def finish(self) -> None:
        self._session.finish()

    def draft(self, ids: list[int], k: int, eos: frozenset[int]) -> list[int]:
        """Return the target's tokens of the text that the drafter writes after ids: greedily, k tokens of its own.

        A drafted EOS becomes the target's. Empty where ids end within a character.
        """
        text = self._target.decode(ids)
        if text.endswith(PARTIAL):
            return []
        own = [*self._start, *self._own.encode(text)]
        tokens = self._session.roll(own, min(k, self._session.room(own)), GREEDY, self._eos).tokens
        ended = bool(tokens) and tokens[-1] in self._eos
        drafted = [token for token in tokens if token not in self._eos]
        committed = own[len(self._start) :]
        before, whole = self._own.decode(committed), self._own.decode(committed + drafted)
        # A token alone may be decoded without the space that it has within a text
        written = whole[len(before) :] if whole.startswith(before) else self._own.decode(drafted)
        written = written.rstrip(PARTIAL)
        found = self._encoded(ids[-TAIL:], written) if written else []
        if not ended or not eos:
            return found
        return [*found, self._end if self._end in eos else min(eos)]

    def _encoded(self, tail: list[int], text: str) -> list[int]:
        """Return the target's tokens of a text after the tokens `tail`; none if it cannot be aligned with them.

        The text is encoded together with the end of `tail` after its last special token, or with a shorter end if that
        changes its tokens. If a blank that the tokenizer adds before a text changes them, the tokens that continue `tail` are
        taken. A text after a special token is encoded alone.
        """
        special = next((i for i in range(len(tail), 0, -1) if not self._target.decode(tail[i - 1 : i])), 0)
        tail = tail[special:]
        if not tail:
            return self._target.encode(text)
        for length in dict.fromkeys((len(tail), len(tail) // 2, 2, 1)):
            end = tail[-length:] if length else tail
            together = self._target.encode(self._target.decode(end) + text)
            if together[: len(end)] == end:
                return together[len(end) :]
        alone = self._target.continued(tail, text) or []
        return alone if self._target.decode([*tail, *alone]) == self._target.decode(tail) + text else []
