"""The plot of break-even points: the speedup over the acceptance rate at the measured costs."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.intervals import Estimate
from specbench.analysis.predictions import BreakEven
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.report.figures import Panel, errors, legend_above
from specbench.report.formats import HUNDREDTHS
from specbench.report.labels import Label, short
from specbench.report.styles import INK, MUTED, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CURVES = 4


def break_even_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return a curve for each of the first methods with break-even points; None without one."""
    rows = [(row, row.break_even) for row in summary.measured if row.break_even][:MOST_CURVES]
    if not rows:
        return None
    return Panel(
        f"{title}: break-even by theory, at the measured costs", partial(_curves, summary=summary, rows=rows), 3.8
    )


def _curves(axes: "Axes", summary: RunSummary, rows: Sequence[tuple[MethodSummary, BreakEven]]) -> list[Label]:
    styles, labels = styles_of(summary.spec.methods), list[Label]()
    for row, found in rows:
        style, name = styles[row.method], short(row.label)
        rates = np.linspace(0.0, 1.0, len(found.curve))
        curve = f"{name}, draft length {found.gamma}: {_break_even(found)}"
        axes.plot(rates, found.curve, style.dashes, color=style.color, label=curve)
        if found.acceptance and found.curve[0] < 1.0:
            axes.plot(found.acceptance, 1.0, "o", color=style.color, markersize=8, markerfacecolor="none", zorder=3)
            text = f"break-even {HUNDREDTHS.number(found.acceptance)}"
            line = itertools.pairwise(zip(rates.tolist(), found.curve, strict=True))
            bars = tuple((*start, *end) for start, end in line)
            labels.append(Label(text, found.acceptance, 1.0, style.color, at_edge=False, bars=bars))
        if row.speedup:
            rate = row.value("acceptance_rate")
            axes.errorbar(
                found.measured_acceptance, row.speedup.value, yerr=errors(row.speedup),
                xerr=errors(rate) if isinstance(rate, Estimate) else None, fmt=style.marker, color=style.color,
                markersize=7, elinewidth=1.4, zorder=4,
                label=f"{name}: measured{'' if row.speedup.low is None else ' (95 %)'}",
            )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    axes.annotate(
        f"as fast as {short(summary.baseline)}", (0.0, 1.0), xytext=(3, 3), textcoords="offset points", fontsize=8,
        color=INK,
    )  # fmt: skip
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("acceptance rate")
    axes.set_ylabel(f"speedup over {summary.baseline}, decoding")
    legend_above(axes)
    return labels


def _break_even(found: BreakEven) -> str:
    """Return at which acceptance rate a method breaks even, in words."""
    if found.acceptance is None:
        return "no break-even"
    if found.curve[0] >= 1.0:
        return "faster at every rate"
    return f"break-even at {HUNDREDTHS.number(found.acceptance)}"
