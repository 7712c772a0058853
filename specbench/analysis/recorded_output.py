"""An output with the probabilities that the models give its tokens, which is what a replay needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class DrafterProbabilities:
    """What a drafter gives each of the m tokens of an output.

    `q` (D, m) is the probability that the token is drawn as the first token of a draft, as the second, ...; D is 1 for a
    model, whose probabilities do not depend on where the draft began. `rank` (D, m) is the number of tokens with larger
    logits. `confidence` (m,) is the token's probability at T = 1 without filters, and `largest` (m,) the largest probability
    at its position; stop rules read them. `room` (m,) is the number of tokens that the drafter can draft there before its
    context window ends.
    """

    q: np.ndarray
    rank: np.ndarray
    confidence: np.ndarray
    largest: np.ndarray
    room: np.ndarray


@dataclass(frozen=True, kw_only=True)
class RecordedOutput:
    """An output of m tokens, and the probabilities of its tokens.

    `ids` are the token ids that it continues, `pi` (m,) the probabilities of its tokens in the distribution that it follows,
    and `drafters` the probabilities that each drafter gives them, by role. Generation stops at `most` tokens or at an id in
    `eos`; ids are below `vocabulary`.
    """

    ids: list[int]
    tokens: list[int]
    most: int
    eos: frozenset[int]
    vocabulary: int
    pi: np.ndarray
    drafters: Mapping[str, DrafterProbabilities]

    @property
    def limits(self) -> "OutputLimits":
        """Where drafts end."""
        return OutputLimits(tokens=len(self.tokens), most=self.most, eos=self.tokens[-1] in self.eos)

    def accepted(self, role: str, scorer: str = "") -> "Rows":
        """Return the probability (D, m) that each token, given the output, was drafted by this role and accepted.

        `scorer` is the model that tests drafts, by default the output's own distribution.
        """
        pi = self.drafters[scorer].q[0] if scorer else self.pi
        ratio = np.divide(self.drafters[role].q, pi, out=np.ones_like(self.drafters[role].q), where=pi > 0.0)
        rows: list[list[float]] = np.minimum(ratio, 1.0).tolist()
        return rows


@dataclass(frozen=True, kw_only=True)
class OutputLimits:
    """Where drafts of an output end: its number of tokens, the maximum number, and whether it ends with an EOS."""

    tokens: int
    most: int
    eos: bool = False


Rows = Sequence[Sequence[float]]  # a number for each token of an output, as the first of a draft, the second, ...
