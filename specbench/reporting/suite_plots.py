"""Plots of points: lines over a swept parameter, Pareto fronts of two values, and speedups."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from specbench.analysis.chains import NONE
from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point
from specbench.config.suite_layout import PlotSpec
from specbench.reporting.columns import column_of
from specbench.reporting.figures import Panel, integer_ticks, legend_above
from specbench.reporting.fronts import pareto
from specbench.reporting.labels import Label, short
from specbench.reporting.round_plots import MOST_LINES
from specbench.reporting.selection import note_rest
from specbench.reporting.speed_plot import SpeedRow, most_important, speed_panel
from specbench.reporting.styles import MUTED, NEUTRAL, Style, style_of
from specbench.reporting.suite_values import dimension_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPEEDS = PlotSpec(x="x", y="speedup", panels=("pair", "task", "T"))
RATIOS = ("speedup", "end_to_end_speedup")  # with a line at 1
LOWER_IS_BETTER = ("deferral_rate",)  # on the axis of a plot, though tables do not rank by it
MOST_WITH_THEORY = 3  # lines of a panel that also shows theory
Family = tuple[str, list[Point], Style]  # a line's label, points and style


def line_panels(spec: PlotSpec, points: Sequence[Point]) -> list[Panel]:
    """Return a panel of lines for each place of the spec's panels; none for a place without a value."""
    panels = []
    for title, each in _places(spec, points):
        known = [p for p in each if _x(spec, p) is not None and _y(spec, p) is not None]
        if any(p.method not in spec.flat and not (spec.is_swept and p.baseline) for p in known):
            height = 3.2 if spec.is_swept or spec.diagonal else 4.2
            panels.append(Panel(title, partial(_lines, spec=spec, points=each), height))
    return panels


def speed_panels(points: Sequence[Point]) -> list[Panel]:
    """Return a panel of speedups for each pair, task and temperature; none without a speedup."""
    kept = [p for p in points if not p.group and isinstance(p.values.get("speedup"), Estimate)]
    over = {p.at(SPEEDS.panels): p.method for p in points if p.baseline}
    return [
        speed_panel(title, _speed_rows(each), _speed_axis("speedup", over.get(each[0].at(SPEEDS.panels))))
        for title, each in _places(SPEEDS, kept)
    ]


def _speed_rows(points: Sequence[Point]) -> list[SpeedRow]:
    rows = []
    for point in points:
        speedup = point.values["speedup"]
        assert isinstance(speedup, Estimate)
        label = f"{point.method}({point.setting})" if point.setting else point.method
        theory = {key: point.number(key) for key in ("predicted", "corrected")}
        rows.append(SpeedRow(label=label, method=label, speedup=speedup, **theory))
    return most_important(rows)


