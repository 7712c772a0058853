"""Expected rounds of speculative decoding, from an output that was decoded without it.

Let x be an output that follows pi, and q the drafter's distribution of each of its tokens. Given that the output is x, a
draft that covers x_i proposed it and had it accepted with probability min(1, q_i(x_i) / pi_i(x_i)), independently of the
others; otherwise x_i replaced a rejected token. So x determines the distribution of the rounds of every method whose
output follows pi, and one pass over its positions gives the expected number of rounds. Products of sum min(q, pi) over
positions would not, since the accepted tokens decide the next distributions.

For example, let x be `the cat sat on`, with the probabilities a, b, c, d, and let drafts have two tokens. A round that begins
at `the` ends in one of three ways: with probability 1 - a it commits `the` as a replacement; with a (1 - b) it commits
`the cat`, `cat` being a replacement; with a b it commits `the cat sat`, `sat` being the bonus token. The next round begins
after 1, 2 or 3 tokens with these probabilities. `replay` carries them forward position by position; their sum over all
positions is the expected number of rounds.

A draft is described by its length, provided that it agrees with the output, and by the probabilities that its first token,
its first two tokens, ... are accepted. Tokens that are drafted after a rejected one are assumed to fill the draft, although a
wrong token may be an EOS or stop a draft early. So the numbers of committed tokens are exact for every draft here, and the
numbers of drafted tokens are estimates for stop rules and chains.
"""

from dataclasses import dataclass

import numpy as np

from specbench.analysis.recorded_output import OutputLimits
from specbench.analysis.replayed_drafts import Drafts, InnerRounds


@dataclass(frozen=True)
class ExpectedRounds:
    """Expected numbers of rounds of one output.

    `drafted` (2, largest + 1) counts rounds by the number of drafted tokens. In the second row are the rounds after a fully
    accepted draft, in which the drafter first reads two tokens. `first` (largest + 1,) counts the first round, whose forwards
    are prefill. `reached` (largest,) counts the rounds that test a token at each position of their draft, and `accepted`
    (largest,) the rounds that accept it. `without_token` counts the drafter's forwards after which a stop rule drew no token.
    `inner` are the rounds of a chain's inner level; its `first` counts the first inner round of the output.
    """

    drafted: np.ndarray
    first: np.ndarray
    reached: np.ndarray
    accepted: np.ndarray
    without_token: float = 0.0
    inner: InnerRounds | None = None

    @property
    def rounds(self) -> float:
        """The number of rounds."""
        return float(self.drafted.sum())

    @property
    def drafted_tokens(self) -> float:
        """The number of drafted tokens."""
        return float((self.drafted.sum(axis=0) * np.arange(self.drafted.shape[1])).sum())

    @property
    def accepted_tokens(self) -> float:
        """The number of accepted tokens."""
        return float(self.accepted.sum())


def replay(drafts: Drafts, limits: OutputLimits, largest: int, bonus: bool = True) -> ExpectedRounds:
    """Return the expected rounds of an output.

    Args:
        drafts: The drafts of a proposer along the output.
        limits: Where drafts end.
        largest: The maximum number of tokens in a draft.
        bonus: Whether a token follows a fully accepted draft.
    """
    m, without_token = limits.tokens, 0.0
    drafted, first = [[0.0] * (largest + 1) for _ in range(2)], [0.0] * (largest + 1)
    reached, accepted = [0.0] * largest, [0.0] * largest
    inner: InnerRounds | None = None
    # P(a round begins at each position): row 0 if the drafter reads one token first, row 1 if it reads two
    arriving = [[0.0] * (m + largest + 2) for _ in range(2)]
    arriving[0][0] = 1.0
    for position in range(m):
        fresh, unread = arriving[0][position], arriving[1][position]
        if fresh + unread == 0.0:
            continue
        for draft in drafts.at(position, limits.most - position - bonus):
            weight, alive = (fresh + unread) * draft.probability, 1.0
            for i in range(min(draft.length, m - position)):
                reached[i] += weight * alive
                alive = draft.survival[i] if i < len(draft.survival) else 0.0
                accepted[i] += weight * alive
                if not alive:
                    break
            for outcome in draft.outcomes(m - position, limits.eos, bonus):
                share = draft.probability * outcome.probability
                arriving[outcome.is_unread][position + outcome.committed] += (fresh + unread) * share
                drafted[0][outcome.drafted] += fresh * share
                drafted[1][outcome.drafted] += unread * share
                if not position:
                    first[outcome.drafted] += share
            without_token += weight * draft.ended
            if draft.inner is not None:
                shares = draft.probability * np.array([fresh, unread])
                inner = _added(inner, draft.inner, shares, is_first=not position)
    return ExpectedRounds(
        drafted=np.array(drafted),
        first=np.array(first),
        reached=np.array(reached),
        accepted=np.array(accepted),
        without_token=without_token,
        inner=inner,
    )


def _added(total: InnerRounds | None, inner: InnerRounds, shares: np.ndarray, is_first: bool) -> InnerRounds:
    """Add the inner rounds of a draft to a total.

    `shares` (2,) are the probabilities of this draft after a draft that was not, and that was, fully accepted. In the second
    case the drafter reads two tokens in the first inner round: the last pending token of the previous draft and the bonus
    token of the level above. So `inner.first` moves from row 0 to row 1.
    """
    drafted = inner.drafted * shares.sum() + np.outer([-shares[1], shares[1]], inner.first)
    first = inner.first * shares.sum() * is_first
    return InnerRounds(drafted, first) if total is None else InnerRounds(total.drafted + drafted, total.first + first)
