"""The ranking of a run's methods by speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import ceil, log2

import numpy as np

from specbench.analysis.intervals import FEWEST
from specbench.analysis.rows import Rows, seconds

ALPHA = 0.05  # familywise error rate of all comparisons of a run
EXHAUSTIVE = 14  # prompts up to which all exchanges are tried
EXCHANGES = 20_000  # random exchanges for more prompts


@dataclass(frozen=True)
class Rank:
    """The place of a method among all methods of a run, the fastest first.

    `first` - 1 methods are significantly faster, and (number of methods - `last`) are significantly slower. `alike` are
    the methods that differ from it neither way.
    """

    first: int
    last: int
    alike: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def ranks(rows: Mapping[str, Rows], end_to_end: bool) -> dict[str, Rank]:
    """Rank methods by tokens per second over the generations that all of them completed.

    Two methods differ if a permutation test rejects that their speeds are equal: it exchanges the two methods within
    prompts. The familywise error rate over all pairs is 5 % (Holm 1979).

    Args:
        rows: The completed generations of each method.
        end_to_end: Whether seconds include prefill.

    Returns:
        The rank of each method. Empty for a single method, and for fewer common prompts than `fewest_prompts`.
    """
    names = list(rows)
    totals = _totals([rows[name] for name in names], end_to_end)
    if len(names) < 2 or totals.shape[1] < fewest_prompts(len(names)):
        return {}
    whole = totals.sum(axis=1)
    speeds = whole[:, 0] / whole[:, 1]
    pairs = list(combinations(range(len(names)), 2))
    exchanges = _exchanges(totals.shape[1])
    p = [_p_value(totals[i], totals[j], exchanges) for i, j in pairs]
    differs = dict(zip(pairs, holm(p), strict=True))
    found = {}
    for k, name in enumerate(names):
        others = [i for i in range(len(names)) if i != k]
        distinct = [i for i in others if differs[min(i, k), max(i, k)]]
        faster = sum(bool(speeds[i] > speeds[k]) for i in distinct)
        alike = tuple(names[i] for i in others if i not in distinct)
        found[name] = Rank(1 + faster, len(names) - len(distinct) + faster, alike)
    return found


def fewest_prompts(methods: int) -> int:
    """Return the number of prompts from which ranks can differ: fewer have too few exchanges for a significant difference.

    The smallest p-value of n prompts is 2 / 2^n, and Holm's procedure compares it with ALPHA / pairs of methods.
    """
    pairs = methods * (methods - 1) // 2
    return max(ceil(log2(2 * pairs / ALPHA)), FEWEST) if pairs else FEWEST


def holm(p: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure rejects at a familywise error rate."""
    rejected = [False] * len(p)
    for position, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] > alpha / (len(p) - position):
            break
        rejected[i] = True
    return rejected


def _exchanges(prompts: int) -> np.ndarray:
    """Return which prompts are exchanged in each permutation, 0 or 1, (permutations, prompts); none in the first one."""
    if prompts <= EXHAUSTIVE:
        return np.array(list(product((0.0, 1.0), repeat=prompts)))
    drawn = np.random.default_rng(0).integers(0, 2, (EXCHANGES, prompts)).astype(float)
    drawn[0] = 0.0
    return drawn


def _p_value(one: np.ndarray, other: np.ndarray, exchanges: np.ndarray) -> float:
    """Return the two-sided p-value of the ratio of two speeds, from tokens and seconds (prompts, 2) of both methods."""
    ours = one.sum(axis=0) + exchanges @ (other - one)  # (permutations, 2)
    theirs = one.sum(axis=0) + other.sum(axis=0) - ours
    ratios = np.abs(np.log(ours[:, 0] / ours[:, 1]) - np.log(theirs[:, 0] / theirs[:, 1]))
    return float(np.mean(ratios >= ratios[0] - 1e-12))


def _totals(methods: Sequence[Rows], end_to_end: bool) -> np.ndarray:
    """Return tokens and seconds of each method and prompt, (methods, prompts, 2), over common generations."""
    common = set.intersection(*({(r.sample, r.repeat) for r in rows} for rows in methods)) if methods else set()
    prompts = dict.fromkeys(r.prompt for rows in methods[:1] for r in rows if (r.sample, r.repeat) in common)
    numbers = {prompt: i for i, prompt in enumerate(prompts)}
    totals = np.zeros((len(methods), len(numbers), 2))
    for m, rows in enumerate(methods):
        for r in rows:
            if (r.sample, r.repeat) in common:
                totals[m, numbers[r.prompt]] += len(r.tokens), seconds(r, end_to_end)
    return totals
