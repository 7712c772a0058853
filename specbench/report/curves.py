"""One run's curves of quality against relative latency: its points, its two summaries, and how far to believe them."""

from pathlib import Path

from specbench.analysis.frontier import FEWEST_POINTS, frontier_points
from specbench.analysis.points import Point, points
from specbench.analysis.summary import summary_of
from specbench.config.suite import TableSpec
from specbench.report.notes import notes
from specbench.report.suite_tables import pivot
from specbench.report.tables import Table

POINTS = TableSpec(
    rows=("method", "setting"),
    values=("score", "relative_latency", "end_to_end_speedup", "rule_rate", "acceptance_rate", "target_calls"),
)
SUMMARIES = TableSpec(title="What the curves come to", rows=("method",), values=("matching", "best"))


def points_of(folder: Path) -> list[Point]:
    """A run's points, and behind them the two summaries of each of its curves."""
    found = points([summary_of(folder)])
    return found + frontier_points(folder, found)


def curve_tables(found: list[Point]) -> list[Table]:
    """The points, and the cascades paper's two summaries."""
    return [table for spec in (POINTS, SUMMARIES) if (table := pivot(spec, found)).rows]


def remarks(folder: Path, found: list[Point]) -> list[str]:
    """What the summaries chose, what the choices were worth on prompts that they did not see, and the run's own notes."""
    few = [] if choices(found) else [f"! no summaries: a curve needs {FEWEST_POINTS} scored settings of a method"]
    return [*choices(found), *few, *notes(summary_of(folder))]


def choices(found: list[Point]) -> list[str]:
    """A line for each summary of each curve."""
    lines = []
    for point in found:
        if "curve" not in point["values"]:
            continue
        made_up = "".join(f" ({word})" for word in point["made_up"].split())
        place = f"{point['label']}{made_up}, {point['task']}, T = {point['T']:g}"
        for key, where, scale in (("matching", "the large model's quality", 1.0), ("best", "its latency", 100.0)):
            told = point["values"][key]
            chosen = f"chose {told['setting']}" if told["setting"] else "not reached"
            reached = "" if told["reached"] is None else f"; reached in {told['reached']:.0%} of resamples"
            unseen = "" if told["unseen"] is None else (
                f"; what they chose was worth {scale * told['unseen']:.2f} on the prompts that they left out, and held"
                f" there in {told['held']:.0%}"
            )  # fmt: skip
            lines.append(f"{place}, at {where}: {chosen}{reached}{unseen}")
    return lines
