"""A draft in a single launch: its settings, inputs and outputs."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Drafting(NamedTuple):
    """The settings that a draft graph is captured for: k tokens over a vocabulary of V, and the sampler's settings."""

    k: int
    vocabulary: int
    temperature: float
    top_k: int
    top_p: float
    feeds: bool  # whether it starts with a forward of the sequence's last token


class Start(NamedTuple):
    """The inputs of a draft: the last forward's logits (1, V), or the last token (1,) if it has not been fed.

    `states` (1, H) are those of the previous position, for drafts whose forwards read them.
    """

    logits: Tensor | None = None
    states: Tensor | None = None
    token: Tensor | None = None


class Drafted(NamedTuple):
    """The outputs of a draft: k tokens with their distributions, and the outputs of its m forwards."""

    tokens: Tensor  # (k,)
    probs: Tensor  # (k, V)
    logits: Tensor  # (m, V), m = k if the draft `feeds`, else k - 1
    states: Tensor  # (m, H)


class DraftGraph(Protocol):
    """A whole draft in a single launch."""

    def replay(self, start: Start, uniforms: Tensor | None, first: int) -> Drafted:
        """Draft, feeding positions from `first` on. The outputs are valid until the next replay."""
