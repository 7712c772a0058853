"""The judge of changes: compares two values of one quantity, with one rule and one table of limits.

Every measurement gives `Comparable` values: runs, suites' baselines, served load and acceptance profiles. A change is a
finding if it is larger than the limit of its kind and significant at `GateLimits.alpha`. A smaller or an insignificant change
is none. A loss beyond the limit is undecided if it is not significant and the samples would only have shown a change of more
than RESOLUTION times the limit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbench.analysis.intervals import FEWEST, Estimate, by_prompt
from specbench.analysis.metric import Direction
from specbench.analysis.number_format import THOUSANDTHS, Format
from specbench.analysis.significance import mcnemar, normal_quantile, normal_test, paired_test, welch
from specbench.features.gate.verdict import Finding, GateLimits, Limit, Quantity, Status

RESOLUTION = 10.0  # times the limit: samples that show smaller changes decide
FEWEST_BLOCKS = 3  # of a side, for Welch's test
UNDECIDED = "change undecided"


@dataclass(frozen=True)
class Change:
    """A change with its test.

    Args:
        before: The value of BASE.
        after: The value of NEW.
        p: The two-sided p-value.
        can_decide: Whether these samples could have given a significant result.
        test: The test and its number of samples, in words.
        parts: The changes of independent parts, such as sessions, each of which must agree; empty without parts. They are
            differences, or relative changes, as the limit of the quantity is.
        low: The lower bound of a 95 % interval of the relative change; None without one.
        high: The upper bound.
    """

    before: float
    after: float
    p: float
    can_decide: bool
    test: str
    parts: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None

    def smallest_shown(self, limit: Limit, alpha: float) -> float:
        """Return the size of a change that would have been significant, in the unit of a limit; infinite if none would."""
        found = normal_quantile(1.0 - min(max(self.p, 1e-12), 1.0) / 2.0)
        return abs(self.size(limit)) * normal_quantile(1.0 - alpha / 2.0) / found if found and alpha else math.inf

    @property
    def relative(self) -> float:
        """The change as a share of the value of BASE."""
        return self.after / self.before - 1.0 if self.before else 0.0 if self.after == self.before else math.inf

    def size(self, limit: Limit) -> float:
        """Return the change in the unit of a limit."""
        return self.relative if limit.is_relative else self.after - self.before


@dataclass(frozen=True)
class Paired:
    """A value over prompts that both sides have, in the same order.

    Args:
        rows: The sums of each prompt, (prompts, k).
        statistic: Returns the value of rows; by default the ratio of the sums of two columns.
        is_binary: Whether each prompt is right or wrong, so that McNemar's exact test applies to the first column.
    """

    rows: np.ndarray
    statistic: Callable[[np.ndarray], float] = field(default=lambda rows: share(rows))
    is_binary: bool = False

    def change_to(self, other: "Paired", limits: GateLimits) -> Change:
        """Return the change, by McNemar's test or a paired t-test over prompts."""
        a, b, count = self.rows, other.rows, len(self.rows)
        before, after = self.statistic(a), other.statistic(b)
        if self.is_binary and other.is_binary:
            lost, won = int((a[:, 0] > b[:, 0]).sum()), int((a[:, 0] < b[:, 0]).sum())
            words = f"McNemar's test over {count} prompts, {lost} lost, {won} won"
            return Change(before, after, mcnemar(lost, won), mcnemar(count, 0) < limits.alpha, words)
        _, p = paired_test(a, b, self.statistic)
        return Change(before, after, p, count >= FEWEST, f"paired t-test over {count} prompts")


@dataclass(frozen=True)
class Blocks:
    """Logarithms of ratios of speeds, by independent session."""

    sessions: Sequence[Sequence[float]]

    def change_to(self, other: "Blocks", limits: GateLimits) -> Change:
        """Return the change of the geometric mean, by Welch's test over the blocks of all sessions.

        Blocks of one process share an offset that the test does not account for. So each session of NEW has to exceed the
        limit as well: changes of -8 % and -1 % in two sessions are no regression at a limit of 5 %.
        """
        before = [x for session in self.sessions for x in session]
        after = [x for session in other.sessions for x in session]
        fewest = min([len(before), *map(len, other.sessions)], default=0)
        one, other_mean = (math.exp(sum(values) / len(values)) if values else math.nan for values in (before, after))
        if fewest < FEWEST_BLOCKS:
            return Change(one, other_mean, 1.0, False, f"{fewest} of {FEWEST_BLOCKS} blocks on one side")
        parts = tuple(math.expm1(welch(before, list(session)).difference) for session in other.sessions)
        words = f"Welch's t-test over {len(before)} and {len(after)} blocks"
        return Change(one, other_mean, welch(before, after).p, True, words, parts if len(parts) > 1 else ())


