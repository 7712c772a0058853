"""A chart from the theoretical speedup to the measured one: a line per method, with one more measured part at each point."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from specbench.analysis.run_summary import MethodSummary, RunSummary, SpeedupSteps
from specbench.reporting.plots.figures import Label, Panel, selected
from specbench.reporting.plots.styles import MUTED, Style, styles_of
from specbench.reporting.tables import ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 6
POINTS = ("theory", *(field.name for field in fields(SpeedupSteps)))


def steps_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the panel of the fastest methods of a run whose steps are known; None if there are none."""
    rows = selected([row for row in ranked(summary) if row.steps and row.number("predicted")], MOST_LINES)
    draw = partial(_drawn, rows=rows, styles=styles_of(summary.spec.methods))
    return Panel(f"{title}: from theory to the measured speedup", draw) if rows else None


def _drawn(axes: "Axes", rows: Sequence[MethodSummary], styles: Mapping[str, Style]) -> list[Label]:
    labels = []
    axes.axhline(1.0, color=MUTED, linewidth=1.2, zorder=1)
    for row in rows:
        speedups, style = [row.number("predicted") or 0.0, *vars(row.steps).values()], styles[row.method]
        axes.plot(range(len(POINTS)), speedups, style.dashes, marker=style.marker, color=style.color)
        labels.append(Label(row.label, len(POINTS) - 1, speedups[-1], style.color))
    axes.set_xticks(range(len(POINTS)), POINTS)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("measured parts, cumulative")
    axes.set_ylabel("speedup")
    return labels
