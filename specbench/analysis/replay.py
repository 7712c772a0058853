"""Expected rounds of speculative decoding, from an output that was decoded without it.

Let x be an output that follows pi, and q the drafter's distribution of each of its tokens. Given x, token i of a draft is
accepted with probability min(1, q_i(x_i) / pi_i(x_i)), independently of the others, and x_i is the replacement otherwise. So
x determines the distribution of rounds of every method whose output follows pi, and a pass over its positions gives the
expected number of rounds. Products of sum min(q, pi) over positions do not: the accepted tokens decide the next
distributions.

A draft is described by its length, provided that it agrees with the output, and by the probability that its first token,
its first two tokens, ... are accepted. Tokens that are drafted after a rejected one are assumed to fill the draft: a wrong
token may be an EOS, or stop a draft early, and then fewer are drafted. So committed tokens are exact for every draft here,
and drafted tokens are an estimate for stop rules and chains.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True)
class DrafterProbabilities:
    """What a drafter gives each of the m tokens of an output.

    `q` (D, m) is the probability with which it is drafted as the first token of a draft, the second, ...; D is 1 for a model,
    whose probabilities do not depend on where the draft began. `rank` (D, m) is the number of tokens that the logits place
    before it. `confidence` (m,) is its probability at T = 1 without filters, and `largest` (m,) the largest one there, which
    stop rules read. `room` (m,) is the number of tokens that the drafter can draft before its context window ends.
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
    and `drafters` those of each drafter by role. Generation stops at `most` tokens or at an id in `eos`; ids are below
    `vocabulary`.
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
        """Return the probability that each token is accepted by the token rule if it is in a draft of this role (D, m).

        `scorer` is the model that tests it, by default the output's own distribution.
        """
        pi = self.drafters[scorer].q[0] if scorer else self.pi
        ratio = np.divide(self.drafters[role].q, pi, out=np.ones_like(self.drafters[role].q), where=pi > 0.0)
        rows: list[list[float]] = np.minimum(ratio, 1.0).tolist()
        return rows


@dataclass(frozen=True, kw_only=True)
class OutputLimits:
    """Where drafts of an output end: its number of tokens, the most that it may have had, and whether it ends with an EOS."""

    tokens: int
    most: int
    eos: bool = False


Rows = Sequence[Sequence[float]]  # a number for each token of an output, as the first of a draft, the second, ...


def draft_of(rows: Rows, position: int, k: int) -> Sequence[float]:
    """Return the numbers of the k tokens of a draft, up to the end of the output. A single row is that of every place."""
    if len(rows) == 1:
        return rows[0][position : position + k]
    return [rows[i][position + i] for i in range(min(k, len(rows[0]) - position))]


class ReplayedDraft(NamedTuple):
    """A draft at one position of an output.

    `length` is the number of tokens on its path, and `survival` (at most length,) the probability that the first, the first
    two, ... are accepted, up to the end of the output. `size` is the number of its tokens: more than `length` in a tree.
    `ended` says whether a stop rule ended it after the drafter had read all of it, in a forward that drew no token.
    `probability` is that of this draft among those that may follow. Of a chain, `inner` are the rounds of its inner level.
    """

    length: int
    survival: Sequence[float]
    size: int
    ended: bool = False
    probability: float = 1.0
    inner: "InnerRounds | None" = None

    def outcomes(self, left: int, eos: bool, bonus: bool) -> Iterator["Outcome"]:
        """Yield what may happen to the draft before the last `left` tokens of an output.

        `eos` says whether the output ends with an EOS, and `bonus` whether a token follows a draft that is accepted whole.
        """
        n, alive = min(self.length, left), 1.0
        for i in range(n):
            survives = self.survival[i] if i < len(self.survival) else 0.0
            if alive > survives:
                yield Outcome(i + 1, alive - survives, self.size, False)
            alive = survives
            if not alive:
                return
        ends = eos and n == left
        size = n if ends and self.size == self.length else self.size  # an EOS ends a draft
        committed = n if ends else n + (bonus or not n)
        yield Outcome(committed, alive, size, bonus and self.length > 0 and not self.ended)


class Outcome(NamedTuple):
    """The outcome of a round: committed and drafted tokens, with a probability.

    `is_unread` says whether the drafter's next forward reads two tokens, since its draft was accepted whole.
    """

    committed: int
    probability: float
    drafted: int
    is_unread: bool