@dataclass(frozen=True)
class Moments:
    """A mean with the standard deviation of one of `count` observations; 0 observations if their number is unknown."""

    mean: float
    deviation: float
    count: int

    def change_to(self, other: "Moments", limits: GateLimits) -> Change:
        """Return the change by a z-test, as if the observations were independent."""
        if not self.count or not other.count:
            return Change(self.mean, other.mean, 1.0, self.mean == other.mean, "the number of rounds is unknown")
        change = other.estimate.minus(self.estimate)
        p = normal_test(change.value, math.hypot(self.error, other.error))
        low, high = (bound / self.mean for bound in change.bounds)
        words = f"z-test over {self.count:,} and {other.count:,} rounds as if they were independent"
        return Change(self.mean, other.mean, p, True, words, (), low, high)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.deviation / math.sqrt(self.count)

    @property
    def estimate(self) -> Estimate:
        """The mean with its 95 % interval."""
        half = normal_quantile(0.975) * self.error
        return Estimate(self.mean, self.mean - half, self.mean + half)


Samples = Paired | Blocks | Moments


@dataclass(frozen=True, kw_only=True)
class Comparable:
    """A quantity of a measurement that can be compared with the same quantity of another one.

    Args:
        name: What it is, for texts.
        quantity: What kind it is, which decides about its limit.
        samples: The samples.
        better: Which values are better.
        format: How it is written.
        decides: Whether a loss is a regression by itself. A lower acceptance of another drafter is none: a cheaper draft may
            make up for it, and the speed decides.
        is_timed: Whether the speed is compared too.
        words: The titles of a loss, a gain and no change; empty for the usual ones.
    """

    name: str
    quantity: Quantity
    samples: Samples
    better: Direction = Direction.higher
    format: Format = THOUSANDTHS
    decides: bool = True
    is_timed: bool = False
    words: tuple[str, str, str] | None = None


def judge(base: Comparable, new: Comparable, limits: GateLimits) -> Finding:
    """Return the finding on the change from one value to another of the same quantity."""
    limit = limits.of(base.quantity)
    change = base.samples.change_to(new.samples, limits)  # type: ignore[arg-type]  # both sides have samples of one kind
    loss, gain, same = base.words or (f"{base.name} dropped", f"{base.name} rose", f"same {base.name}")
    short, detail = _texts(base, change, limit)
    sizes = [base.better.sign * size for size in (change.size(limit), *change.parts)]
    is_beyond = not limit.contains(sizes[0])
    if not change.can_decide and (is_beyond or base.quantity is Quantity.speed):  # a few times say nothing
        return Finding(Status.inconclusive, UNDECIDED, f"{detail}: too few samples for a verdict", short)
    agree = all(not limit.contains(size) and (size > 0.0) == (sizes[0] > 0.0) for size in sizes)
    if not (is_beyond and agree and change.p < limits.alpha):
        shown = change.smallest_shown(limit, limits.alpha)
        if is_beyond and sizes[0] < 0.0 and shown > RESOLUTION * limit.size:
            return Finding(Status.inconclusive, UNDECIDED, f"{detail}: too much noise for a verdict", short)
        return Finding(Status.same, "no significant change" if is_beyond else same, detail, short)
    if sizes[0] > 0.0:
        return Finding(Status.improved, gain, detail, short)
    if base.decides:
        return Finding(Status.regression, loss, detail, short)
    undecided = "the speed decides" if base.is_timed else "a cheaper draft may make up for it, which needs times"
    status = Status.skipped if base.is_timed else Status.inconclusive
    return Finding(status, loss, f"{detail}; {undecided}", short)


def _texts(of: Comparable, change: Change, limit: Limit) -> tuple[str, str]:
    """Return a change as short text for a table, and with its test."""
    before, after = (of.format.number(value) + of.format.suffix for value in (change.before, change.after))
    short = f"{of.name} {before} → {after}"
    interval = "" if change.low is None or change.high is None else f" [{change.low:+.1%}, {change.high:+.1%}]"
    parts = f"; by session {', '.join(f'{part:+.1%}' for part in change.parts)}" if change.parts else ""
    if len({limit.contains(part) for part in change.parts}) > 1:
        parts += ", which do not agree"
    size = f"{change.relative:+.1%}{interval}{parts}; " if limit.is_relative and math.isfinite(change.relative) else ""
    p = f", p = {change.p:.2g}" if change.can_decide else ""
    return short, f"{short} ({size}{change.test}{p}; limit {limit.text})"


def share(rows: np.ndarray) -> float:
    """Return the ratio of the sums of two columns; 0 if the second sum is 0."""
    below = rows[:, 1].sum()
    return float(rows[:, 0].sum() / below) if below else 0.0


def mean(rows: np.ndarray) -> float:
    """Return the mean of the first column."""
    return float(rows[:, 0].mean())


def ratio(rows: Sequence[tuple[float, float, str]]) -> Paired:
    """Return a ratio of two sums over prompts, from numerators, denominators and prompts."""
    return Paired(by_prompt(rows))
