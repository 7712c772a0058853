"""Quality-latency curves of one run: the points, the two summaries, and how reliable these are."""

from collections.abc import Sequence
from pathlib import Path

from specbench.analysis.chains import NONE
from specbench.analysis.frontier import FEWEST_POINTS, frontier_points
from specbench.analysis.points import Choice, Point, points
from specbench.analysis.summary import summary_of
from specbench.config.suite_layout import TableSpec
from specbench.reporting.column import NOT_REACHED, PERCENT
from specbench.reporting.columns import column_of
from specbench.reporting.notes import notes
from specbench.reporting.suite_tables import pivot
from specbench.reporting.tables import Table

POINTS = TableSpec(
    rows=("method", "setting"),
    values=("score", "relative_latency", "end_to_end_speedup", "rule_rate", "acceptance_rate", "target_calls"),
)
SUMMARIES = TableSpec(title="Summaries of the curves", rows=("method",), values=("matching", "best"))


def points_of(folder: Path) -> list[Point]:
    """Return the points of a run, followed by the summaries of each of its curves."""
    found = points([summary_of(folder)])
    return found + frontier_points(folder, found)


def curve_tables(found: Sequence[Point]) -> list[Table]:
    """Return the table of the points, SpecCascade's two summaries, and the settings that they chose."""
    return [*(table for spec in (POINTS, SUMMARIES) if (table := pivot(spec, found)).rows), *choice_tables(found)]


def remarks(folder: Path, found: Sequence[Point]) -> list[str]:
    """Return the notes of a run, with a warning if no curve has a summary."""
    few = [] if choice_tables(found) else [f"! no summaries: a curve needs {FEWEST_POINTS} scored settings of a method"]
    return [*few, *notes(summary_of(folder))]


def choice_tables(found: Sequence[Point]) -> list[Table]:
    """Return a table of the settings that the summaries chose, and how reliable these choices are; none without summaries.

    A setting that never calls the target is the small model alone, and says so. The last two columns are what the choices
    of the resamples of prompts were worth on the prompts that they left out, and how often they met the condition there.
    """
    heads = [
        "task",
        "T",
        "method",
        "summary",
        "chosen setting",
        "reached in resamples",
        "on other prompts",
        "held there",
    ]
    calls = {
        (point.run, point.method, point.setting): point.number("target_calls") for point in found if not point.group
    }
    rows = []
    for point in found:
        labels = "".join(f" ({word})" for word in point.simulated.split())
        for name in SUMMARIES.values:
            if isinstance(choice := point.values.get(name), Choice):
                column = column_of(name)
                place = [point.task, f"{point.T:g}", f"{point.label}{labels}", column.heading]
                unseen = NONE if choice.unseen is None else column.format.text(choice.unseen)
                shares = [PERCENT.text(share) for share in (choice.reached, choice.held)]
                is_small = calls.get((point.run, point.method, choice.setting or "")) == 0.0
                setting = f"{choice.setting or NOT_REACHED}{' (the small model alone)' if is_small else ''}"
                rows.append([*place, setting, shares[0], unseen, shares[1]])
    return [Table("Chosen settings", heads, rows)] if rows else []
