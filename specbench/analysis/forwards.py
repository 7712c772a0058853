"""Model forwards: their number and seconds, the share of decoding that they take, and their cost by tokens read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.intervals import Estimate, by_repeat, interval_of_ratio
from specbench.analysis.run_metrics import (
    Context,
    Records,
    is_compared,
    metric,
    metric_in_context,
    paired,
    register,
    round_count,
    seconds,
    token_count,
)
from specbench.analysis.theory import Cost
from specbench.runs.record import Record

LIMIT = 0.85  # share of the read bandwidth that a forward of one token reaches at the limit
LEAST = 5  # sizes with this many forwards have their mean as cost; others are interpolated
REACH = 1.25  # a cost is stated for blocks up to this multiple of the largest size that was read LEAST times

Sizes = Mapping[int, tuple[float, float]]  # forwards and their seconds, by tokens read


def forwards_per_token(rows: Records) -> dict[str, float]:
    """Return the forwards of each model, including its first, / committed tokens."""
    total = token_count(rows)
    forwards: dict[str, int] = defaultdict(int)
    for r in rows:
        for role, usage in r.models.items():
            forwards[role] += usage.forwards + (1 if usage.prefill_fed else 0)
    return {role: count / total for role, count in forwards.items()}


@metric_in_context("forwards/token")
def target_calls(rows: Records, context: Context) -> float | None:
    """Forwards of the target / committed tokens. SpecCascade's Figure 1 has them on its x axis."""
    return forwards_per_token(rows).get(context.target)


@metric("share")
def outside_forwards(rows: Records) -> float:
    """Share of decoding seconds outside model forwards: sampling, verification, bookkeeping, communication."""
    inside: float = sum(usage.own_seconds for r in rows for usage in r.models.values())
    return 1.0 - inside / sum(seconds(r) for r in rows)


class Traffic(NamedTuple):
    """The bytes that a decoding forward reads at least: of weights, and of the cache per position."""

    forward_bytes: float
    position_bytes: float


def bound_share(rows: Records, traffic: Mapping[str, Traffic], bandwidth: float) -> float:
    """(Bytes of weights and cache that the forwards had to read / measured read bandwidth) / decoding seconds.

    Every forward reads its model's weights and its cache once. The share is above 1 if the weights fit into a processor's
    cache. Heads are left out. `bandwidth` is in bytes per second.
    """
    read: float = sum(
        usage.forwards * traffic[role].forward_bytes + usage.read * traffic[role].position_bytes
        for r in rows
        for role, usage in r.models.items()
        if role in traffic
    )
    return read / bandwidth / sum(seconds(r) for r in rows)


def _traffic(context: Context) -> dict[str, Traffic]:
    return {role: Traffic(model.forward_bytes, model.position_bytes) for role, model in context.models.items()}


register(
    "bound_share", "share", bound_share,
    lambda rows, of: bound_share(rows, _traffic(of), of.bandwidth.bytes_per_second), lambda *_: True,
)  # fmt: skip


def speedup_at_limit(rows: Records, base: Records, traffic: Mapping[str, Traffic], bandwidth: float) -> Estimate:
    """The decoding speedup if no forward of one token took longer than its bytes at 85 % of the read bandwidth.

    Both sides' forwards of one token are replaced. Everything else stays as measured: blocks, which a faster engine would
    speed up too, models without known bytes, and the time outside forwards.
    """
    ours, theirs = paired(rows, base)
    table = by_repeat(
        (
            len(a.tokens), _seconds_at_limit(a, traffic, bandwidth),
            len(b.tokens), _seconds_at_limit(b, traffic, bandwidth), a.prompt, a.repeat,
        )
        for a, b in zip(ours, theirs, strict=True)
    )  # fmt: skip
    return interval_of_ratio(table, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]))


def _seconds_at_limit(row: Record, traffic: Mapping[str, Traffic], bandwidth: float) -> float:
    """Return the decoding seconds of a generation with its forwards of one token at the limit, where they are slower."""
    saved = 0.0
    for role in row.models.keys() & traffic.keys():
        usage = row.models[role]
        count, spent = sizes_of([row], role).get(1, (0.0, 0.0))
        if count:
            positions = usage.read / usage.forwards  # the mean over all forwards
            size = traffic[role].forward_bytes + positions * traffic[role].position_bytes
            saved += max(spent - count * size / (LIMIT * bandwidth), 0.0)
    return seconds(row) - saved


def _has_limit(rows: Records, context: Context) -> bool:
    """Return whether the read bandwidth is known, and whether the seconds of forwards add up: none ran beside another."""
    overlapping = any(usage.overlapped_seconds for row in (*rows, *context.baseline) for usage in row.models.values())
    return context.bandwidth.kind == "read" and is_compared(rows, context) and not overlapping


register(
    "speedup_at_limit", "x", speedup_at_limit,
    lambda rows, of: speedup_at_limit(rows, of.baseline, _traffic(of), of.bandwidth.bytes_per_second), _has_limit,
)  # fmt: skip


def forward_seconds(rows: Records) -> dict[str, dict[int, float]]:
    """Return the mean seconds of a decoding forward, by model and by the number of tokens fed."""
    sums: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for r in rows:
        for role, usage in r.models.items():
            for fed, (count, spent) in usage.by_fed.items():
                entry = sums[role].setdefault(int(fed), [0.0, 0.0])
                entry[0] += count
                entry[1] += spent
    return {role: {fed: s / n for fed, (n, s) in sorted(sizes.items())} for role, sizes in sums.items()}


def cost_of(roles: Sequence[str], costs: dict[str, dict[int, float]], single: dict[str, float]) -> Cost:
    """Return the measured cost(i, k) in seconds. Missing k are interpolated. `single` replaces the cost for k = 1."""

    def cost(i: int, k: int) -> float:
        measured = costs.get(roles[i], {}) | {1: single[roles[i]]}
        return float(np.interp(k, sorted(measured), [measured[fed] for fed in sorted(measured)]))

    return cost


def round_milliseconds(rows: Records) -> dict[str, float]:
    """Return the milliseconds per round of each model's forwards; `host` is everything else."""
    rounds = round_count(rows)
    sums: dict[str, float] = defaultdict(float)
    for r in rows:
        for role, usage in r.models.items():
            sums[role] += usage.own_seconds
    sums["host"] = sum(map(seconds, rows)) - sum(sums.values())
    return {role: 1e3 * spent / rounds for role, spent in sums.items()}


# The cost of a forward by the number of tokens that it reads: as measured, never decreasing, within a stated range


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


def sizes_of(rows: Records, role: str) -> dict[int, tuple[float, float]]:
    """Return the number of a model's decoding forwards and their seconds, by tokens read."""
    out: dict[int, tuple[float, float]] = {}
    for row in rows:
        for fed, (count, spent) in row.models[role].by_fed.items() if role in row.models else ():
            had = out.get(int(fed), (0.0, 0.0))
            out[int(fed)] = had[0] + count, had[1] + spent
    return out


def measured_sizes(sizes: Sizes) -> list[int]:
    """Return the sizes of which enough forwards were measured, in order."""
    return sorted(size for size, (count, _) in sizes.items() if count >= LEAST)


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
