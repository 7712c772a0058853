"""Predictions of the papers' theory from plain numbers: speculation, ensembles, cascades, SPRINTER, draft trees.

For chains see `polybasic`. All predictions assume that acceptance events are independent, with one rate per proposing model,
and that drawing and combining cost nothing. `cost(i, k)` is the cost of a forward of model i over k tokens. The papers assume
cost(i, k) = cost(i, 1), a block for the cost of one token. With the measured cost, the prediction is the corrected one.

A distribution of lengths is {length in tokens: probability}. Every test accepts with probability `a`, independently. In a
tree, a child of rank r is accepted with probability a[r] if its parent was accepted and its earlier siblings were rejected,
at every depth alike. Ranks beyond `a` are never accepted.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor

from specbench.decoding.traits import Theory

Cost = Callable[[int, int], float]
Lengths = Mapping[int, float]
NEGLIGIBLE = 1e-12
MOST_TOKENS = 20_000  # the longest run without rejections that is followed
DEEPEST = 8  # depths of the trees that are compared


def mean_cost(cost: Cost, i: int, fed: float) -> float:
    """Return the mean cost of forwards of model i that feed `fed` tokens on average, interpolated between whole numbers."""
    whole = floor(fed)
    least = cost(i, whole)
    return least + (fed - whole) * (cost(i, whole + 1) - least) if fed > whole else least


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


def speculative(scheme: Scheme, a: float, cost: Cost, baseline: float, pending: float = 1.0) -> float:
    """Return the long-run speedup of speculation over a baseline that costs `baseline` per token, at the acceptance rate `a`.

    Model 0 drafts gamma tokens, and models 1 .. scorers verify them in one forward each. With a committed bonus token
    (exact, paper), a round yields (1 - a^(gamma + 1)) / (1 - a) tokens (Leviathan et al. 2023, Theorem 3.8); without one,
    (1 - a^gamma) / (1 - a) (SE, Theorem 3.1). After a round that was accepted whole and ended with a bonus token, the
    first forward of the drafter reads two tokens. A drafter that is also a scorer needs one more forward for an exact
    bonus token. A deferred bonus token is accepted at the rate `pending`, and costs a forward if it is rejected.
    """
    gamma, bonus, scorers, drafter_scores = scheme.gamma, scheme.bonus, scheme.scorers, scheme.drafter_scores
    whole, blocks = a**gamma, expected_accepted(a, gamma)
    if drafter_scores and bonus == "deferred":
        # proportions of rounds that begin without and with a pending token
        fresh, opened = 1.0 - pending * whole, whole
        block = blocks + 1.0 - whole
        verifying = sum(cost(i, gamma + 1) for i in range(1, scorers + 1))
        spent = fresh * (gamma * cost(0, 1) + verifying)
        spent += opened * (cost(0, 2) + pending * ((gamma - 1) * cost(0, 1) + verifying))
        return (fresh * block + opened * (1.0 + pending * block)) * baseline / spent
    more = bonus != "none"
    tokens = blocks + (1.0 if more else 1.0 - whole)
    drafting = gamma * cost(0, 1)
    if more:
        exact = drafter_scores and bonus == "exact"
        drafting += whole * (cost(0, 1) if exact else cost(0, 2) - cost(0, 1))
    verifying = sum(cost(i, gamma + 1 if more else gamma) for i in range(1, scorers + 1))
    return tokens * baseline / (drafting + verifying)


# Speculative Ensemble


def speculative_ensemble(a: Sequence[float], gamma: Sequence[int], cost: Cost) -> float:
    """Return the exact long-run speedup of Speculative Ensemble over the sequential ensemble of the same models.

    a[i] is the acceptance rate of model i's proposals. After every rejection, each model has one unread token and model 0
    proposes again. So runs between rejections are independent and identically distributed, and without a rejection the
    sequence of forwards is fixed. Weighting each forward by the probability that a run reaches it gives the expected tokens
    and the expected cost of a run. For two models the result equals the closed form with three types of cycles.

    See docs/papers/speculative-ensemble.md, Long-run speedup.
    """
    n = len(a)
    pending: list[int] = []  # owners of B
    scored = [0] * n  # |C_i|
    alive, tokens, spent = 1.0, 0.0, 0.0

    def draw(i: int) -> None:
        nonlocal spent
        spent += alive * cost(i, len(pending) - scored[i] + 1)  # the unread tokens of B, and one token before
        pending.append(i)
        scored[i] = len(pending)

    while alive > NEGLIGIBLE and tokens < MOST_TOKENS:
        i = min(range(n), key=lambda j: scored[j])
        draw(i)
        ready = min(scored)
        for _ in range(ready):
            tokens += alive
            alive *= a[pending.pop(0)]
        scored = [have - ready for have in scored]
        for _ in range(gamma[i] - 1):
            draw(i)
    return sum(cost(i, 1) for i in range(n)) * tokens / spent


def alternate_proposal(a: float, gamma_q: int, gamma_p: int, c: float) -> float:
    """Return the speedup of Theorem 3.6 as printed: one q-cycle that follows a p-cycle. It is not the long-run speedup.

    See erratum SE-4, docs/papers/speculative-ensemble.md, Errata.
    """
    tokens = sum(a**j for j in range(gamma_q))  # (1 - a^gamma_q) / (1 - a)
    return tokens * (1 + c) / (1 + c * gamma_q - a**gamma_p * c)


# SpecCascade


def sequential_cascade(rate: float, cost: Cost, tokens: int = 1) -> float:
    """Return the speedup of a sequential cascade over its large model, 1 / (c + rate).

    `rate` is the share of positions, or of whole sequences, that are deferred. `tokens` is the number of tokens that a
    forward of the large model reads: all tokens since the last deferral.

    See docs/papers/speccascade.md, Speedup.
    """
    return cost(1, 1) / (cost(0, 1) + rate * cost(1, tokens))


# SPRINTER: a learned verifier reads every drafted token, and the target tests only the last token of a run.
#
# A token is acceptable iff its probability in the draft model is at most its probability in the target. eta_tp is the rate at
# which the verifier accepts acceptable tokens, eta_fp the rate at which it accepts others. See docs/papers/sprinter.md,
# Theory.


def expected_run(n: int, eta_tp: float, eta_fp: float) -> float:
    """Return E[X], infinite at eta_fp = 1 (Theorem 2).

    eta_tp (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n eta_fp / (1 - eta_fp)
    """
    return expected_drafts(n, eta_tp, eta_fp) - 1.0


def expected_drafts(n: int, eta_tp: float, eta_fp: float, most: int | None = None) -> float:
    """Return E[X + 1], drafted tokens per run, including the last and rejected one (Theorem 3); infinite at eta_fp = 1.

    (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n / (1 - eta_fp), the sum of P(X >= j). A run has at most `most` tokens.
    """
    if most is not None:
        return sum(eta_tp ** min(j, n) * eta_fp ** max(j - n, 0) for j in range(most))
    reached = eta_tp**n
    rest = reached / (1.0 - eta_fp) if eta_fp < 1.0 else math.inf if reached else 0.0
    return sum(eta_tp**j for j in range(n)) + rest


def forward_flops(layers: int, s: int, d: int, heads: int, d_ff: int, vocabulary: int) -> float:
    """Return the FLOPs of a forward over s positions with hidden size d, as the paper counts them (appendix A.8).

    Per layer: 6 s d^2 queries, keys, values; 2 s^2 d scores; 3 heads s^2 softmax; 2 s^2 d values; 2 s d^2 output; 4 s d d_ff.
    Plus 2 s d |V| for the embedding, which other counts treat as a look-up, and 2 s d |V| for the logits.
    """
    layer = 6 * s * d**2 + 2 * s**2 * d + 3 * heads * s**2 + 2 * s**2 * d + 2 * s * d**2 + 4 * s * d * d_ff
    return float(layers * layer + 4 * s * d * vocabulary)


def speculative_flops(n: float, f_q: float, f_p: float, *, bonus: bool = False) -> float:
    """Return the FLOPs of speculative decoding for n drafted tokens: n F_q + n F_p, and F_p more with a bonus token.

    f_q and f_p are FLOPs per position.
    """
    return n * f_q + (n + bonus) * f_p


def sprinter(
    drafted: float, accepted: float, cost: Cost, baseline: float, *, gate: float = 0.0, bonus: bool = True
) -> float:
    """Return the long-run speedup of SPRINTER over a baseline that costs `baseline` per token.

    Model 0 drafts, and model 1 is the target. `drafted` is the measured number of drafted tokens per forward of the target.
    The last one is tested, and accepted at the rate `accepted`. All drafted tokens are committed, with a replacement for a
    rejected last one, and a bonus token after an accepted one. The target reads the drafted tokens and the token before them;
    without a bonus token, one token less. The draft model reads two tokens after a bonus token. `gate` is the cost of the
    verifier per token. The result is exact if the cost of a block is linear in its length.

    See docs/papers/sprinter.md, Speedup with measured costs.
    """
    tokens, spent = drafted, drafted * (cost(0, 1) + gate)
    if bonus:
        tokens += accepted
        spent += accepted * (cost(0, 2) - cost(0, 1))
    return tokens * baseline / (spent + mean_cost(cost, 1, drafted + bonus))


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


def tree_speedup(method: Theory, a: Sequence[float], cost: Cost, baseline: float) -> float:
    """Return the long-run speedup of a static tree over a baseline that costs `baseline` per token.

    Model 0 drafts with a forward per depth, and the others verify the whole tree in one forward each. A drafter that also
    scores reads the leaves in another forward for an exact bonus token.
    """
    shape, bonus = method.shape or (), method.bonus != "none"
    accepted, inner = acceptances(shape, a), set(shape) - {-1}
    leaves = sum(probability for i, probability in enumerate(accepted) if i not in inner)
    tokens = sum(accepted) + (1.0 if bonus else 1.0 - leaves)
    spent = sum(cost(0, size) for size in drafting_sizes(shape))
    if method.drafter_scores and bonus:
        spent += cost(0, len(shape) - len(inner))
    block = 1 + len(shape if bonus else inner)
    return tokens * baseline / (spent + sum(cost(i, block) for i in range(1, len(method.models))))


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
    method: Theory, a: Sequence[float], cost: Cost, baseline: float, largest: int, widest: int
) -> BestTree | None:
    """Return the best static tree that verifies at most `largest` tokens and drafts at most `widest` tokens per forward.

    For every depth and number of tokens, dynamic programming finds the tree with the most accepted tokens; of these, the one
    with the highest speedup at the given costs is the best.
    """
    best: BestTree | None = None
    for depth in range(1, DEEPEST + 1):
        for size in range(depth, largest):
            shape = tree_with_most_accepted(size, depth, tuple(a))
            if shape is None:
                continue
            leaves = len(shape) - len(set(shape) - {-1}) if method.drafter_scores and method.bonus != "none" else 0
            if max(*drafting_sizes(shape), leaves) > widest:
                continue
            speedup = tree_speedup(replace(method, shape=shape), a, cost, baseline)
            if best is None or speedup > best.speedup:
                best = BestTree(shape, depth, speedup)
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
