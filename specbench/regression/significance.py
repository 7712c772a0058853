"""Significance tests: McNemar's test and Welch's test."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.analysis.student import student_tails


class Welch(NamedTuple):
    """The difference of two means, NEW's minus BASE's, and its two-sided p-value."""

    difference: float
    p: float


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p-value of `lost` against `won` discordant pairs (McNemar 1947)."""
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, 2.0 * tail / 2.0**n)


def welch(base: Sequence[float], new: Sequence[float]) -> Welch:
    """Return Welch's t-test of two means with unequal variances. Both sides need at least two values."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    difference = float(b.mean() - a.mean())
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0.0:
        return Welch(difference, 0.0 if difference else 1.0)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return Welch(difference, student_tails(difference / math.sqrt(va + vb), float(freedom)))
