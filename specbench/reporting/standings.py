"""The speedup that counts in a run, and the methods whose speeds cannot be distinguished."""

from collections.abc import Sequence

from specbench.analysis.intervals import Estimate
from specbench.analysis.metric import Clock
from specbench.analysis.number_format import TIMES
from specbench.analysis.run_summary import MethodSummary, RunSummary

SPEEDUPS: dict[str, str] = {
    Clock.decoding: "speedup",
    Clock.end_to_end: "end_to_end_speedup",
}  # the speedup of a conclusion, by the run's clock
MOST_NAMED = 3  # methods that a sentence names


def speedup_of(summary: RunSummary, row: MethodSummary) -> Estimate | None:
    """Return the speedup over the baseline by the run's main clock; None for the baseline."""
    value = row.value(SPEEDUPS[summary.clock])
    return value if isinstance(value, Estimate) else None


def number_of(summary: RunSummary, row: MethodSummary) -> float:
    speedup = speedup_of(summary, row)
    return speedup.value if speedup else 0.0


def is_alike(summary: RunSummary, leading: MethodSummary, row: MethodSummary) -> bool:
    """Return whether the speeds of two methods cannot be distinguished, and both are lossless or neither is.

    Two speeds whose intervals do not overlap are different, even if the test of all pairs of methods did not show it.
    """
    ours, theirs = speedup_of(summary, leading), speedup_of(summary, row)
    same_kind = summary.keeps_distribution(leading) == summary.keeps_distribution(row)
    overlap = ours is not None and theirs is not None and ours.overlaps(theirs)
    return bool(same_kind and overlap and leading.rank and row.method in leading.rank.alike)


def alike_text(summary: RunSummary, rows: Sequence[MethodSummary]) -> str:
    """Return the sentence on the methods whose speeds cannot be distinguished from another's."""
    others = ", ".join(f"{row.label} ({TIMES.text(speedup_of(summary, row))})" for row in rows[:MOST_NAMED])
    more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
    return f"It cannot be distinguished from {others}{more}."
