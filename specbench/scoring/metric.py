"""Metrics: one value per generation, combined into one number with an interval.

A value is a number in [0, 1], or a list of sufficient statistics for a corpus-level score. Results are in [0, 1]; tables
print them times 100, as papers do.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.errors import hint

Score = dict[str, float | list[float]]  # metric -> a generation's value
NO_ANSWER = "no_answer"  # a score that counts instead of measuring: 1 if no answer was found


@dataclass(frozen=True)
class Metric:
    """A metric's name, exactly how it is computed, and how values are combined.

    `combine`: `mean` over prompts; `macro`, the mean of the groups' means; `bleu` and `chrf`, corpus level; `pass@K`, the
    unbiased estimator of Chen et al. 2021 over a prompt's repeats.
    """

    name: str
    signature: str
    combine: str = "mean"


class Scored(NamedTuple):
    """The value of one generation, with its prompt and the prompt's group."""

    value: float | list[float]
    sample: str
    group: str = ""


class Combiner(NamedTuple):
    """`rows`: the values of one prompt, all its repeats -> a row of numbers; `whole`: rows (prompts, d) -> the score.

    A prompt's group is the last number of its row.
    """

    rows: Callable[[Sequence[float | list[float]]], list[float]]
    whole: Callable[[np.ndarray], float]


def combiner(name: str) -> Combiner:
    """Return the combiner of a name. Raises ValueError for an unknown one."""
    if name.startswith("pass@"):
        k = int(name.removeprefix("pass@"))
        return Combiner(
            lambda values: [pass_at(k, len(values), sum(map(_number, values)))], lambda t: float(t[:, 0].mean())
        )
    if name not in _COMBINERS:
        raise ValueError(f"unknown combination '{name}'{hint(name, _COMBINERS)}")
    return _COMBINERS[name]


def is_combiner(name: str) -> bool:
    """Return whether there is a way of this name to combine scores."""
    try:
        combiner(name)
    except ValueError:
        return False
    return True


def table(name: str, scored: Sequence[Scored]) -> np.ndarray:
    """Return the rows of all prompts, (prompts, d + 1), the last column the number of the prompt's group."""
    values: dict[str, list[float | list[float]]] = defaultdict(list)
    groups: dict[str, int] = {}
    group_of: dict[str, int] = {}
    for generation in scored:
        values[generation.sample].append(generation.value)
        group_of[generation.sample] = groups.setdefault(generation.group, len(groups))
    rows = combiner(name).rows
    return np.array([[*rows(repeats), group_of[sample]] for sample, repeats in values.items()], dtype=float)


def pass_at(k: int, n: int, right: float) -> float:
    """Return the probability that one of k out of n generations is correct if `right` of n are; NaN if n < k.

    1 - C(n - right, k) / C(n, k): Chen et al. 2021, equation 1.
    """
    if n < k:
        return math.nan
    return 1.0 - math.comb(n - round(right), k) / math.comb(n, k)


def _number(value: float | list[float]) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _averaged(values: Sequence[float | list[float]]) -> list[float]:
    """Return the mean over a prompt's repeats."""
    return [sum(map(_number, values)) / len(values)]


def _summed(values: Sequence[float | list[float]]) -> list[float]:
    """Return the sums of statistics over a prompt's repeats."""
    return [float(x) for x in np.sum([np.atleast_1d(v) for v in values], axis=0)]


def _macro(rows: np.ndarray) -> float:
    groups = rows[:, -1].astype(int)
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=rows[:, 0])
    return float((sums[counts > 0] / counts[counts > 0]).mean())


def _bleu(rows: np.ndarray) -> float:
    """Return corpus BLEU, computed by sacreBLEU from lengths and from the numbers of matched and possible n-grams."""
    from sacrebleu.metrics.bleu import BLEU

    length, reference, *ngrams = rows[:, :-1].sum(axis=0).astype(int).tolist()
    half = len(ngrams) // 2
    made = BLEU.compute_bleu(ngrams[:half], ngrams[half:], length, reference, smooth_method="exp")
    return float(made.score) / 100.0


def _chrf(rows: np.ndarray, beta: float = 2.0) -> float:
    """Return corpus chrF++ (Popović 2017): F_beta of precision and recall.

    Each is averaged over the orders that both sides have. Statistics
    are (n-grams of the text, of the reference, matched) by order.
    """
    sums = rows[:, :-1].sum(axis=0).reshape(-1, 3)
    hypothesis_count, expected, matched = sums[(sums[:, 0] > 0) & (sums[:, 1] > 0)].T
    if not matched.sum():
        return 0.0
    precision, recall = (matched / hypothesis_count).mean(), (matched / expected).mean()
    return float((1 + beta**2) * precision * recall / (beta**2 * precision + recall))


_COMBINERS = {
    "mean": Combiner(_averaged, lambda rows: float(rows[:, 0].mean())),
    "macro": Combiner(_averaged, _macro),
    "bleu": Combiner(_summed, _bleu),
    "chrf": Combiner(_summed, _chrf),
}
