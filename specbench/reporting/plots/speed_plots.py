"""Charts of speedups: a dot with its interval per method, sorted, and what theory predicts.

Also the steps from the theoretical to the measured speedup: a line per method, with one more measured part at each point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import TIMES
from specbench.analysis.run_summary import MethodSummary, RunSummary, SpeedupSteps
from specbench.reporting.plots.figures import Label, Panel, legend_above, list_methods, selected, short
from specbench.reporting.plots.styles import INK, MUTED, NEUTRAL, Style, style_of, styles_of
from specbench.reporting.standings import speedup_of
from specbench.reporting.tables import ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROW, REST = 0.36, 1.25  # inches of a row, and of the rest of the panel
MOST_ROWS = 16  # of a panel; with more, only the fastest setting of each method is shown
BAND = 0.34  # half the height of the band of theory, in rows
THEORY = "theory: from ideal to measured cost of a block"
MOST_LINES = 6
STEP_NAMES = ("theory", *(field.name for field in fields(SpeedupSteps)))


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """A method's speedup with its interval. `predicted` and `corrected` are what theory predicts, if it does."""

    label: str
    method: str
    preset: str
    speedup: Estimate
    predicted: float | None = None
    corrected: float | None = None

    @property
    def theory(self) -> tuple[float, float] | None:
        """The range of theory; one number twice if only one is known."""
        values = [value for value in (self.predicted, self.corrected) if value is not None]
        return (min(values), max(values)) if values else None


def _speed_rows(summary: RunSummary) -> list[SpeedRow]:
    """Return the speedups of a run by its main clock, the fastest first. Theory is of decoding time only."""
    rows = []
    for row in summary.measured_methods:
        speedup = speedup_of(summary, row)
        if speedup is None:
            continue
        theory = {} if summary.end_to_end else {key: row.number(key) for key in ("predicted", "corrected")}
        rows.append(SpeedRow(label=row.label, method=row.method, preset=row.preset, speedup=speedup, **theory))
    return sorted(rows, key=lambda row: -row.speedup.value)


def run_speed_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the panel of a run's speedups; None if only the baseline was measured."""
    rows = most_important(_speed_rows(summary))
    title = f"{title}: speedup over {summary.baseline}"
    axis = f"speedup over {summary.baseline}, {summary.clock}"
    return speed_panel(title, rows, axis, styles_of(summary.spec.presets)) if rows else None


def most_important(rows: Sequence[SpeedRow]) -> list[SpeedRow]:
    """Return the rows, the fastest first; of too many, the fastest setting of each method."""
    ordered = sorted(rows, key=lambda row: -row.speedup.value)
    if len(ordered) <= MOST_ROWS:
        return ordered
    fastest = {row.preset: row for row in reversed(ordered)}
    return [row for row in ordered if fastest[row.preset] is row]


def speed_panel(title: str, rows: Sequence[SpeedRow], axis: str, styles: Mapping[str, Style] | None = None) -> Panel:
    """Return a panel of speedups. `axis` is the label of the axis, and `styles` are the methods' styles."""
    return Panel(title, _drawing(rows, axis, styles or {}), REST + ROW * len(rows))


def _drawing(rows: Sequence[SpeedRow], axis: str, styles: Mapping[str, Style]) -> Callable[["Axes"], Sequence[Label]]:
    def draw(axes: "Axes") -> Sequence[Label]:
        axes.axvline(1.0, color=MUTED, linewidth=1.2, zorder=1)
        if any(row.theory for row in rows):
            axes.fill_between([], [], color=NEUTRAL, alpha=0.3, label=THEORY)
        for position, row in enumerate(rows):
            style = styles.get(row.method) or style_of(row.preset)
            if row.theory:
                _band(axes, position, row.theory, style.color)
            low, high = row.speedup.low, row.speedup.high
            if low is not None and high is not None:
                axes.plot(
                    [low, high], [position, position], color=style.color, linewidth=2.2, solid_capstyle="butt", zorder=3
                )
            axes.plot([row.speedup.value], [position], style.marker, color=style.color, markersize=7, zorder=4)
            axes.annotate(
                TIMES.text(row.speedup.value), (row.speedup.value, position), xytext=(0, 5), textcoords="offset points",
                ha="center", va="bottom", fontsize=8.5, fontweight="bold", color=INK, zorder=5,
            )  # fmt: skip
        list_methods(axes, [short(row.label) for row in rows], above=0.75, below=0.6)
        axes.margins(x=0.06)
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.set_xlabel(axis)
        legend_above(axes)
        return ()

    return draw


def _band(axes: "Axes", position: int, theory: tuple[float, float], color: str) -> None:
    """Draw the range of theory as a band. A range too narrow to be seen is visible by its edge."""
    axes.fill_between(theory, position - BAND, position + BAND, color=color, alpha=0.22, linewidth=1.2, zorder=2)


def steps_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the panel of the fastest methods of a run whose steps are known; None if there are none."""
    rows = selected([row for row in ranked(summary) if row.steps and row.number("predicted")], MOST_LINES)
    draw = partial(_draw_steps, rows=rows, styles=styles_of(summary.spec.presets))
    return Panel(f"{title}: from theory to the measured speedup", draw) if rows else None


def _draw_steps(axes: "Axes", rows: Sequence[MethodSummary], styles: Mapping[str, Style]) -> list[Label]:
    """Draw a line per method, and return its label."""
    labels = []
    axes.axhline(1.0, color=MUTED, linewidth=1.2, zorder=1)
    for row in rows:
        speedups, style = [row.number("predicted") or 0.0, *vars(row.steps).values()], styles[row.method]
        axes.plot(range(len(STEP_NAMES)), speedups, style.dashes, marker=style.marker, color=style.color)
        labels.append(Label(row.label, len(STEP_NAMES) - 1, speedups[-1], style.color))
    axes.set_xticks(range(len(STEP_NAMES)), STEP_NAMES)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("measured parts, cumulative")
    axes.set_ylabel("speedup")
    return labels
