"""What a comparison says, and the exit code that follows from it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from specbench.errors import ExitCode


class Status(StrEnum):
    """How a verdict came out. Only the first three can fail a gate."""

    regression = "regression"
    incomparable = "not comparable"
    inconclusive = "inconclusive"
    improved = "improved"
    skipped = "skipped"
    same = "ok"


UNDECIDED_STATUSES = frozenset({Status.incomparable, Status.inconclusive})


@dataclass(frozen=True)
class Verdict:
    """Of one method of a cell, or of the whole cell where `method` is empty.

    `aspect`: comparability | decoding | quality | speed | engine. `short` is what a table shows, `title` names the finding
    and `detail` what it rests on.
    """

    cell: str
    method: str
    aspect: str
    status: Status
    title: str
    detail: str
    short: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What counts as a finding: significant at `alpha`, and larger than so much."""

    alpha: float = 0.01
    max_slowdown: float = 3.0  # percent
    max_quality_drop: float = 1.0  # points of 100
    require_speed: bool = False
    counters_only: bool = False
    across_config: bool = False  # compare methods whose settings differ, instead of calling them not comparable


def exit_code(verdicts: Iterable[Verdict], undecided_passes: bool = False) -> int:
    """5 where anything regressed, else 6 where something could not be compared or decided, else 0."""
    found = {verdict.status for verdict in verdicts}
    if Status.regression in found:
        return ExitCode.REGRESSION
    undecided = found & UNDECIDED_STATUSES or not found
    return ExitCode.INCONCLUSIVE if undecided and not undecided_passes else ExitCode.OK


def fails(status: Status, undecided_passes: bool = False) -> bool:
    """Whether a verdict of this status alone makes the exit code other than 0."""
    return status is Status.regression or (status in UNDECIDED_STATUSES and not undecided_passes)
