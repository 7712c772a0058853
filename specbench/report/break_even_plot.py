"""The plot of break-even points: the speedup over the acceptance rate at the measured costs."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.break_even import BreakEven
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.report.figures import Panel, legend_above
from specbench.report.labels import Label, short
from specbench.report.styles import MUTED, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CURVES = 4


def break_even_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return a curve for each of the first methods with break-even points; None without one."""
    rows = [(row, row.break_even) for row in summary.measured if row.break_even][:MOST_CURVES]
    if not rows:
        return None
    return Panel(f"{title}: break-even", partial(_curves, summary=summary, rows=rows))


def _curves(axes: "Axes", summary: RunSummary, rows: Sequence[tuple[MethodSummary, BreakEven]]) -> list[Label]:
    styles = styles_of(summary.spec.methods)
    for row, found in rows:
        style = styles[row.method]
        rates = np.linspace(0.0, 1.0, len(found.curve))
        axes.plot(
            rates, found.curve, style.dashes, color=style.color, label=f"{short(row.label)}, draft length {found.gamma}"
        )
        if found.acceptance is not None:
            axes.axvline(found.acceptance, color=style.color, linewidth=0.8, linestyle=":", zorder=1)
        if row.speedup:
            axes.plot(
                found.measured_acceptance, row.speedup.value, style.marker, color=style.color, markersize=7, zorder=3,
                label=f"measured: {short(row.label)}",
            )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("acceptance rate")
    axes.set_ylabel(f"speedup over {summary.baseline}, decoding")
    legend_above(axes)
    return []
