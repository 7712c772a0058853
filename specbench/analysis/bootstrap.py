"""95 % percentile bootstrap intervals over prompts. All repeats of a prompt stay together."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

RESAMPLES = 2000
FEWEST = 5


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval. `low` and `high` are None for fewer than FEWEST prompts."""

    value: float
    low: float | None
    high: float | None


def by_prompt(rows: Iterable[tuple[Any, ...]]) -> np.ndarray:
    """Sum rows (value, ..., sample) over the repeats of each sample. Returns an array (prompts, values)."""
    sums: dict[str, np.ndarray] = {}
    for *values, sample in rows:
        sums[sample] = sums.get(sample, np.zeros(len(values))) + np.array(values, dtype=float)
    return np.stack(list(sums.values()))


def wilson(share: float, n: int) -> Estimate:
    """Wilson's interval of a share of `n` that is 0 or 1. A bootstrap interval would have width zero."""
    inner = n / (n + 1.96**2)  # the bound that is not the share itself, for a share of 1
    return Estimate(share, inner, 1.0) if share > 0.5 else Estimate(share, 0.0, 1.0 - inner)


def bootstrap(table: np.ndarray, statistic: Callable[[np.ndarray], float], resamples: int = RESAMPLES) -> Estimate:
    """Return a statistic of a table (prompts, values) with the interval over resampled prompts."""
    if len(table) < FEWEST:
        return Estimate(float(statistic(table)), None, None)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(table), (resamples, len(table)))
    low, high = np.percentile([statistic(table[pick]) for pick in picks], [2.5, 97.5])
    return Estimate(float(statistic(table)), float(low), float(high))


def bootstrap_sums(table: np.ndarray, statistic: Callable[[np.ndarray], Any]) -> Estimate:
    """`bootstrap` for a statistic of column sums. The statistic gets the sums (..., values) of all resamples at once."""
    value = float(statistic(table.sum(axis=0)))
    if len(table) < FEWEST:
        return Estimate(value, None, None)
    low, high = np.percentile(statistic(resample_counts(len(table)) @ table), [2.5, 97.5])
    return Estimate(value, float(low), float(high))


@lru_cache(maxsize=2)
def resample_counts(prompts: int) -> np.ndarray:
    """Return the count of each prompt in each resample, (RESAMPLES, prompts)."""
    picks = np.random.default_rng(0).integers(0, prompts, (RESAMPLES, prompts))
    flat = np.bincount((picks + prompts * np.arange(RESAMPLES)[:, None]).ravel(), minlength=RESAMPLES * prompts)
    return flat.reshape(RESAMPLES, prompts).astype(float)
