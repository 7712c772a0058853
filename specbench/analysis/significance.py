"""Significance tests: p-values and quantiles of the distributions that they need, without scipy (decision 0022).

Every docstring says whether a p-value is one-sided or two-sided. The tests of distributions of tokens, which may stop at any
time, are in specbench/features/exactness.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

TERMS = 500  # of a continued fraction, which needs some tens of them
LARGEST = 1e4  # t of a tail that small is not needed
STEPS = 80  # halvings of the interval that contains a quantile
EXHAUSTIVE = 14  # prompts up to which all exchanges are tried
EXCHANGES = 20_000  # random exchanges for more prompts
ROUNDING = 1e-9  # statistics of permutations that differ by less are equal

NORMAL = NormalDist()


# Distributions


def normal_tails(z: float) -> float:
    """Return the two-sided p-value P(|Z| >= |z|) of the standard normal distribution, also far in the tails."""
    return math.erfc(abs(z) / math.sqrt(2.0))


def normal_quantile(p: float) -> float:
    """Return the z with P(Z <= z) = `p` of the standard normal distribution: 1.96 for 0.975."""
    return NORMAL.inv_cdf(p)


def student_tails(t: float, freedom: float) -> float:
    """Return the two-sided p-value P(|T| >= |t|) of Student's distribution, with fractional degrees of freedom.

    It is I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2) (Abramowitz & Stegun 26.7.1).
    """
    return incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


@cache
def student_quantile(freedom: float, tails: float = 0.05) -> float:
    """Return the t with the two-sided P(|T| >= t) = `tails`: 1.96 for many degrees of freedom, 2.78 for four."""
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_tails(middle, freedom) > tails else (low, middle)
    return high


def binomial_at_most(count: int, n: int, chance: float) -> float:
    """Return the one-sided p-value P(K <= count) of n events with the same probability (DLMF 8.17.5)."""
    return incomplete_beta(n - count, count + 1.0, 1.0 - chance) if count < n else 1.0


def occurrences_at_least(count: int, chances: Sequence[float]) -> float:
    """Return the one-sided p-value that at least `count` of independent events with these probabilities occur.

    The number of events follows the Poisson binomial distribution, which is computed by convolution.
    """
    ways = np.array([1.0])  # the distribution of the number of events
    for chance in chances:
        ways = np.convolve(ways, [1.0 - chance, chance])
    return float(min(1.0, ways[count:].sum())) if count else 1.0


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges slowly
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 + d1 / (1 + d2 / (1 + ...)), from the innermost term outwards."""
    value = 1.0
    for term in range(TERMS, 0, -1):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1.0 + d / value
    return value


# Counts of right and wrong


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p-value of `lost` against `won` discordant pairs (McNemar 1947)."""
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, float(2 * tail / 2**n))  # a quotient of integers does not overflow


def fisher(count: int, other: int, n: int) -> float:
    """Return the one-sided p-value of Fisher's exact test (1922): `count` of `n`, against `other` of another `n`.

    It is the probability of at least `count` on this side, given the sum of both, if both shares are equal.
    """
    both = count + other
    ways = sum(math.comb(n, k) * math.comb(n, both - k) for k in range(count, min(n, both) + 1))
    return float(ways / math.comb(2 * n, both))


# Differences of means


class Welch(NamedTuple):
    """The difference of two means, NEW's minus BASE's, and its two-sided p-value."""

    difference: float
    p: float


def normal_test(difference: float, error: float) -> float:
    """Return the two-sided p-value of a difference with a known standard error."""
    return normal_tails(difference / error) if error else _without_error(difference)


def student_test(difference: float, error: float, freedom: float) -> float:
    """Return the two-sided p-value of a difference whose standard error was estimated (Student 1908)."""
    return student_tails(difference / error, freedom) if error else _without_error(difference)


def _without_error(difference: float) -> float:
    return 0.0 if difference else 1.0


def welch(base: Sequence[float], new: Sequence[float]) -> Welch:
    """Return Welch's two-sided t-test (1947) of two means with unequal variances, of at least two values each."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    difference = float(b.mean() - a.mean())
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0.0:
        return Welch(difference, _without_error(difference))
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return Welch(difference, student_test(difference, math.sqrt(va + vb), freedom))


def paired_test(base: np.ndarray, new: np.ndarray, statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """Return the change of a statistic between rows (prompts, values) of the same prompts, and its two-sided p-value.

    The standard error of the change is the jackknife's, and its distribution Student's.
    """
    change = statistic(new) - statistic(base)
    if np.array_equal(base, new) or len(base) < 2:
        return change, 1.0
    parts = [np.arange(len(base)) != i for i in range(len(base))]
    error, freedom = jackknife([statistic(new[k]) - statistic(base[k]) for k in parts])
    return change, student_test(change, error, freedom)


def jackknife(left_out: "np.ndarray | Sequence[float]") -> tuple[float, float]:
    """Return the standard error of a statistic and its degrees of freedom (Efron & Tibshirani 1993, chapter 11).

    `left_out` are its values without each part in turn.
    """
    values = np.asarray(left_out, dtype=float)
    n = len(values)
    return float(np.sqrt((n - 1) / n * ((values - values.mean()) ** 2).sum())), float(n - 1)


# Permutations


def permutation_p(statistics: np.ndarray) -> float:
    """Return the share of statistics that are at least as large as the first, the observed one (Fisher 1935).

    It is a one-sided p-value of the statistic: two-sided for the absolute value of a difference.
    """
    return float(np.mean(statistics >= statistics[0] - ROUNDING))


def paired_exchanges(prompts: int) -> np.ndarray:
    """Return which prompts are exchanged between two sides, (permutations, prompts): 1 if so. The first row is all zeros."""
    if prompts <= EXHAUSTIVE:
        return np.array(list(product((0.0, 1.0), repeat=prompts)))
    drawn = np.random.default_rng(0).integers(0, 2, (EXCHANGES, prompts)).astype(float)
    drawn[0] = 0.0
    return drawn


def permuted_labels(labels: np.ndarray, permutations: int, chooser: np.random.Generator) -> np.ndarray:
    """Return labels (m,) as they are and in random orders, (1 + permutations, m)."""
    return np.vstack([labels, chooser.permuted(np.tile(labels, (permutations, 1)), axis=1)])


# Several tests


def holm(p: Sequence[float], alpha: float) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure (1979) rejects at a familywise error rate."""
    rejected = [False] * len(p)
    for position, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] > alpha / (len(p) - position):
            break
        rejected[i] = True
    return rejected
