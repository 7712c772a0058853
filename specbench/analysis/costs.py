"""Costs of forwards by the number of tokens that they read, and of rounds: what predictions of speed are made of.

A forward's cost is the mean of the forwards of its size. Sizes with few forwards are interpolated between the others, since a
mean of few is noise: on a machine whose clock changes, one slow forward among three moves it by a tenth.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.run_metrics import Records, seconds
from specbench.analysis.theory import Cost
from specbench.runs.record import Record

LEAST = 5  # sizes with this many forwards have their mean as cost; others are interpolated
OFTEN = 20  # the same where the costs of another run, or of timed forwards, are known for sizes with fewer forwards
REACH = 1.25  # a cost is stated for blocks up to this multiple of the largest size that was read LEAST times

Sizes = Mapping[int, tuple[float, float]]  # forwards and their seconds, by tokens read


def sizes_of(rows: Iterable[Record], role: str) -> dict[int, tuple[float, float]]:
    """Return the number of a model's decoding forwards and their seconds, by tokens read."""
    out: dict[int, tuple[float, float]] = {}
    for row in rows:
        for fed, (count, spent) in row.models[role].by_fed.items() if role in row.models else ():
            had = out.get(int(fed), (0.0, 0.0))
            out[int(fed)] = had[0] + count, had[1] + spent
    return out


def forward_seconds(rows: Records) -> dict[str, dict[int, float]]:
    """Return the mean seconds of a decoding forward, by model and by the number of tokens read."""
    roles = dict.fromkeys(role for row in rows for role in row.models)
    by_role = {role: sizes_of(rows, role) for role in roles}
    return {
        role: {fed: spent / count for fed, (count, spent) in sorted(sizes.items())}
        for role, sizes in by_role.items()
        if sizes
    }


def cost_of(roles: Sequence[str], costs: dict[str, dict[int, float]], single: dict[str, float]) -> Cost:
    """Return the measured cost(i, k) in seconds. Missing k are interpolated. `single` replaces the cost for k = 1."""

    def cost(i: int, k: int) -> float:
        measured = costs.get(roles[i], {}) | {1: single[roles[i]]}
        return float(np.interp(k, sorted(measured), [measured[fed] for fed in sorted(measured)]))

    return cost


def host_seconds(record: Record) -> float:
    """Return the seconds of a generation outside forwards: sampling, verification, bookkeeping, communication."""
    return seconds(record) - sum(usage.own_seconds for usage in record.models.values())


@dataclass(frozen=True)
class BlockCosts:
    """Seconds of a forward, indexed along the last axis by the number of tokens that it reads. The entry for 0 is unused.

    Costs never decrease. A size that was read fewer than LEAST times is interpolated, and one above the largest such
    size is extrapolated by the mean slope. `least` and `most` bound what these costs may be: the neighbors' costs, no
    increase, and the steepest measured slope.
    """

    seconds: np.ndarray
    least: np.ndarray
    most: np.ndarray


def measured_sizes(sizes: Sizes, least: int = LEAST) -> list[int]:
    """Return the sizes of which at least `least` forwards were measured, in order."""
    return sorted(size for size, (count, _) in sizes.items() if count >= least)


def largest_stated(sizes: Sizes) -> int:
    """Return the largest block whose cost these forwards state; 0 without enough forwards of any size."""
    return int(REACH * max(measured_sizes(sizes), default=0))


def sums_of(sizes: Sizes, largest: int) -> np.ndarray:
    """Return forwards and seconds by size, (largest + 1, 2)."""
    out = np.zeros((largest + 1, 2))
    for size, sums in sizes.items():
        if size <= largest:
            out[size] = sums
    return out


class ForwardLine(NamedTuple):
    """Seconds of a forward that reads n tokens: `one` if n = 1, and about `fixed + n * per_token` from n = 2 on.

    `means` are the measured ones, by n from 2 on. A forward of one token takes other routines than a block, so it is not on
    the line.
    """

    one: float
    fixed: float
    per_token: float
    means: dict[int, float]

    def seconds(self, n: int) -> float:
        """Return the measured mean of blocks of n tokens, or the line's value if they were not measured."""
        return self.means.get(n, self.fixed + n * self.per_token)

    def residual(self, n: int) -> float:
        """Return the measured mean over the line, minus one."""
        return self.means[n] / (self.fixed + n * self.per_token) - 1.0

    @property
    def worst(self) -> int:
        """The size with the largest residual."""
        return max(self.means, key=lambda n: abs(self.residual(n)))


