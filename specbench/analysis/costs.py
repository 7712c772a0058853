"""What forwards and rounds cost: the numbers that every prediction of speed is made of.

`ForwardCosts` has the seconds of a model's forward by the number of tokens that it reads, and where each comes from.
`RoundCosts` has the seconds of a round of speculation, with the time outside forwards. A cost is the mean of the forwards of
its size. Sizes with few forwards are interpolated between the others, since a mean of few is noise: on a machine whose clock
changes, one slow forward among three moves it by a tenth.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from specbench.analysis.method_records import Records, seconds
from specbench.analysis.theory import Cost
from specbench.runs.record import Record

LEAST = 5  # sizes with this many forwards have their mean as cost; others are interpolated
OFTEN = 20  # the same where forwards were also timed apart, which are less noisy than a mean of few forwards of a run
REACH = 1.25  # a cost is stated for blocks up to this multiple of the largest size that was read LEAST times

Sizes = Mapping[int, tuple[float, float]]  # forwards and their seconds, by tokens read


class Origin(StrEnum):
    """Where the cost of a forward of one size comes from."""

    RUN = "the mean of the run's forwards"
    TIMED = "forwards timed apart, scaled to the run's"
    BETWEEN = "interpolated or extrapolated from other sizes"
    ASSUMED = "estimated for a machine that was not measured"


# Relative error of a speed that is predicted from such costs, fitted on the bundled models; other origins have at least the
# second one
ERRORS = {Origin.RUN: 0.05, Origin.TIMED: 0.08}


def sizes_of(rows: Iterable[Record], role: str) -> dict[int, tuple[float, float]]:
    """Return the number of a model's decoding forwards and their seconds, by tokens read."""
    out: dict[int, tuple[float, float]] = {}
    for row in rows:
        for fed, (count, spent) in row.models[role].by_fed.items() if role in row.models else ():
            had = out.get(int(fed), (0.0, 0.0))
            out[int(fed)] = had[0] + count, had[1] + spent
    return out


def run_sizes(rows: Iterable[Record], base: Iterable[Record], role: str) -> dict[int, tuple[float, float]]:
    """Return a model's forwards by tokens read. One-token forwards are taken from the baseline if it runs this model.

    A model that verifies drafts rarely reads one token alone.
    """
    one = sizes_of(base, role).get(1)
    return sizes_of(rows, role) | ({1: one} if one else {})


def host_seconds(record: Record) -> float:
    """Return the seconds of a generation outside forwards: sampling, verification, bookkeeping, communication."""
    return seconds(record) - sum(usage.own_seconds for usage in record.models.values())


def forward_count(rows: Records) -> int:
    """Return the number of forwards of all models, including the first of each."""
    return sum(usage.forwards + 1 for row in rows for usage in row.models.values())


def host_per_forward(rows: Records) -> float:
    """Return the seconds outside forwards / the number of forwards of all models."""
    return sum(map(host_seconds, rows)) / forward_count(rows)


@dataclass(frozen=True, eq=False)
class ForwardCosts:
    """The seconds of a model's forward, indexed along the last axis by the number of tokens that it reads; entry 0 is unused.

    Costs of blocks never decrease with their size. A forward of one token takes other routines than a block, so its cost is
    its own mean. `least` and `most` bound a cost that was not measured. Between two measured sizes, these are the two
    costs; beyond the largest, no increase and the steepest measured slope. For example, with 1.0 s at 2 tokens and 1.6 s at
    5, a forward of 3 tokens costs 1.2 s, at least 1.0 and at most 1.6. `slope` is the mean slope of the measured sizes, which
    each token beyond the largest size costs. `origins` has an entry for every size. Leading axes hold several sets of costs,
    such as those without each prompt; `of` and `error` are for a single set.
    """

    seconds: np.ndarray  # (..., sizes)
    least: np.ndarray  # (..., sizes)
    most: np.ndarray  # (..., sizes)
    slope: np.ndarray  # (...,)
    origins: tuple[Origin, ...]  # (sizes)

    @property
    def largest(self) -> int:
        """The largest forward that has a cost; larger ones are extrapolated."""
        return len(self.origins) - 1

    @property
    def stated(self) -> int:
        """The largest forward whose cost is stated: REACH times the largest measured size; 0 if none was measured often."""
        measured = (size for size, origin in enumerate(self.origins) if origin in ERRORS)
        return int(REACH * max(measured, default=0))

    def of(self, size: int, bound: str = "seconds") -> float:
        """Return the seconds of a forward that reads `size` tokens, or their `least` or `most`."""
        costs, beyond = getattr(self, bound), max(size - self.largest, 0)
        return float(costs[..., min(size, self.largest)] + (0.0 if bound == "least" else beyond * self.slope))

    def error(self, size: int) -> float:
        """Return the relative error that a cost adds to a speed: the constant for its origin, or half of its range."""
        origin = self.origins[size] if size <= self.largest else Origin.BETWEEN
        half = (self.of(size, "most") - self.of(size, "least")) / (2.0 * self.of(size))
        return max(ERRORS.get(origin, ERRORS[Origin.TIMED]), half)


