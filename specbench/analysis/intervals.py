"""95 % intervals over prompts: jackknife standard errors and Student's t distribution (Efron & Tibshirani 1993, chapter 11).

All repeats of a prompt stay together. Where a run has repeats, the interval also contains what differs between them,
such as a busy minute of the machine: prompts and repeats are two crossed groups (Cameron, Gelbach & Miller 2011), and
the degrees of freedom are Satterthwaite's. `make intervals` measures the coverage (results/intervals.md).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from specbench.analysis.significance import jackknife, student_quantile

FEWEST = 5
LOST_FREEDOM = 1.5  # subtracted from the effective number of prompts; calibrated by scripts/interval_trials.py
CAPITAL = 20.0  # a bet against a true mean reaches it with a probability of at most 1 / 20
BETS = np.array([0.99, 0.5, 0.25, 0.1, 0.05, 0.02])  # stakes, as shares of the largest possible one
BET_WEIGHTS = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
STEPS = 80  # halvings of the interval that contains a bound

Statistic = Callable[[np.ndarray], Any]


class Spread(NamedTuple):
    """A mean with its standard deviation."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval. `low` and `high` are None for fewer than FEWEST prompts."""

    value: float
    low: float | None
    high: float | None

    def within(self, least: float, most: float) -> "Estimate":
        """Return the estimate with its interval cut to a range."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.value, max(self.low, least), min(self.high, most))

    def overlaps(self, other: "Estimate") -> bool:
        """Return whether two intervals have a value in common. An estimate without an interval overlaps every other."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high and other.low <= self.high

    def minus(self, other: "Estimate", factor: float = 1.0) -> "Estimate":
        """Return this minus `factor` x another independent estimate, by Zou & Donner 2008. A missing bound is infinite."""
        (low, high), (below, above) = self.bounds, other.bounds
        value = self.value - factor * other.value
        down = math.hypot(self.value - low, factor * (above - other.value))
        up = math.hypot(high - self.value, factor * (other.value - below))
        return Estimate(value, value - down, value + up)

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; the whole line without one."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high


def by_prompt(rows: Iterable[tuple[Any, ...]]) -> np.ndarray:
    """Sum rows (value, ..., prompt) over the repeats of each prompt. Returns an array (prompts, values)."""
    return by_repeat((*values, prompt, 0) for *values, prompt in rows)[:, 0]


def by_repeat(rows: Iterable[tuple[Any, ...]]) -> np.ndarray:
    """Sum rows (value, ..., prompt, repeat). Returns an array (prompts, repeats, values), 0 where there is no row."""
    table = list(rows)
    prompts, repeats = ({key: i for i, key in enumerate(dict.fromkeys(row[at] for row in table))} for at in (-2, -1))
    sums = np.zeros((len(prompts), len(repeats), len(table[0]) - 2))
    for *values, prompt, repeat in table:
        sums[prompts[prompt], repeats[repeat]] += values
    return sums


def wilson(share: float, n: int) -> Estimate:
    """Return Wilson's interval of a share of `n` that is 0 or 1. An interval from equal values would have width zero."""
    inner = n / (n + 1.96**2)  # the bound that is not the share itself, for a share of 1
    return Estimate(share, inner, 1.0) if share > 0.5 else Estimate(share, 0.0, 1.0 - inner)


def interval(table: np.ndarray, statistic: Callable[[np.ndarray], float]) -> Estimate:
    """Return a statistic of a table (prompts, values) with its interval."""
    value = float(statistic(table))
    if len(table) < FEWEST:
        return Estimate(value, None, None)
    return _estimate(value, *jackknife([statistic(np.delete(table, i, axis=0)) for i in range(len(table))]))


def interval_of_sums(table: np.ndarray, statistic: Statistic) -> Estimate:
    """Return what `interval` returns, for a statistic of column sums. The statistic gets sums of shape (..., values)."""
    value = float(statistic(table.sum(axis=0)))
    if len(table) < FEWEST:
        return Estimate(value, None, None)
    return _estimate(value, *jackknife(statistic(table.sum(axis=0) - table)))


