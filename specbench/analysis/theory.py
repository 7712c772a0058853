"""The papers' theory from plain numbers: tokens and forwards of a round, by method.

Covers speculation, ensembles, cascades, SPRINTER and draft trees; for chains see `polybasic`. All formulas assume that
acceptance events are independent, with one rate per proposing model. A formula counts forwards by the tokens that they read,
and does not know what a forward costs (`RoundCounts`). The papers assume that a block costs as much as one token. With the
measured cost of blocks, the prediction is the corrected one.

A distribution of lengths is {length in tokens: probability}. Every test accepts with probability `a`, independently. In a
tree, a child of rank r is accepted with probability a[r] if its parent was accepted and its earlier siblings were rejected,
at every depth alike. Ranks beyond `a` are never accepted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor
from typing import NamedTuple

from specbench.decoding.traits import Theory

Cost = Callable[[int, int], float]
Lengths = Mapping[int, float]
NEGLIGIBLE = 1e-12
MOST_TOKENS = 20_000  # the longest run without rejections that is followed
REST, LARGEST_READ = 1e-3, 64  # of a distribution of read tokens: probability of the last size, and the size
DEEPEST = 8  # depths of the trees that are compared


class RoundCounts(NamedTuple):
    """Expected counts: committed tokens, and `forwards[i][k]`, the forwards of model i that read k tokens.

    They are of a round, of a run of rounds between two rejections, or of a token, as the formula says. Only ratios matter.

    Speculation with a draft length of 2 and no acceptance has the counts (1, [{1: 2}, {3: 1}]): two forwards of the drafter,
    one of the target, and one committed token.
    """

    tokens: float
    forwards: list[dict[int, float]]

    def seconds(self, cost: Cost) -> float:
        """Return the seconds of the round's forwards, in the unit of `cost`."""
        return sum(times * cost(i, k) for i, sizes in enumerate(self.forwards) for k, times in sizes.items())

    def speedup(self, cost: Cost, baseline: float, host: float = 0.0) -> float:
        """Return the long-run speedup over a baseline that costs `baseline` per token.

        `host` is the time outside forwards.
        """
        return self.tokens * baseline / (self.seconds(cost) + host)

    @property
    def number(self) -> float:
        """The number of forwards of all models."""
        return sum(sum(sizes.values()) for sizes in self.forwards)


def forwards_of_mean(fed: float) -> dict[int, float]:
    """Return one forward that reads `fed` tokens on average: shares of the whole numbers below and above."""
    whole = floor(fed)
    return {whole: 1.0 - (fed - whole)} | ({whole + 1: fed - whole} if fed > whole else {})


def expected_accepted(a: float, k: int) -> float:
    """Return the expected number of accepted tokens among k drafted ones: a (1 - a^k) / (1 - a), and k at a = 1."""
    return sum(a**j for j in range(1, k + 1))


def expectation(distribution: Lengths) -> float:
    """Return the mean of a distribution of lengths, in tokens."""
    return sum(length * probability for length, probability in distribution.items())