def assumed(seconds: float) -> ForwardCosts:
    """Return costs for a machine that was not measured: a block takes as long as one token."""
    flat = np.full(2, seconds)
    return ForwardCosts(flat, flat, flat, np.asarray(0.0), (Origin.ASSUMED,) * 2)


def forward_costs(run: Sizes, timed: Sizes | None = None) -> ForwardCosts | None:
    """Return the costs of a model's forwards in a run. None without forwards.

    Args:
        run: The run's forwards, with their seconds, by tokens read.
        timed: Forwards that were timed apart in a loop, of more sizes than the run has often.

    With `timed`, a size with at least OFTEN forwards has the run's mean, and other sizes are `scaled`. Without, a size with
    at least LEAST forwards has the run's mean, and other sizes are interpolated. Larger blocks than these are pooled at their
    mean size.
    """
    if timed and measured_sizes(timed):
        return scaled(run, timed)
    if not measured_sizes(run):
        return fitted(sums_of(run, max(run) + 1), sorted(run), own=[]) if run else None
    sizes = _with_tail(run)
    at = measured_sizes(sizes)
    return fitted(sums_of(sizes, at[-1] + 1), at, own=measured_sizes(run))


def _with_tail(run: Sizes) -> Sizes:
    """Return forwards whose sizes above the largest frequent one are pooled, at their mean size.

    A cascade that rarely defers reads blocks of many different sizes, each once or twice.
    """
    largest = max(measured_sizes(run))
    tail = {size: sums for size, sums in run.items() if size > largest}
    count = sum(count for count, _ in tail.values())
    if count < LEAST:
        return run
    mean = round(sum(size * count for size, (count, _) in tail.items()) / count)
    return {size: sums for size, sums in run.items() if size <= largest} | {
        mean: (count, sum(spent for _, spent in tail.values()))
    }


def cost_of(roles: Sequence[str], costs: Mapping[str, ForwardCosts], *, as_in_papers: bool = False) -> Cost:
    """Return cost(i, k), the seconds of a forward of model `roles[i]` that reads k tokens; 0 for a model without costs.

    `as_in_papers`: a block costs as much as one token.
    """

    def cost(i: int, k: int) -> float:
        known = costs.get(roles[i])
        return known.of(1 if as_in_papers else k) if known else 0.0

    return cost


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


