"""Significance tests: McNemar's test, a paired bootstrap and Welch's test."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
TERMS = 500  # of a continued fraction, which needs some tens of them


class Welch(NamedTuple):
    """The difference of two means, NEW's minus BASE's, and its two-sided p-value."""

    difference: float
    p: float


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p-value of `lost` against `won` discordant pairs (McNemar 1947)."""
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, 2.0 * tail / 2.0**n)


def paired_bootstrap(
    base: np.ndarray, new: np.ndarray, statistic: Callable[[np.ndarray], float]
) -> tuple[float, float]:
    """Return the change of a statistic between rows (prompts, values) of the same prompts, and its two-sided p-value.

    The p-value is twice the share of resamples in which the change is zero or has the other sign.
    """
    change = statistic(new) - statistic(base)
    if np.array_equal(base, new):
        return change, 1.0
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(base), (RESAMPLES, len(base)))
    changes = np.array([statistic(new[pick]) - statistic(base[pick]) for pick in picks])
    other = min(int((changes <= 0.0).sum()), int((changes >= 0.0).sum()))
    return change, min(1.0, 2.0 * (other + 1) / (RESAMPLES + 1))


def welch(base: Sequence[float], new: Sequence[float]) -> Welch:
    """Return Welch's t-test of two means with unequal variances. Both sides need at least two values."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    difference = float(b.mean() - a.mean())
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0.0:
        return Welch(difference, 0.0 if difference else 1.0)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return Welch(difference, student_tails(difference / math.sqrt(va + vb), float(freedom)))


def student_tails(t: float, freedom: float) -> float:
    """Return P(|T| >= |t|) of Student's distribution: I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2)."""
    return incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


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
