"""The tables of a run's report: their titles, order and conditions."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.analysis.run_summary import RunSummary

SPEED, THEORY, ACCEPTANCE, CASCADES, SPRINTER, CHAINS, TIME, CONVENTIONS, QUALITY, SCORE_GROUPS, SPEED_GROUPS = (
    "speed", "theory", "acceptance", "cascades", "sprinter", "chains", "time", "conventions", "quality", "score groups",
    "speed groups",
)  # fmt: skip
MERGED, SUITES = "merged", "suites"
DECODING, END_TO_END = "decoding", "end to end"  # clocks
MOST_GROUPS = 8  # that a table shows
RUN_TABLES = (
    SPEED,
    THEORY,
    ACCEPTANCE,
    CASCADES,
    SPRINTER,
    CHAINS,
    TIME,
    CONVENTIONS,
    QUALITY,
    SCORE_GROUPS,
    SPEED_GROUPS,
)


@dataclass(frozen=True)
class RunTable:
    """A table of a run's report: its key in `Column.tables`, its title, and the condition under which a run has it.

    `kept` are columns that stay if the table is too wide, whatever their priority: those that the title names.
    """

    key: str
    title: str
    shown: Callable[[RunSummary], bool] = lambda run: True
    kept: tuple[str, ...] = ()


TABLES = (
    RunTable(SPEED, "Speed and quality"),
    RunTable(
        THEORY,
        "Theory",
        lambda run: any(row.value("predicted") is not None for row in run.measured),
        kept=("predicted", "corrected"),
    ),
    RunTable(ACCEPTANCE, "Acceptance and forwards", kept=("acceptance_rate", "forwards_per_token")),
    RunTable(CASCADES, "Cascades", lambda run: any(row.value("rule_rate") is not None for row in run.measured)),
    RunTable(
        SPRINTER,
        "SPRINTER",
        lambda run: any(row.value("verifier_rate") is not None for row in run.measured),
    ),
    RunTable(CHAINS, "Chains", lambda run: any(row.levels for row in run.measured)),
    RunTable(TIME, "Time"),
    RunTable(CONVENTIONS, "Other conventions"),
    RunTable(QUALITY, "Quality"),
    RunTable(SCORE_GROUPS, "{headline} by group", lambda run: _is_shown(run.score_groups)),
    RunTable(SPEED_GROUPS, "speedup over {baseline}, decoding, by group", lambda run: _is_shown(run.speed_groups)),
)


def _is_shown(groups: list[str]) -> bool:
    return 1 < len(groups) <= MOST_GROUPS
