"""The ranking of the methods of a run by speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, log2

import numpy as np

from specbench.analysis.intervals import FEWEST, Estimate
from specbench.analysis.method_records import Records, seconds
from specbench.analysis.significance import holm, paired_exchanges, permutation_p
from specbench.analysis.speed import end_to_end_speedup, speedup

ALPHA = 0.05  # familywise error rate of all comparisons of a run


@dataclass(frozen=True)
class Rank:
    """The rank of a method among all methods of a run, the fastest first.

    `first` - 1 methods are significantly faster, and (number of methods - `last`) are significantly slower. `alike` are
    the methods that differ from it neither way.
    """

    first: int
    last: int
    alike: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def _excludes_one(ratio: Estimate) -> bool:
    """Return whether the interval of a ratio, if it has one, excludes 1."""
    return ratio.low is None or ratio.high is None or not ratio.low <= 1.0 <= ratio.high


def ranks(rows: Mapping[str, Records], end_to_end: bool) -> dict[str, Rank]:
    """Rank methods by tokens per second over the generations that all of them completed.

    Two methods differ if a permutation test rejects that their speeds are equal, and the interval of their ratio, which
    tables show for the baseline, does not contain 1. The test exchanges the two methods within prompts. The familywise
    error rate over all pairs is 5 % (Holm 1979).

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
    exchanges = paired_exchanges(totals.shape[1])
    p = [permutation_p(_ratios(totals[i], totals[j], exchanges)) for i, j in pairs]
    ratio = end_to_end_speedup if end_to_end else speedup
    differs = {
        (i, j): differ and _excludes_one(ratio(rows[names[i]], rows[names[j]]))
        for (i, j), differ in zip(pairs, holm(p, ALPHA), strict=True)
    }
    out = {}
    for k, name in enumerate(names):
        others = [i for i in range(len(names)) if i != k]
        distinct = [i for i in others if differs[min(i, k), max(i, k)]]
        faster = sum(bool(speeds[i] > speeds[k]) for i in distinct)
        alike = tuple(names[i] for i in others if i not in distinct)
        out[name] = Rank(1 + faster, len(names) - len(distinct) + faster, alike)
    return out


def fewest_prompts(methods: int) -> int:
    """Return the number of prompts from which ranks can differ: fewer have too few exchanges for a significant difference.

    The smallest p-value of n prompts is 2 / 2^n, and Holm's procedure compares it with ALPHA / pairs of methods.
    """
    pairs = methods * (methods - 1) // 2
    return max(ceil(log2(2 * pairs / ALPHA)), FEWEST) if pairs else FEWEST


def _ratios(one: np.ndarray, other: np.ndarray, exchanges: np.ndarray) -> np.ndarray:
    """Return absolute log-ratios of two speeds, (permutations,), from tokens and seconds (prompts, 2) of both methods."""
    ours = one.sum(axis=0) + exchanges @ (other - one)  # (permutations, 2)
    theirs = one.sum(axis=0) + other.sum(axis=0) - ours
    return np.asarray(np.abs(np.log(ours[:, 0] / ours[:, 1]) - np.log(theirs[:, 0] / theirs[:, 1])))


def _totals(methods: Sequence[Records], end_to_end: bool) -> np.ndarray:
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
