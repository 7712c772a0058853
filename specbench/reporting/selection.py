"""The methods that a plot shows when a run has more than fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.analysis.run_summary import MethodSummary
from specbench.reporting.styles import base_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def selected(rows: Sequence[MethodSummary], most: int) -> list[MethodSummary]:
    """Return at most `most` rows: all of them, or else the first setting of each method. Rows are ordered by preference."""
    if len(rows) <= most:
        return list(rows)
    first = {base_name(row.method): row for row in reversed(rows)}
    return [row for row in rows if first[base_name(row.method)] is row][:most]


def note_rest(axes: "Axes", count: int, what: str) -> None:
    """Add a line below the label of the x axis that says how many methods are not shown or not labelled."""
    if count > 0:
        axes.set_xlabel(f"{axes.get_xlabel()}\n{count} more {'is' if count == 1 else 'are'} {what}")
