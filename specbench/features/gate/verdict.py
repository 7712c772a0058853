"""Findings and verdicts of a comparison, and their exit code."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specbench.errors import ExitCode


class Status(StrEnum):
    """The outcome of a verdict. Only the first three can fail a gate."""

    regression = "regression"
    incomparable = "not comparable"
    inconclusive = "inconclusive"
    improved = "improved"
    skipped = "skipped"
    same = "ok"


UNDECIDED_STATUSES = frozenset({Status.incomparable, Status.inconclusive})


class Finding(NamedTuple):
    """The outcome of one aspect: a `GateVerdict` without its run, method and aspect."""

    status: Status
    title: str
    detail: str
    short: str


@dataclass(frozen=True)
class GateVerdict:
    """The verdict on one method of a run, or on the whole run if `method` is empty.

    `aspect` is one of comparability, decoding, acceptance, quality, cost, speed, engine. `title` names the finding, `short`
    is its text in a table, `detail` the evidence.
    """

    run: str
    method: str
    aspect: str
    status: Status
    title: str
    detail: str
    short: str


class Quantity(StrEnum):
    """The kinds of quantities, each with a limit."""

    acceptance = "acceptance"
    quality = "quality"
    speed = "speed"


class Limit(NamedTuple):
    """The size up to which a change is no finding: a share of the value, or a difference."""

    size: float
    is_relative: bool
    text: str

    def contains(self, change: float) -> bool:
        """Return whether a change is within the limit, up to rounding."""
        return abs(change) <= self.size * (1.0 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class GateLimits:
    """The limits of a finding: it must be significant at `alpha`, and exceed the limit of its kind."""

    alpha: float = 0.01
    max_slowdown: float = 3.0  # percent
    max_quality_drop: float = 1.0  # points of 100
    max_acceptance_drop: float = 2.0  # percent, of rates, lengths and forwards per token
    require_speed: bool = False
    counters_only: bool = False
    across_config: bool = False  # compare methods whose settings differ, instead of calling them not comparable

    def of(self, quantity: Quantity) -> Limit:
        """Return the limit of a kind of quantities."""
        match quantity:
            case Quantity.acceptance:
                return Limit(self.max_acceptance_drop / 100.0, True, f"{self.max_acceptance_drop:g} %")
            case Quantity.quality:
                return Limit(self.max_quality_drop / 100.0, False, f"{self.max_quality_drop:g} points")
            case Quantity.speed:
                return Limit(self.max_slowdown / 100.0, True, f"{self.max_slowdown:g} %")


def exit_code(verdicts: Iterable[GateVerdict], undecided_passes: bool = False) -> int:
    """Return 5 for a regression, otherwise 6 if something could not be compared or decided, otherwise 0."""
    statuses = {verdict.status for verdict in verdicts}
    if Status.regression in statuses:
        return ExitCode.REGRESSION
    undecided = statuses & UNDECIDED_STATUSES or not statuses
    return ExitCode.INCONCLUSIVE if undecided and not undecided_passes else ExitCode.OK


def fails(status: Status, undecided_passes: bool = False) -> bool:
    """Return whether a verdict of this status alone causes a nonzero exit code."""
    return status is Status.regression or (status in UNDECIDED_STATUSES and not undecided_passes)


def sides(base: object, new: object) -> str:
    """Return two values with the names of their sides."""
    return f"{base} in BASE, {new} in NEW"