def interval_of_ratio(table: np.ndarray, statistic: Statistic) -> Estimate:
    """Return a positive statistic of column sums with its interval, which is symmetric in logarithms.

    Prompts with unequal weights count as fewer prompts (Kish 1965): the degrees of freedom are computed from this effective
    number.

    Args:
        table: Values (prompts, repeats, values) or (prompts, values). The last column is the weight of a prompt,
            such as the seconds of its baseline.
        statistic: A function of sums (..., values).
    """
    cells = table if table.ndim == 3 else table[:, None]
    whole = cells.sum(axis=(0, 1))
    value = float(statistic(whole))
    if len(cells) < FEWEST:
        return Estimate(value, None, None)

    def error_without(parts: np.ndarray) -> tuple[float, float]:
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing is left without the only repeat
            return jackknife(_log(np.asarray(statistic(whole - parts))))

    error, freedom = crossed(
        (error_without(cells.sum(axis=1))[0], _weighted_freedom(cells[..., -1].sum(axis=1))),
        error_without(cells.sum(axis=0)),
        error_without(cells[cells.any(axis=2)]),
    )
    return _from_logs(value, error, freedom)


def jackknifed_ratio(value: float, left_out: np.ndarray, weights: np.ndarray) -> Estimate:
    """Return a positive value with its interval, from its values without each prompt in turn, and the prompts' weights."""
    if len(left_out) < FEWEST:
        return Estimate(value, None, None)
    return _from_logs(value, jackknife(_log(left_out))[0], _weighted_freedom(weights))


def crossed(
    prompts: tuple[float, float], repeats: tuple[float, float], cells: tuple[float, float]
) -> tuple[float, float]:
    """Combine (standard error, degrees of freedom) over prompts, repeats and single generations.

    The variance between repeats is added as far as it exceeds the variance between single generations.
    """
    (a, n), (b, m), (c, k) = prompts, repeats, cells
    extra = b**2 - c**2
    if m < 1.0 or extra <= 0.0:
        return a, n
    variance = a**2 + extra
    freedom = variance**2 / (a**4 / n + b**4 / m + c**4 / k)
    return float(np.sqrt(variance)), max(freedom, 1.0)


def mean_of_bounded(values: np.ndarray) -> Estimate:
    """Return the mean of values in [-1, 1], one per prompt, with bounds that hold for every distribution.

    Each bound holds with 95 % confidence. A few large values among many small ones do not break them, as they break an
    interval from the standard error: the values are bets against each possible mean, whose capital stays below 20 with that
    confidence (Waudby-Smith & Ramdas 2024). If all n values are 0, the bounds are about +- 3.7 / n.
    """
    mean = float(values.mean())
    if len(values) < FEWEST:
        return Estimate(mean, None, None)
    return Estimate(mean, 2.0 * _least_mean((1.0 + values) / 2.0) - 1.0, 1.0 - 2.0 * _least_mean((1.0 - values) / 2.0))


def _least_mean(values: np.ndarray) -> float:
    """Return the lower bound of the mean of values in [0, 1]: the largest mean at which the bets reach CAPITAL."""
    low, high = 0.0, float(values.mean())
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        stakes = BETS / max(middle, 1e-12)  # (bets,)
        logs = np.log1p(np.outer(stakes, values - middle).clip(-1.0 + 1e-12)).sum(axis=1)
        won = logs.max() + math.log(float((BET_WEIGHTS * np.exp(logs - logs.max())).sum()))
        low, high = (middle, high) if won >= math.log(CAPITAL) else (low, middle)
    return low


def _weighted_freedom(weights: np.ndarray) -> float:
    """Return the degrees of freedom of the effective number of prompts."""
    return max(float(weights.sum() ** 2 / (weights**2).sum()) - LOST_FREEDOM, 1.0)


def _log(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(values))


def _from_logs(value: float, error: float, freedom: float) -> Estimate:
    around = _estimate(float(_log(np.asarray(value))), error, freedom)
    if around.low is None or around.high is None:
        return Estimate(value, None, None)
    return Estimate(value, float(np.exp(around.low)), float(np.exp(around.high)))


def _estimate(value: float, error: float, freedom: float) -> Estimate:
    """Return a value with its interval; without an interval if the error is not finite."""
    if not np.isfinite(error):
        return Estimate(value, None, None)
    half = error * student_quantile(freedom) if error else 0.0
    return Estimate(value, value - half, value + half)
