"""Plots of points: lines over a swept parameter or another value, and bars of speedups."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from specbench.analysis.bootstrap import Estimate
from specbench.analysis.points import Point
from specbench.config.suite import PlotSpec
from specbench.report import escaping
from specbench.report.columns import column_of
from specbench.report.figures import GRAY, LEGEND, Panel
from specbench.report.suite_values import dimension_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = PlotSpec(x="x", y="speedup", panels=("pair", "task", "T"))
RATIOS = ("speedup", "end_to_end_speedup")  # with a line at 1


def line_panels(spec: PlotSpec, points: Sequence[Point]) -> list[Panel]:
    """Return a panel of lines for each place of the spec's panels."""
    return [Panel(title, _lines(spec, each)) for title, each in _places(spec, points)]


def bar_panels(points: Iterable[Point]) -> list[Panel]:
    """Return a panel of speedups for each pair, task and temperature; none without a speedup."""
    kept = [p for p in points if not p.group and isinstance(p.values.get("speedup"), Estimate)]
    return [Panel(title, _bars(each)) for title, each in _places(BARS, kept)]


def _places(spec: PlotSpec, points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Return the points of each panel with its title, without summaries of curves and groups of prompts."""
    kept = [p for p in points if not p.is_curve and not p.group]
    order = list(dict.fromkeys(p.at(spec.panels) for p in kept))
    kept.sort(key=lambda point: order.index(point.at(spec.panels)))
    panels = [(place, list(each)) for place, each in groupby(kept, lambda point: point.at(spec.panels))]
    return [(_title(spec, place, each), each) for place, each in panels]


def _title(spec: PlotSpec, place: Sequence[str | float | None], points: Sequence[Point]) -> str:
    words = [dimension_text(key, word) for key, word in zip(spec.panels, place, strict=True)]
    simulated = dict.fromkeys(word for point in points for word in point.simulated.split())
    return ", ".join(words) + "".join(f" ({word})" for word in simulated)


def _lines(spec: PlotSpec, points: Sequence[Point]) -> Callable[["Axes"], None]:
    """Return a function that draws each line of the spec with its interval band, and the methods of `flat` horizontally."""

    def draw(axes: "Axes") -> None:
        families: dict[tuple[str | float | None, ...], list[Point]] = {}
        for point in points:
            known = _x(spec, point) is not None and _y(spec, point) is not None
            if known and point.method not in spec.flat and not (spec.x == "x" and point.baseline):
                families.setdefault(point.at(spec.lines), []).append(point)
        for words, family in families.items():
            label = ", ".join(dimension_text(key, word) for key, word in zip(spec.lines, words, strict=True))
            _line(axes, spec, family, label, alpha=0.3 / len(families))
        for point in points:
            if point.method in spec.flat and _y(spec, point) is not None:
                _flat(axes, spec, point)
        if spec.y in RATIOS:
            axes.axhline(1.0, color=GRAY, linewidth=0.8, zorder=0)
        axes.set_xscale(spec.x_axis)
        swept = dict.fromkeys(p.setting.partition("=")[0] for p in points if p.setting)
        axes.set_xlabel(escaping.figure(", ".join(swept)) if spec.x == "x" else column_of(spec.x).title)
        axes.set_ylabel(column_of(spec.y).title)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=LEGEND, frameon=False)

    return draw


def _line(axes: "Axes", spec: PlotSpec, family: list[Point], label: str, alpha: float) -> None:
    family.sort(key=lambda point: _x(spec, point) or 0.0)
    xs, ys = [_x(spec, p) or 0.0 for p in family], [_y(spec, p) or 0.0 for p in family]
    (line,) = axes.plot(xs, ys, marker="o", markersize=3, linewidth=1.2, label=escaping.figure(label))
    bands = [p.bounds(spec.y) or (y, y) for p, y in zip(family, ys, strict=True)]
    scale = column_of(spec.y).format.scale
    low, high = ([scale * each[side] for each in bands] for side in (0, 1))
    axes.fill_between(xs, low, high, color=line.get_color(), alpha=alpha, linewidth=0)


def _flat(axes: "Axes", spec: PlotSpec, point: Point) -> None:
    """Draw a method without a parameter as a horizontal line, with a star if it has an x value."""
    x, y = _x(spec, point), _y(spec, point)
    assert y is not None
    axes.axhline(y, color="0.4", linewidth=0.7, linestyle=":", zorder=0)
    if spec.x != "x" and x is not None:
        axes.plot([x], [y], marker="*", markersize=9, linestyle="", label=escaping.figure(point.method))


def _x(spec: PlotSpec, point: Point) -> float | None:
    return point.x if spec.x == "x" else point.number(spec.x)


def _y(spec: PlotSpec, point: Point) -> float | None:
    number = point.number(spec.y)
    return None if number is None else column_of(spec.y).format.scale * number


def _bars(points: Sequence[Point]) -> Callable[["Axes"], None]:
    """Draw speedups with their intervals, and theory at the measured costs as a mark."""

    def draw(axes: "Axes") -> None:
        labels = [escaping.figure(" ".join(filter(None, (p.method, p.setting)))) for p in points]
        values = [p.number("speedup") or 0.0 for p in points]
        bounds = [p.bounds("speedup") or (v, v) for p, v in zip(points, values, strict=True)]
        errors = [
            [v - b[0] for v, b in zip(values, bounds, strict=True)],
            [b[1] - v for v, b in zip(values, bounds, strict=True)],
        ]
        axes.barh(labels, values, xerr=errors, color="#4c78a8", height=0.6, error_kw={"linewidth": 0.8})
        marks = [(t, i) for i, p in enumerate(points) if (t := p.number("corrected")) is not None]
        if marks:
            axes.plot(*zip(*marks, strict=True), marker="|", markersize=12, linestyle="", color="black", label="theory")
            axes.legend(fontsize=LEGEND, frameon=False)
        axes.axvline(1.0, color=GRAY, linewidth=0.8)
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=LEGEND)
        axes.set_xlabel(column_of("speedup").title)

    return draw
