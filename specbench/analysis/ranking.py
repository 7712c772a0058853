"""The ranking of a run's methods by speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import erfc, sqrt

import numpy as np

from specbench.analysis.bootstrap import FEWEST, resample_counts
from specbench.analysis.rows import Rows, seconds

ALPHA = 0.05  # familywise error rate of all comparisons of a run


@dataclass(frozen=True)
class Rank:
    """The place of a method among all methods of a run, the fastest first.

    At least `first` - 1 methods are faster, and at least as many are slower as follow `last`, each with significance.
    """

    first: int
    last: int

    @property
    def is_best(self) -> bool:
        """Whether the method is significantly faster than all others."""
        return self.last == 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def ranks(rows: Mapping[str, Rows], end_to_end: bool) -> dict[str, Rank]:
    """Rank methods by tokens per second over the generations that all of them completed.

    Two methods differ if the ratio of their speeds differs from 1 at a familywise error rate of 5 %, over all pairs (Holm
    1979). The standard error of a log ratio is from resamples of prompts.

    Args:
        rows: The completed generations of each method.
        end_to_end: Whether seconds include prefill.

    Returns:
        The rank of each method. Empty for a single method, and for fewer than five common prompts.
    """
    names = list(rows)
    totals = _totals([rows[name] for name in names], end_to_end)
    if len(names) < 2 or totals.shape[1] < FEWEST:
        return {}
    sums = np.einsum("rp,mpk->rmk", resample_counts(totals.shape[1]), totals)  # (resamples, methods, 2)
    logs = np.log(sums[..., 0] / sums[..., 1])  # (resamples, methods)
    whole = totals.sum(axis=1)
    speeds = np.log(whole[:, 0] / whole[:, 1])
    pairs = list(combinations(range(len(names)), 2))
    p = [_p_value(speeds[i] - speeds[j], float(np.std(logs[:, i] - logs[:, j]))) for i, j in pairs]
    faster = {
        pair: bool(speeds[pair[0]] > speeds[pair[1]]) for pair, differs in zip(pairs, holm(p), strict=True) if differs
    }
    found = {}
    for k, name in enumerate(names):
        of_pair = {
            pair: first == (pair[0] == k) for pair, first in faster.items() if k in pair
        }  # True: k is the faster
        won = sum(of_pair.values())
        found[name] = Rank(1 + len(of_pair) - won, len(names) - won)
    return found


def holm(p: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure rejects at a familywise error rate."""
    rejected = [False] * len(p)
    for position, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] > alpha / (len(p) - position):
            break
        rejected[i] = True
    return rejected


def _p_value(difference: float, error: float) -> float:
    """Return the two-sided p-value of a normally distributed difference with a standard error."""
    if error == 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return erfc(abs(difference) / error / sqrt(2.0))


def _totals(methods: Sequence[Rows], end_to_end: bool) -> np.ndarray:
    """Return tokens and seconds of each method and prompt, (methods, prompts, 2), over common generations."""
    common = set.intersection(*({(r.sample, r.repeat) for r in rows} for rows in methods)) if methods else set()
    numbers = {sample: i for i, sample in enumerate(dict.fromkeys(sample for sample, _ in sorted(common)))}
    totals = np.zeros((len(methods), len(numbers), 2))
    for m, rows in enumerate(methods):
        for r in rows:
            if (r.sample, r.repeat) in common:
                totals[m, numbers[r.sample]] += len(r.tokens), seconds(r, end_to_end)
    return totals
