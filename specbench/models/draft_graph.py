"""A draft as one launch: what it is made for, what it begins with, and what it gives."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Drafting(NamedTuple):
    """What a draft graph is made for: k tokens over a vocabulary of V, drawn by these settings."""

    k: int
    vocabulary: int
    temperature: float
    top_k: int
    top_p: float
    feeds: bool  # whether it begins with the forward of the sequence's last token


class Start(NamedTuple):
    """What a draft begins with: the last forward's logits (1, V), or the last token (1,) if it has not been fed.

    States (1, H) are those of the position before, where the draft's forwards read them.
    """

    logits: Tensor | None = None
    states: Tensor | None = None
    token: Tensor | None = None


class Drafted(NamedTuple):
    """k drawn tokens and what they were drawn from, and what the draft's m forwards gave."""

    tokens: Tensor  # (k,)
    probs: Tensor  # (k, V)
    logits: Tensor  # (m, V), m = k - 1, or k where the draft feeds first
    states: Tensor  # (m, H)


class DraftGraph(Protocol):
    """A whole draft as one launch."""

    def replay(self, start: Start, uniforms: Tensor | None, first: int) -> Drafted:
        """Draft, feeding positions from `first` on. What is returned lasts until the next replay."""
