"""Is a difference more than chance? McNemar's test, a paired bootstrap, Welch's test; numpy and math alone."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
TERMS = 500  # of a continued fraction, which needs some tens


class Welch(NamedTuple):
    """The difference of two means, NEW's minus BASE's, and the two-sided chance of one so large without a cause."""

    difference: float
    p: float


def mcnemar(lost: int, won: int) -> float:
    """Two-sided exact p: of lost + won pairs that differ, each side is as likely. McNemar 1947, by the binomial law."""
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, 2.0 * tail / 2.0**n)


def paired_bootstrap(
    base: np.ndarray, new: np.ndarray, statistic: Callable[[np.ndarray], float]
) -> tuple[float, float]:
    """The change of a statistic from `base` to `new`, rows (prompts, values) of the same prompts, and twice the share of
    resampled prompts on which it is none or goes the other way."""
    change = statistic(new) - statistic(base)
    if np.array_equal(base, new):
        return change, 1.0
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(base), (RESAMPLES, len(base)))
    changes = np.array([statistic(new[pick]) - statistic(base[pick]) for pick in picks])
    other = min(int((changes <= 0.0).sum()), int((changes >= 0.0).sum()))
    return change, min(1.0, 2.0 * (other + 1) / (RESAMPLES + 1))


def welch(base: Sequence[float], new: Sequence[float]) -> Welch:
    """Welch's t-test of means whose variances may differ. Both need two values at least."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    difference = float(b.mean() - a.mean())
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0.0:
        return Welch(difference, 0.0 if difference else 1.0)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return Welch(difference, student_tails(difference / math.sqrt(va + vb), float(freedom)))


def student_tails(t: float, freedom: float) -> float:
    """P(|T| >= |t|) of Student's distribution: I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2)."""
    return incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges slowly
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), from the innermost term outwards."""
    value = 1.0
    for term in range(TERMS, 0, -1):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1.0 + d / value
    return value
