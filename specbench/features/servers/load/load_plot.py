"""The predicted speedup by draft length, drawn over the measured points."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.features.servers.load.server_run import ServerRun
from specbench.reporting.plots.figures import FORMATS, Label, Panel, errors, integer_ticks, legend_above, save
from specbench.reporting.plots.styles import COLORS, MARKERS, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "draft-lengths"


def plots_of(run: ServerRun, into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a plot of the predictions, and return its files; none without predictions."""
    if not run.predictions:
        return []
    return save(into / NAME, [Panel("Speedup of TPOT", partial(_draw, run=run), 3.8)], formats)


def _draw(axes: "Axes", run: ServerRun) -> Sequence[Label]:
    for number, level in enumerate(sorted({row.concurrency for row in run.predictions})):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        rows = [row for row in run.predictions if row.concurrency == level]
        lengths = [row.length for row in rows]
        axes.plot(lengths, [row.speedup.value for row in rows], color=color, label=f"concurrency {level}: predicted")
        low, high = ([getattr(row.speedup, bound) for row in rows] for bound in ("low", "high"))
        if None not in (*low, *high):
            axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0.0)
        for point in (row for row in run.measured if row.concurrency == level):
            axes.errorbar(
                point.length, point.speedup.value, yerr=errors(point.speedup), fmt=marker, color=color,
                markersize=6, elinewidth=1.4, zorder=4,
            )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("draft length; points are measured")
    axes.set_ylabel("speedup")
    integer_ticks(axes)
    legend_above(axes)
    return []
