"""Drafts that are replayed on an output: by token, by block, stopped, limited, copied, as a tree, and by a chain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

import numpy as np

from specbench.analysis.recorded_output import OutputLimits, Rows


def draft_of(rows: Rows, position: int, k: int) -> Sequence[float]:
    """Return the numbers of the k tokens of a draft, up to the end of the output. A single row applies to every place."""
    if len(rows) == 1:
        return rows[0][position : position + k]
    return [rows[i][position + i] for i in range(min(k, len(rows[0]) - position))]


class ReplayedDraft(NamedTuple):
    """A draft at one position of an output.

    `length` is the number of tokens on its path, and `survival` (at most length,) the probability that the first, the first
    two, ... are accepted, up to the end of the output. `size` is the number of its tokens: more than `length` in a tree.
    `ended` says whether a stop rule ended it after the drafter had read all of it, in a forward that drew no token. If
    several drafts are possible at the position, `probability` is the probability of this one. For a chain, `inner` are the
    expected rounds of its inner level.
    """

    length: int
    survival: Sequence[float]
    size: int
    ended: bool = False
    probability: float = 1.0
    inner: "InnerRounds | None" = None

    def outcomes(self, left: int, eos: bool, bonus: bool) -> Iterator["Outcome"]:
        """Yield the possible outcomes of the draft when `left` tokens of the output remain.

        `eos` says whether the output ends with an EOS, and `bonus` whether a token follows a fully accepted draft.
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
    """The outcome of a round: numbers of committed and drafted tokens, with a probability.

    `is_unread` says whether the drafter's next forward reads two tokens. This follows a fully accepted draft: the drafter has
    read neither its last drafted token nor the bonus token after it.
    """

    committed: int
    probability: float
    drafted: int
    is_unread: bool


class InnerRounds(NamedTuple):
    """Expected rounds of the inner level of a chain, by the number of tokens that they draft.

    `drafted` (2, largest + 1) is as in `ExpectedRounds`: rounds whose drafter first reads one token, and two tokens. `first`
    (largest + 1,) counts the first round of each draft (in a `ReplayedDraft`) or of each output (in `ExpectedRounds`). In a
    `ReplayedDraft` the first round is always counted in row 0 of `drafted`. `_added` moves it to row 1 where the level above
    had fully accepted the previous draft.
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

    At least i tokens are accepted with probability prod_{j <= i} min(1, q_j / (p_{j-1} pi_j)), where p_0 = 1 and
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
    """Drafts that a stateless stop rule may end once they have `least` tokens.

    `before` and `after` say for each of the m tokens of the output whether the rule stops before it, and after it.
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
        is_leaf = not below  # then the whole path is accepted, even if other leaves are deeper
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
    """Drafts of a chain: a middle model verifies an inner proposer's drafts until at least `threshold` tokens are pending.

    `inner` are the inner proposer's drafts, of at most `largest` tokens, which the middle model tests. `outer` are the middle
    model's drafts, which the level above tests. `limits` say where the output ends.

    `at` enumerates the inner rounds. Let the threshold be 3 and inner drafts have two tokens. From 0 pending tokens, an inner
    round leads to 1, 2 or 3 pending tokens: 3 if both drafted tokens are accepted and a bonus follows. 3 tokens are a draft
    for the level above; from 1 and 2 there is another inner round. So the draft may have 3, 4 or 5 tokens. States are visited
    in the order of their length, and since every round adds a token, a state has its whole probability when it is visited.
    Each state also carries the numbers of rounds that led to it, weighted with their probability. Dividing them by the
    probability of the final state gives the expected inner rounds of a draft of that length.

    Given the output, the numbers of tokens that both levels commit are exact. After a token that the level above rejects, the
    draft is not on the output; it is assumed to go on as it would have on the output.
    """

    inner: Drafts
    largest: int
    outer: DraftsByToken | DraftsByBlock
    threshold: int
    limits: OutputLimits

    def at(self, position: int, room: int) -> list[ReplayedDraft]:
        left, out = self.limits.tokens - position, list[ReplayedDraft]()
        # State: the number of pending tokens, and whether the drafter must read a token besides the last one
        pending: dict[tuple[int, bool], _Pending] = {(0, False): _Pending(self.largest, 1.0)}
        while pending:
            at = length, is_unread = min(pending)
            state = pending.pop(at)
            if length >= min(self.threshold, room) or (length >= left and self.limits.eos):
                (whole,) = self.outer.at(position, length)
                inner = InnerRounds(state.drafted / state.weight, state.first / state.weight)
                out.append(whole._replace(length=length, size=length, probability=state.weight, inner=inner))
                continue
            if length >= left:  # beyond the output, drafts are assumed to be fully accepted
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
    """A state of a chain: the probability that so many tokens are pending, and the inner rounds so far, weighted with it."""

    def __init__(self, largest: int, weight: float = 0.0) -> None:
        self.weight = weight
        self.drafted, self.first = np.zeros((2, largest + 1)), np.zeros(largest + 1)

    def add(self, before: "_Pending", share: float, drafted: int, is_unread: bool) -> None:
        """Add the paths that come from `before` with probability `share`, by a round of `drafted` tokens."""
        weight = before.weight * share
        self.weight += weight
        self.drafted += before.drafted * share
        self.drafted[int(is_unread), drafted] += weight
        self.first += before.first * share
        if not before.drafted.any():
            self.first[drafted] += weight