def round_lengths(a: float, drafted: int | Lengths) -> dict[int, float]:
    """Return the distribution of tokens per round, 1 .. k + 1 for k draft tokens: accepted ones and a replacement or bonus.

    `drafted` is k, or its distribution. Leviathan et al. 2023, eq. 1, mixed over k.
    """
    distribution: dict[int, float] = defaultdict(float)
    for k, probability in ({drafted: 1.0} if isinstance(drafted, int) else drafted).items():
        for accepted in range(k):
            distribution[accepted + 1] += probability * a**accepted * (1.0 - a)
        distribution[k + 1] += probability * a**k
    return dict(distribution)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The speculation scheme of a method: draft length, bonus token, verifying models, and whether the drafter verifies.

    `bonus` is the method's bonus mode: exact, deferred, paper or none.
    """

    gamma: int
    bonus: str
    scorers: int = 1
    drafter_scores: bool = False


def speculative(scheme: Scheme, a: float, pending: float = 1.0) -> RoundCounts:
    """Return the counts of a round of speculation at the acceptance rate `a`; of a deferred bonus token, a multiple of them.

    Model 0 drafts gamma tokens, and models 1 .. scorers verify them in one forward each. With a committed bonus token
    (exact, paper), a round yields (1 - a^(gamma + 1)) / (1 - a) tokens (Leviathan et al. 2023, Theorem 3.8); without one,
    (1 - a^gamma) / (1 - a) (SE, Theorem 3.1). After a round that was accepted whole and ended with a bonus token, the
    first forward of the drafter reads two tokens. A drafter that is also a scorer needs one more forward for an exact
    bonus token. A deferred bonus token is accepted at the rate `pending`, and costs a forward if it is rejected.
    """
    gamma, bonus, scorers, drafter_scores = scheme.gamma, scheme.bonus, scheme.scorers, scheme.drafter_scores
    whole, accepted = a**gamma, expected_accepted(a, gamma)
    if drafter_scores and bonus == "deferred":
        # The long-run frequencies of rounds that begin without a pending token, and with one
        fresh, opened = 1.0 - pending * whole, whole
        block = accepted + 1.0 - whole
        verified = fresh + opened * pending
        drafting = {1: fresh * gamma + opened * pending * (gamma - 1), 2: opened}
        return RoundCounts(
            fresh * block + opened * (1.0 + pending * block), [drafting, *[{gamma + 1: verified}] * scorers]
        )
    more = bonus != "none"
    drafting = {1: float(gamma)}
    if more:
        exact = drafter_scores and bonus == "exact"
        drafting = {1: gamma + whole} if exact else {1: gamma - whole, 2: whole}
    verifying = {gamma + 1 if more else gamma: 1.0}
    return RoundCounts(accepted + (1.0 if more else 1.0 - whole), [drafting, *[verifying] * scorers])


# FLOPs, as SPRINTER counts them


def forward_flops(layers: int, s: int, d: int, heads: int, d_ff: int, vocabulary: int) -> float:
    """Return the FLOPs of a forward over s positions with hidden size d, as SPRINTER counts them (appendix A.8).

    Per layer: 6 s d^2 queries, keys, values; 2 s^2 d scores; 3 heads s^2 softmax; 2 s^2 d values; 2 s d^2 output; 4 s d d_ff.
    Plus 2 s d |V| for the embedding, which other counts treat as a look-up, and 2 s d |V| for the logits.
    """
    layer = 6 * s * d**2 + 2 * s**2 * d + 3 * heads * s**2 + 2 * s**2 * d + 2 * s * d**2 + 4 * s * d * d_ff
    return float(layers * layer + 4 * s * d * vocabulary)


def speculative_flops(n: float, f_q: float, f_p: float) -> float:
    """Return the FLOPs of speculative decoding for n drafted tokens without a bonus token: n F_q + n F_p.

    f_q and f_p are FLOPs per position.
    """
    return n * f_q + n * f_p


# Draft trees


def chances(a: Sequence[float]) -> list[float]:
    """Return the probability that the first, second, ... child is the one that is accepted."""
    out, left = [], 1.0
    for rate in a:
        out.append(left * rate)
        left *= 1.0 - rate
    return out


def acceptances(shape: Sequence[int], a: Sequence[float]) -> list[float]:
    """Return the probability that each token of a tree is accepted, given the parent of every token; -1 is the root."""
    by_rank = chances(a)
    accepted: list[float] = []
    children = [0] * (len(shape) + 1)
    for parent in shape:
        rank, above = children[parent + 1], 1.0 if parent < 0 else accepted[parent]
        children[parent + 1] += 1
        accepted.append(above * by_rank[rank] if rank < len(by_rank) else 0.0)
    return accepted


def drafting_sizes(shape: Sequence[int]) -> list[int]:
    """Return how many tokens the drafter reads in each of its forwards: the sequence's last, then those with children."""
    parents, depth = set(shape), list[int]()
    for parent in shape:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    inner = [depth[i] for i in range(len(shape)) if i in parents]
    return [1, *(inner.count(level) for level in range(max(inner, default=-1) + 1))]


