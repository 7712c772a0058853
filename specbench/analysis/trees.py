"""Predictions for draft trees: tokens per round by the acceptance of each rank, speed, and the best static tree.

A child of rank r is accepted with probability a[r] if its parent was accepted and its earlier siblings were rejected, at
every depth alike. Ranks beyond `a` are never accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from specbench.analysis.theory import Cost
from specbench.decoding.traits import Theory

DEEPEST = 8  # depths of the trees that are compared


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
