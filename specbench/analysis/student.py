"""Student's t distribution, with fractional degrees of freedom."""

import math
from functools import cache

TERMS = 500  # of a continued fraction, which needs some tens of them
LARGEST = 1e4  # t of a tail that small is not needed
STEPS = 80  # halvings of the interval that contains a quantile


def student_tails(t: float, freedom: float) -> float:
    """Return P(|T| >= |t|) of Student's distribution: I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2)."""
    return incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


@cache
def student_quantile(freedom: float, tails: float = 0.05) -> float:
    """Return the t with P(|T| >= t) = `tails`: 1.96 for many degrees of freedom, 2.78 for four."""
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_tails(middle, freedom) > tails else (low, middle)
    return high


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