def tree(method: Theory, a: Sequence[float]) -> RoundCounts:
    """Return the counts of a round with a static tree.

    Model 0 drafts with a forward per depth, and the others verify the whole tree in one forward each. A drafter that also
    scores reads the leaves in another forward for an exact bonus token.
    """
    shape, bonus = method.shape or (), method.bonus != "none"
    accepted, inner = acceptances(shape, a), set(shape) - {-1}
    leaves = sum(probability for i, probability in enumerate(accepted) if i not in inner)
    drafting = [*drafting_sizes(shape), *([len(shape) - len(inner)] if method.drafter_scores and bonus else [])]
    verifying = {1 + len(shape if bonus else inner): 1.0}
    return RoundCounts(
        sum(accepted) + (1.0 if bonus else 1.0 - leaves),
        [{size: float(times) for size, times in Counter(drafting).items()}, *[verifying] * (len(method.models) - 1)],
    )


@dataclass(frozen=True)
class BestTree:
    """The static tree with the highest predicted speedup."""

    shape: tuple[int, ...]  # the parent of every token; -1 is the root
    depth: int
    speedup: float

    @property
    def text(self) -> str:
        """The tree in words."""
        size = (
            f"chain of {self.depth}"
            if len(self.shape) == self.depth
            else f"{len(self.shape)} tokens, depth {self.depth}"
        )
        return f"{size}, {self.speedup:.2f}x"


def best_tree(
    method: Theory,
    a: Sequence[float],
    speedup: Callable[[Sequence[int], RoundCounts], float],
    largest: int,
    widest: int,
) -> BestTree | None:
    """Return the best static tree that verifies at most `largest` tokens and drafts at most `widest` tokens per forward.

    For every depth and number of tokens, dynamic programming finds the tree with the most accepted tokens; of these, the one
    with the highest `speedup`, by its shape and counts, is the best.
    """
    best: BestTree | None = None
    for depth in range(1, DEEPEST + 1):
        for size in range(depth, largest):
            shape = tree_with_most_accepted(size, depth, tuple(a))
            if shape is None:
                continue
            counts = tree(replace(method, shape=shape), a)
            if max(counts.forwards[0]) > widest:
                continue
            found = speedup(shape, counts)
            if best is None or found > best.speedup:
                best = BestTree(shape, depth, found)
    return best


def tree_with_most_accepted(size: int, depth: int, a: tuple[float, ...]) -> tuple[int, ...] | None:
    """Return the tree of `size` tokens and at most `depth` depths with the most accepted tokens; None if there is none."""
    below = _below(size, depth, 0, a)
    if below is None:
        return None
    parents: list[int] = []
    level: list[tuple[int, tuple[int, ...]]] = [(-1, below[1])]  # tokens, and the sizes of their children's subtrees
    reached = 0
    while level:
        reached += 1
        following: list[tuple[int, tuple[int, ...]]] = []
        for token, subtrees in level:
            for subtree in subtrees:
                parents.append(token)
                inner = _below(subtree - 1, depth - reached, 0, a)
                assert inner is not None
                following.append((len(parents) - 1, inner[1]))
        level = following
    return tuple(parents)


@lru_cache(maxsize=100_000)
def _below(size: int, depth: int, rank: int, a: tuple[float, ...]) -> tuple[float, tuple[int, ...]] | None:
    """Return the most accepted tokens of `size` tokens below one, in children from `rank` on, and the subtrees' sizes."""
    if not size:
        return 0.0, ()
    if rank == len(a) or not depth:
        return None
    chance = chances(a)[rank]
    best: tuple[float, tuple[int, ...]] | None = None
    for first in range(1, size + 1):
        inside, rest = _below(first - 1, depth - 1, 0, a), _below(size - first, depth, rank + 1, a)
        if inside is None or rest is None:
            continue
        value = chance * (1.0 + inside[0]) + rest[0]
        if best is None or value > best[0] + 1e-15:
            best = value, (first, *rest[1])
    return best
