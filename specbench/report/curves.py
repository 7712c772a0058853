"""Quality-latency curves of one run: the points, the two summaries, and how reliable these are."""

from collections.abc import Sequence
from pathlib import Path

from specbench.analysis.frontier import FEWEST_POINTS, frontier_points
from specbench.analysis.points import Choice, Point, points
from specbench.analysis.summary import summary_of
from specbench.config.suite_layout import TableSpec
from specbench.report.columns import column_of
from specbench.report.formats import NOT_REACHED, PERCENT
from specbench.report.notes import notes
from specbench.report.suite_tables import pivot
from specbench.report.tables import Table

POINTS = TableSpec(
    rows=("method", "setting"),
    values=("score", "relative_latency", "end_to_end_speedup", "rule_rate", "acceptance_rate", "target_calls"),
)
SUMMARIES = TableSpec(title="Summaries of the curves", rows=("method",), values=("matching", "best"))
CONDITIONS = {"matching": "the large model's quality", "best": "its latency"}


def points_of(folder: Path) -> list[Point]:
    """Return the points of a run, followed by the summaries of each of its curves."""
    found = points([summary_of(folder)])
    return found + frontier_points(folder, found)


def curve_tables(found: Sequence[Point]) -> list[Table]:
    """Return the table of the points, and SpecCascade's two summaries."""
    return [table for spec in (POINTS, SUMMARIES) if (table := pivot(spec, found)).rows]


def remarks(folder: Path, found: Sequence[Point]) -> list[str]:
    """Return the choices of the summaries, their values on unseen prompts, and the notes of the run."""
    few = [] if choices(found) else [f"! no summaries: a curve needs {FEWEST_POINTS} scored settings of a method"]
    return [*choices(found), *few, *notes(summary_of(folder))]


def choices(found: Sequence[Point]) -> list[str]:
    """Return a line for each summary of each curve."""
    lines = []
    for point in found:
        labels = "".join(f" ({word})" for word in point.simulated.split())
        for name, condition in CONDITIONS.items():
            choice = point.values.get(name)
            if isinstance(choice, Choice):
                place = f"{point.label}{labels}, {point.task}, T = {point.T:g}, at {condition}"
                lines.append(f"{place}: {_choice_text(name, choice)}")
    return lines


def _choice_text(name: str, choice: Choice) -> str:
    parts = [f"chose {choice.setting}" if choice.setting else NOT_REACHED]
    if choice.reached is not None:
        parts.append(f"reached in {PERCENT.text(choice.reached)} of resamples")
    if choice.unseen is not None:
        parts.append(
            f"the choices of the resamples were worth {column_of(name).format.text(choice.unseen)} on the prompts that they"
            f" left out, and held there in {PERCENT.text(choice.held)}"
        )
    return "; ".join(parts)
