"""The cost of a forward by the number of tokens that it reads: as measured, never decreasing, within a stated range."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specbench.analysis.rows import Rows

LEAST = 5  # forwards of a size from which its cost is a mean; other sizes lie between their neighbors
REACH = 1.25  # a cost is stated for blocks up to this multiple of the largest size that was read LEAST times

Sizes = Mapping[int, tuple[float, float]]  # forwards and their seconds, by tokens read


@dataclass(frozen=True)
class BlockCosts:
    """Seconds of a forward by the tokens that it reads, up to a largest size, in the last axis; the entry for 0 is unused.

    Costs never decrease. A size that was read fewer than LEAST times is interpolated, and one above the largest such
    size is extrapolated by the mean slope. `least` and `most` bound what these costs may be: the neighbors' costs, no
    increase, and the steepest measured slope.
    """

    seconds: np.ndarray
    least: np.ndarray
    most: np.ndarray


def sizes_of(rows: Rows, role: str) -> dict[int, tuple[float, float]]:
    """Return the number of a model's decoding forwards and their seconds, by tokens read."""
    out: dict[int, tuple[float, float]] = {}
    for row in rows:
        for fed, (count, spent) in row.models[role]["by_fed"].items() if role in row.models else ():
            had = out.get(int(fed), (0.0, 0.0))
            out[int(fed)] = had[0] + count, had[1] + spent
    return out


def known(sizes: Sizes) -> list[int]:
    """Return the sizes of which enough forwards were measured, in order."""
    return sorted(size for size, (count, _) in sizes.items() if count >= LEAST)


def largest_stated(sizes: Sizes) -> int:
    """Return the largest block whose cost these forwards state; 0 without enough forwards of any size."""
    return int(REACH * max(known(sizes), default=0))


def sums_of(sizes: Sizes, largest: int) -> np.ndarray:
    """Return forwards and seconds by size, (largest + 1, 2)."""
    out = np.zeros((largest + 1, 2))
    for size, sums in sizes.items():
        if size <= largest:
            out[size] = sums
    return out


def fitted(sums: np.ndarray, at: list[int]) -> BlockCosts:
    """Return the costs of all sizes from sums (..., sizes, 2), with those of the sizes `at` as measured."""
    measured = _increasing(sums[..., at, 0], sums[..., at, 1])
    sizes, last = np.arange(sums.shape[-2]), at[-1]
    right = np.minimum(np.searchsorted(at, sizes), len(at) - 1)
    left = np.maximum(np.where(np.array(at)[right] == sizes, right, right - 1), 0)
    inside = np.where(sizes > last, len(at) - 1, left)
    low, high = measured[..., inside], measured[..., right]
    places = np.array(at, dtype=float)
    widths = np.maximum(places[right] - places[left], 1.0)
    between = low + (high - low) * np.clip((sizes - places[left]) / widths, 0.0, 1.0)
    beyond = np.maximum(sizes - last, 0)
    mean, steepest = _slopes(measured, places)
    return BlockCosts(between + mean[..., None] * beyond, low, high + steepest[..., None] * beyond)


def _slopes(measured: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the steepest slope between the sizes from 2 on, (...); of all sizes if only one is above 1."""
    used = slice(1 if len(places) > 2 and places[0] == 1.0 else 0, None)
    costs, at = measured[..., used], places[used]
    if len(at) < 2:
        none = np.zeros(measured.shape[:-1])
        return none, none
    slopes = np.diff(costs, axis=-1) / np.diff(at)
    return (costs[..., -1] - costs[..., 0]) / (at[-1] - at[0]), slopes.max(axis=-1)


def _increasing(counts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the means of (..., n) groups, made non-decreasing by least squares: isotonic regression by its minimax form."""
    n = counts.shape[-1]
    means = np.full((*counts.shape[:-1], n, n), np.nan)  # of the groups from i to k
    for i in range(n):
        total = np.maximum(counts[..., i:].cumsum(axis=-1), 1e-12)
        means[..., i, i:] = seconds[..., i:].cumsum(axis=-1) / total
    out = [means[..., : j + 1, j:].min(axis=-1).max(axis=-1) for j in range(n)]
    return np.stack(out, axis=-1)