class InnerRounds(NamedTuple):
    """Expected rounds of the inner level of a chain, by drafted tokens.

    `drafted` (2, largest + 1) is as in `ExpectedRounds`. `first` (largest + 1,) are the first rounds, of a draft or of an
    output. They are in the first row of `drafted`, unless the level above had accepted the draft before whole.
    """

    drafted: np.ndarray
    first: np.ndarray


class Drafts(Protocol):
    """The drafts of a proposer along one output."""

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        """Return the drafts that may follow the first `position` tokens; at most `room` tokens are on the path of each."""


@dataclass(frozen=True)
class DraftsByToken:
    """Drafts of `gamma` tokens, given the probability that each of the m tokens of the output is accepted (D, m)."""

    accepted: Rows
    gamma: int

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        k = min(self.gamma, room)
        return [ReplayedDraft(k, list(accumulate(draft_of(self.accepted, position, k), mul)), k)]


@dataclass(frozen=True)
class DraftsByBlock:
    """Drafts of `gamma` tokens that are tested as a whole (`rejection.BlockRejection`), given pi (m,) and q (D, m).

    The first i tokens are accepted with probability prod_j min(1, q_j / (p_{j-1} pi_j)), where p_0 = 1 and
    p_j = min(1, p_{j-1} pi_j / q_j). Sun et al. 2024.
    """

    pi: Sequence[float]
    q: Rows
    gamma: int

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        k = min(self.gamma, room)
        survival, alive, weight = list[float](), 1.0, 1.0
        for pi, q in zip(self.pi[position : position + k], draft_of(self.q, position, k), strict=True):
            scaled = weight * pi
            alive *= min(1.0, q / scaled) if scaled > 0.0 else 1.0
            weight = min(1.0, scaled / q) if q > 0.0 else 1.0
            survival.append(alive)
        return [ReplayedDraft(k, survival, k)]


@dataclass(frozen=True)
class StoppedDrafts:
    """Drafts that a stop rule without state may end once they have `least` tokens.

    `before` and `after` say whether it ends a draft before each of the m tokens of the output, and after it.
    """

    drafts: DraftsByToken | DraftsByBlock
    before: Sequence[bool]
    after: Sequence[bool]
    least: int

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        longest, length, ended = min(self.drafts.gamma, room), 0, False
        for before, after in zip(self.before[position:], self.after[position:], strict=True):
            if length == longest or (ended := before and length >= self.least):
                break
            length += 1
            if after and length >= self.least:
                break
        else:
            length = longest  # beyond the output, the rule is unknown
        return [draft._replace(ended=ended) for draft in self.drafts.at(position, length)]


@dataclass(frozen=True)
class LimitedDrafts:
    """Drafts of a model with a context window, given the number of tokens that it can draft at each of the m positions."""

    drafts: Drafts
    room: Sequence[int]

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        return self.drafts.at(position, min(room, self.room[position]))


@dataclass(frozen=True)
class CopiedDrafts:
    """Drafts that are copied from earlier text, one for every position of an output."""

    tokens: Sequence[int]
    drafts: Sequence[Sequence[int]]

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        draft = self.drafts[position][:room]
        equal = [float(copied == token) for copied, token in zip(draft, self.tokens[position:], strict=False)]
        return [ReplayedDraft(len(draft), list(accumulate(equal, mul)), len(draft))]


@dataclass(frozen=True)
class ChosenTree:
    """Static trees whose children are the drafter's most probable tokens, given the rank of each of the m tokens (D, m).

    `shape` gives the parent of every token; -1 is the root.
    """

    rank: Sequence[Sequence[int]]
    shape: tuple[int, ...]

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        longest = min(max(self._depths), room)
        size = sum(depth <= longest for depth in self._depths)
        below, accepted = self._children[0], 0
        for rank in draft_of(self.rank, position, longest):
            if rank >= len(below):
                break
            accepted, below = accepted + 1, self._children[below[int(rank)] + 1]
        is_leaf = not below  # the path is accepted whole, also above the deepest leaf
        length = accepted if is_leaf else longest
        return [ReplayedDraft(length, [1.0] * accepted, size)]

    @cached_property
    def _children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in range(len(self.shape) + 1)]
        for token, parent in enumerate(self.shape):
            below[parent + 1].append(token)
        return below

    @cached_property
    def _depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.shape:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths


@dataclass(frozen=True)
class ChainDrafts:
    """Drafts of a chain: a model verifies the drafts of an inner proposer until at least `threshold` tokens are pending.

    `inner` are the inner proposer's drafts as that model accepts them, of at most `largest` tokens, and `outer` the drafts
    of that model as the level above accepts them. `limits` are those of the output.

    Given the output, the tokens that both levels commit are exact. The draft after a token that the level above rejects is
    not on the output; it is assumed to go on as it would have on the output.
    """

    inner: Drafts
    largest: int
    outer: DraftsByToken | DraftsByBlock
    threshold: int
    limits: OutputLimits

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        left, out = self.limits.tokens - position, list[ReplayedDraft]()
        # What may be pending: tokens, and whether the drafter has a token to read besides the last one
        pending: dict[tuple[int, bool], _Pending] = {(0, False): _Pending(self.largest, 1.0)}
        while pending:
            at = length, is_unread = min(pending)
            state = pending.pop(at)
            if length >= min(self.threshold, room) or (length >= left and self.limits.eos):
                (whole,) = self.outer.at(position, length)
                inner = InnerRounds(state.drafted / state.weight, state.first / state.weight)
                out.append(whole._replace(length=length, size=length, probability=state.weight, inner=inner))
                continue
            if length >= left:  # beyond the output, drafts are assumed to be accepted whole
                followers = [(Outcome(min(self.largest + 1, room - length), 1.0, self.largest, True), 1.0)]
            else:
                followers = [
                    (outcome, draft.probability)
                    for draft in self.inner.at(position + length, room - length - 1)
                    for outcome in draft.outcomes(left - length, self.limits.eos, bonus=True)
                ]
            for outcome, probability in followers:
                after = length + outcome.committed, outcome.is_unread
                following = pending.setdefault(after, _Pending(self.largest))
                following.add(state, probability * outcome.probability, outcome.drafted, is_unread)
        return out


class _Pending:
    """Pending tokens of a chain: the probability that so many are pending, and the inner rounds weighted with it."""

    def __init__(self, largest: int, weight: float = 0.0) -> None:
        self.weight = weight
        self.drafted, self.first = np.zeros((2, largest + 1)), np.zeros(largest + 1)

    def add(self, before: "_Pending", share: float, drafted: int, is_unread: bool) -> None:
        """Add what follows from `before` with the probability `share`, in a round of so many drafted tokens."""
        weight = before.weight * share
        self.weight += weight
        self.drafted += before.drafted * share
        self.drafted[int(is_unread), drafted] += weight
        self.first += before.first * share
        if not before.drafted.any():
            self.first[drafted] += weight


@dataclass(frozen=True)
class ExpectedRounds:
    """Expected numbers of rounds of one output.

    `drafted` (2, largest + 1) counts rounds by the number of drafted tokens; in those of the second row the drafter first
    reads two tokens, since the draft before was accepted whole. `first` (largest + 1,) are the first rounds, whose forwards
    are prefill. `reached` (largest,) counts rounds that test a token at each position of their draft, and `accepted`
    (largest,) those that accept it. `without_token` counts the drafter's forwards after which a stop rule drew no token.
    `inner` are the rounds of a chain's inner level; its `first` are those of outputs.
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
        bonus: Whether a token follows a draft that is accepted whole.
    """
    m, without_token = limits.tokens, 0.0
    drafted, first = [[0.0] * (largest + 1) for _ in range(2)], [0.0] * (largest + 1)
    reached, accepted = [0.0] * largest, [0.0] * largest
    inner: InnerRounds | None = None
    # The probability that a round begins at each position, after what the drafter has read, and with a token unread
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
    """Return the sum of inner rounds and those of a draft, with the probabilities (2,) that the draft before was not and was
    accepted whole.
    """
    drafted = inner.drafted * shares.sum() + np.outer([-shares[1], shares[1]], inner.first)
    first = inner.first * shares.sum() * is_first
    return InnerRounds(drafted, first) if total is None else InnerRounds(total.drafted + drafted, total.first + first)