def line_of(sizes: Sizes) -> ForwardLine | None:
    """Fit a line by relative least squares. None unless one token and three larger sizes were measured LEAST times."""
    means = {size: sizes[size][1] / sizes[size][0] for size in measured_sizes(sizes)}
    one = means.pop(1, None)
    if one is None or len(means) < 3:
        return None
    n, y = np.array(list(means), dtype=float), np.array(list(means.values()))
    per_token, fixed = np.polyfit(n, y, 1, w=1.0 / y)
    return ForwardLine(one, float(fixed), float(per_token), means)


def fitted(sums: np.ndarray, at: list[int]) -> BlockCosts:
    """Return the costs of all sizes from sums (..., sizes, 2). The costs of the sizes `at` are the measured means."""
    measured = _increasing(sums[..., at, 0], sums[..., at, 1])
    sizes, last = np.arange(sums.shape[-2]), at[-1]
    right = np.minimum(np.searchsorted(at, sizes), len(at) - 1)
    left = np.maximum(np.where(np.array(at)[right] == sizes, right, right - 1), 0)
    inside = np.where(sizes > last, len(at) - 1, left)
    low, high = measured[..., inside], measured[..., right]
    points = np.array(at, dtype=float)
    widths = np.maximum(points[right] - points[left], 1.0)
    between = low + (high - low) * np.clip((sizes - points[left]) / widths, 0.0, 1.0)
    beyond = np.maximum(sizes - last, 0)
    mean, steepest = _slopes(measured, points)
    return BlockCosts(between + mean[..., None] * beyond, low, high + steepest[..., None] * beyond)


def _slopes(measured: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the steepest slope between the sizes from 2 on, (...); of all sizes if only one is above 1."""
    used = slice(1 if len(points) > 2 and points[0] == 1.0 else 0, None)
    costs, at = measured[..., used], points[used]
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


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """The costs of a round that drafts k tokens, in seconds; numbers, or arrays of one shape.

    The first draft token costs `first`, or `doubled` after a fully accepted draft, when the drafter must read two tokens.
    Each later draft token costs `later`. `host` is the time outside forwards per round, and `host_per_token` per draft token.
    `per_token` is the baseline's time per token. `blocks` are the costs of each verifying model, with the number of tokens
    that it reads in the last axis. `levels` is the cost of a tree below its first level.
    """

    first: np.ndarray
    doubled: np.ndarray
    later: np.ndarray
    blocks: Sequence[np.ndarray]
    host: np.ndarray
    host_per_token: np.ndarray
    per_token: np.ndarray
    bonus: bool
    levels: float = 0.0

    def of_round(self, k: int, follows_whole: bool = False) -> np.ndarray:
        """Return the seconds of a round that drafts `k` tokens. `follows_whole`: the draft before was fully accepted."""
        if not k:
            return np.asarray(self.of_block(0) + self.host)
        start = self.doubled if follows_whole and self.bonus else self.first
        drafting = start + self.later * (k - 1) + self.levels + self.host_per_token * k
        return np.asarray(drafting + self.of_block(k) + self.host)

    def of_prefill(self, k: int) -> np.ndarray:
        """Return the seconds of each model's first forward in an output's first round, which decoding time excludes."""
        return np.asarray(self.of_block(k) + (self.first if k else 0.0))

    def of_block(self, k: int) -> np.ndarray:
        """Return the seconds in which the verifying models read `k` draft tokens."""
        return np.asarray(sum(block[..., max(k + self.bonus, 1)] for block in self.blocks))

    def of_rounds(self, rounds: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Return the decoding seconds of rounds: (..., replays).

        Args:
            rounds: The number of rounds by drafted tokens (..., replays, 2, k). Index 1 of the axis of 2 has the rounds
                after a fully accepted draft, index 0 all others.
            firsts: The number of rounds that begin an output (..., replays, k), whose first forwards are prefill.
        """
        drafts = range(rounds.shape[-1])
        of_round = np.stack(
            [np.stack([self.of_round(k, whole) for k in drafts], axis=-1) for whole in (False, True)], axis=-2
        )
        of_prefill = np.stack([self.of_prefill(k) for k in drafts], axis=-1)
        spent = (rounds * of_round[..., None, :, :]).sum((-1, -2)) - (firsts * of_prefill[..., None, :]).sum(-1)
        return np.asarray(spent)