def _places(spec: PlotSpec, points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Return the points of each panel with its title, without summaries of curves and groups of prompts."""
    kept = [p for p in points if not p.is_curve and not p.group and p.matches(spec.only)]
    order = list(dict.fromkeys(p.at(spec.panels) for p in kept))
    kept.sort(key=lambda point: order.index(point.at(spec.panels)))
    panels = [(place, list(each)) for place, each in groupby(kept, lambda point: point.at(spec.panels))]
    return [(_title(spec, place, each), each) for place, each in panels]


def _title(spec: PlotSpec, place: Sequence[str | float | None], points: Sequence[Point]) -> str:
    words = [dimension_text(key, word) for key, word in zip(spec.panels, place, strict=True)]
    simulated = dict.fromkeys(word for point in points for word in point.simulated.split())
    return ", ".join(words) + "".join(f" ({word})" for word in simulated)


def _lines(axes: "Axes", spec: PlotSpec, points: Sequence[Point]) -> list[Label]:
    """Draw each line of the spec, and the methods of `flat` horizontally."""
    families, labels = _families(spec, points), []
    draw = _scatter if spec.diagonal else _swept if spec.is_swept else _front
    for label, each, style in families[:MOST_LINES]:
        labels += draw(axes, spec, (label, each, style))
    for _, each, _ in families[MOST_LINES:]:
        draw(axes, spec, ("", each, Style(NEUTRAL, ".", ":")))
    if spec.is_swept and len(families) <= MOST_WITH_THEORY:
        for family in families:
            _theory(axes, spec, family)
    if spec.best and len(families) > 1:
        _envelope(axes, spec, families)
    if spec.diagonal:
        axes.axline((0.0, 0.0), slope=column_of(spec.y).format.scale, color=MUTED, linewidth=1.0, zorder=0)
    flat = {p.method: p for p in points if p.method in spec.flat and _y(spec, p) is not None}
    for point in flat.values():
        labels += _flat(axes, spec, point)
    if spec.y in RATIOS:
        axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=0)
    axes.set_xscale(spec.x_axis)
    axes.set_xlabel(_x_title(spec, points))
    baselines = {p.method for p in points if p.baseline}
    one = min(baselines) if spec.y in RATIOS and len(baselines) == 1 else None
    axes.set_ylabel(_speed_axis(spec.y, one) if one else _axis_title(spec.y, points))
    note_rest(axes, len(families) - MOST_LINES, "not labelled")
    legend_above(axes)
    if (
        spec.is_swept
        and spec.x_axis == "linear"
        and all(x.is_integer() for p in points if (x := _x(spec, p)) is not None)
    ):
        integer_ticks(axes)
    return labels


def _x_title(spec: PlotSpec, points: Sequence[Point]) -> str:
    if spec.x == "weight":
        return f"weight of {short(', '.join(dict.fromkeys(p.weighted for p in points if p.weighted)))}"
    if spec.is_swept:
        return short(", ".join(dict.fromkeys(p.setting.partition("=")[0] for p in points if p.setting)))
    return column_of(spec.x).title


def _speed_axis(name: str, baseline: str | None) -> str:
    column = column_of(name)
    return f"{column.heading} over {short(baseline)}, {column.clock}" if baseline else column.title


def _axis_title(name: str, points: Sequence[Point]) -> str:
    """Return the title of a value with its unit. A score has the name of the metric if all points have the same."""
    column = column_of(name)
    metrics = {p.values.get("headline") for p in points} if name == "score" else set()
    if len(metrics) == 1 and (metric := metrics.pop()):
        return f"{short(str(metric))} {column.unit}"
    return f"{column.title} {column.unit}" if column.unit.startswith("x ") else column.title


def _families(spec: PlotSpec, points: Sequence[Point]) -> list[Family]:
    """Return the lines of a panel, those with the highest value first."""
    found: dict[tuple[str | float | None, ...], list[Point]] = {}
    for point in points:
        known = _x(spec, point) is not None and _y(spec, point) is not None
        if known and point.method not in spec.flat and not (spec.is_swept and point.baseline):
            found.setdefault(point.at(spec.lines), []).append(point)
    counts: dict[str, int] = {}
    families = []
    for words, family in found.items():
        method = family[0].method
        if spec.best:
            family = _best_at_each_x(spec, family)
        shown = zip(spec.lines, words, strict=True)
        label = ", ".join(dimension_text(key, word) for key, word in shown if word not in ("", None)) or NONE
        families.append((label, family, style_of(method, counts.get(method, 0))))
        counts[method] = counts.get(method, 0) + 1
    return sorted(families, key=lambda family: -max(_y(spec, p) or 0.0 for p in family[1]))


def _best_at_each_x(spec: PlotSpec, points: Sequence[Point]) -> list[Point]:
    """Return the best point by y at each x."""
    best: dict[float | None, Point] = {}
    for point in points:
        x, y = _x(spec, point), _y(spec, point) or 0.0
        if x not in best or y > (_y(spec, best[x]) or 0.0):
            best[x] = point
    return list(best.values())


def _envelope(axes: "Axes", spec: PlotSpec, families: Sequence[Family]) -> None:
    """Draw the best of all lines below them."""
    best = _best_at_each_x(spec, [point for _, each, _ in families for point in each])
    places = sorted((_x(spec, p) or 0.0, _y(spec, p) or 0.0) for p in best)
    xs, ys = zip(*places, strict=True)
    axes.plot(
        xs, ys, color=NEUTRAL, linewidth=6.0, alpha=0.25, solid_capstyle="round", zorder=1, label="the best of these"
    )


def _scatter(axes: "Axes", spec: PlotSpec, family: Family) -> list[Label]:
    """Draw points without a line, with their intervals."""
    label, points, style = family
    scale = column_of(spec.y).format.scale
    for point in points:
        x, y, bounds = _x(spec, point) or 0.0, _y(spec, point) or 0.0, point.bounds(spec.y)
        axes.plot([x], [y], marker=style.marker, color=style.color, linestyle="", alpha=0.8, zorder=3)
        if bounds:
            axes.plot([x, x], [scale * each for each in bounds], color=style.color, linewidth=1.0, alpha=0.6)
    axes.plot([], [], marker=style.marker, color=style.color, linestyle="", label=label)
    return []


def _swept(axes: "Axes", spec: PlotSpec, family: Family) -> list[Label]:
    """Draw values over the swept parameter, with their intervals."""
    label, points, style = family
    points = sorted(points, key=lambda point: _x(spec, point) or 0.0)
    xs, ys = [_x(spec, p) or 0.0 for p in points], [_y(spec, p) or 0.0 for p in points]
    axes.plot(xs, ys, style.dashes, marker=style.marker, color=style.color)
    scale = column_of(spec.y).format.scale
    for x, point in zip(xs, points, strict=True):
        bounds = point.bounds(spec.y)
        if bounds:
            axes.plot([x, x], [scale * each for each in bounds], color=style.color, linewidth=1.0, alpha=0.8)
    return [Label(label, xs[-1], ys[-1], style.color)] if label else []


def _front(axes: "Axes", spec: PlotSpec, family: Family) -> list[Label]:
    """Draw the points of a method with their intervals, and a step line over those that no other of its points dominates."""
    label, points, style = family
    places = [(_x(spec, p) or 0.0, _y(spec, p) or 0.0) for p in points]
    lower = column_of(spec.x).lower_is_better or spec.x in LOWER_IS_BETTER
    front = pareto(places, lower_x=lower)
    axes.plot(*zip(*places, strict=True), style.marker, color=style.color, alpha=0.6, linestyle="", zorder=2)
    for point, (x, y) in zip(points, places, strict=True):
        _bars(axes, spec, point, (x, y), style.color)
    xs, ys = zip(*front, strict=True)
    axes.plot(xs, ys, style.marker, color=style.color, linestyle="", zorder=3)
    axes.step(xs, ys, style.dashes, where="post" if lower else "pre", color=style.color, linewidth=1.2, zorder=2)
    marks = tuple((x, y, x, y) for x, y in places)
    return [Label(label, xs[-1], ys[-1], style.color, at_edge=False, bars=marks)] if label else []


def _bars(axes: "Axes", spec: PlotSpec, point: Point, place: tuple[float, float], color: str) -> None:
    """Draw the intervals of both values of a point."""
    x, y = place
    scale = column_of(spec.y).format.scale
    if across := point.bounds(spec.x):
        axes.plot(across, [y, y], color=color, linewidth=0.8, alpha=0.35, zorder=1)
    if upright := point.bounds(spec.y):
        axes.plot([x, x], [scale * each for each in upright], color=color, linewidth=0.8, alpha=0.35, zorder=1)


def _theory(axes: "Axes", spec: PlotSpec, family: Family) -> None:
    """Shade the range of theory below a line of speedups."""
    label, points, style = family
    known = [(p.x, p.number("predicted"), p.number("corrected")) for p in points if spec.y == "speedup"]
    kept = sorted((x, a, b) for x, a, b in known if x is not None and a is not None and b is not None)
    if len(kept) > 1:
        xs, low, high = zip(*kept, strict=True)
        name = ", ".join(filter(None, ("theory", short(label))))
        axes.fill_between(xs, low, high, color=style.color, alpha=0.2, linewidth=0, zorder=1, label=name)


def _flat(axes: "Axes", spec: PlotSpec, point: Point) -> list[Label]:
    """Draw a method without a parameter as a horizontal line, with a mark if it has an x value."""
    x, y, style = _x(spec, point), _y(spec, point), style_of(point.method)
    assert y is not None
    axes.axhline(y, color=style.color, linewidth=0.9, linestyle=":", zorder=1)
    if not spec.is_swept and x is not None:
        axes.plot([x], [y], marker=style.marker, color=style.color, markersize=8, linestyle="", zorder=3)
        return [Label(point.method, x, y, style.color, at_edge=False)]
    return [Label(point.method, axes.get_xlim()[1], y, style.color)]


def _x(spec: PlotSpec, point: Point) -> float | None:
    if not spec.is_swept:
        return point.number(spec.x)
    number = point.dimension(spec.x)
    return number if isinstance(number, float) else None


def _y(spec: PlotSpec, point: Point) -> float | None:
    number = point.number(spec.y)
    return None if number is None else column_of(spec.y).format.scale * number