def fitted(sums: np.ndarray, at: list[int], own: Sequence[int] | None = None) -> ForwardCosts:
    """Return the costs of all sizes from sums (..., sizes, 2). The costs of the sizes `at` are the measured means.

    Sizes below the smallest measured block cost at most what that block costs, however slow one token is. `own` are the sizes
    whose mean rests on enough forwards of this size, by default all of `at`.
    """
    blocks = 1 if at[0] == 1 and len(at) > 1 else 0  # the first entry of `at` that is a block
    one = sums[..., at[:blocks], 1] / np.maximum(sums[..., at[:blocks], 0], 1e-12)
    measured = np.concatenate([one, _increasing(*np.moveaxis(sums[..., at[blocks:], :], -1, 0))], axis=-1)
    sizes, last = np.arange(sums.shape[-2]), at[-1]
    right = np.minimum(np.searchsorted(at, sizes), len(at) - 1)
    left = np.maximum(np.where(np.array(at)[right] == sizes, right, right - 1), 0)
    inside = np.where(sizes > last, len(at) - 1, left)
    low, high = measured[..., inside], measured[..., right]
    points = np.array(at, dtype=float)
    widths = np.maximum(points[right] - points[left], 1.0)
    between = low + (high - low) * np.clip((sizes - points[left]) / widths, 0.0, 1.0)
    between = np.where(sizes > 1, np.minimum(between, high), between)
    beyond = np.maximum(sizes - last, 0)
    mean, steepest = _slopes(measured, points)
    return ForwardCosts(
        between + mean[..., None] * beyond,
        np.minimum(low, high),
        np.maximum(low, high) + steepest[..., None] * beyond,
        mean,
        tuple(Origin.RUN if size in (at if own is None else own) else Origin.BETWEEN for size in sizes.tolist()),
    )


def scaled(run: Sizes, timed: Sizes) -> ForwardCosts:
    """Return the costs of a run in which few sizes occur often, from forwards that were timed apart.

    In the run, forwards of other models come in between and change the times. So the timed seconds of other sizes are scaled
    by the ratio of the run's to the timed seconds, which is interpolated between neighboring sizes. The result is limited to
    the range between the run's means at these neighbors. For example, if forwards of 2 and 6 tokens took 1.1 and 1.3 times
    as long in the run as in the loop, the timed seconds of 4 tokens are multiplied by 1.2. A forward of one token does not
    scale blocks; LEAST of them in the run are enough for its mean.
    """
    often = measured_sizes(run, OFTEN)
    largest = max(*timed, *often) + 1  # the last size is extrapolated at the mean slope
    loop, sums = fitted(sums_of(timed, largest), measured_sizes(timed)), sums_of(run, largest)
    blocks = [size for size in often if size > 1] or often
    costs = loop.seconds.copy()
    if blocks:
        means, sizes = _increasing(sums[blocks, 0], sums[blocks, 1]), np.arange(largest + 1)
        costs *= np.interp(sizes, blocks, means / loop.seconds[blocks])
        lower = np.searchsorted(blocks, sizes, side="right") - 1  # the nearest size of the run that is not larger
        least = np.where(lower >= 0, means[np.maximum(lower, 0)], 0.0)
        most = np.where(lower + 1 < len(blocks), means[np.minimum(lower + 1, len(blocks) - 1)], np.inf)
        costs[2:] = np.maximum.accumulate(np.clip(costs, least, most)[2:])
        costs[blocks] = means
    own = {*blocks, *(size for size in measured_sizes(run) if size == 1)}
    if 1 in own:
        costs[1] = sums[1, 1] / sums[1, 0]
    factor, at = costs / loop.seconds, sorted(own)
    least, most = np.minimum(loop.least * factor, costs), np.maximum(loop.most * factor, costs)
    least[at] = most[at] = costs[at]
    origins = [Origin.TIMED if origin is Origin.RUN else origin for origin in loop.origins]
    return ForwardCosts(
        costs,
        least,
        most,
        loop.slope * factor[-1],
        tuple(Origin.RUN if size in own else origin for size, origin in enumerate(origins)),
    )


def _slopes(measured: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the steepest slope between the sizes from 2 on, (...); of all sizes if only one is above 1.

    Neither is negative.
    """
    used = slice(1 if len(points) > 2 and points[0] == 1.0 else 0, None)
    costs, at = measured[..., used], points[used]
    if len(at) < 2:
        none = np.zeros(measured.shape[:-1])
        return none, none
    slopes = np.diff(costs, axis=-1) / np.diff(at)
    mean = (costs[..., -1] - costs[..., 0]) / (at[-1] - at[0])
    return np.maximum(mean, 0.0), np.maximum(slopes.max(axis=-1), 0.0)


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
