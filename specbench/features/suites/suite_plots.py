"""Plots of suites and curves: lines over a swept parameter, Pareto fronts, speedups, lengths by prompt, verifiers."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.acceptance import lengths_of_prompts
from specbench.analysis.intervals import Estimate
from specbench.analysis.method_records import complete
from specbench.analysis.metric import Direction, metric_of
from specbench.analysis.number_format import HUNDREDTHS, NONE, THOUSANDTHS
from specbench.analysis.points import Point
from specbench.analysis.run_summary import RunSummary
from specbench.features.suites.papers.verifiers import VerifierReport
from specbench.features.suites.suite import PROMPT, PlotSpec
from specbench.features.suites.suite_report import Collected
from specbench.features.suites.suite_tables import dimension_text
from specbench.methods.theories.sprinter_theory import expected_drafts, expected_run
from specbench.reporting.plots.figures import (
    FORMATS,
    MOST_COLUMNS,
    Label,
    Panel,
    integer_ticks,
    legend_above,
    note_rest,
    pareto,
    save,
    short,
)
from specbench.reporting.plots.run_plots import MOST_LINES, run_plots
from specbench.reporting.plots.speed_plots import SpeedRow, most_important, speed_panel
from specbench.reporting.plots.styles import COLORS, DASHES, MARKERS, MUTED, NEUTRAL, Style, style_of
from specbench.runs.run_folder import read
from specbench.vocabulary import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE = PlotSpec(x="relative_latency", y="score", panels=("task", "T"), flat=("ar",))
MOST_WIDE = 4  # most panels of full width, one below the other
SPEEDS = PlotSpec(x="x", y="speedup", panels=("pair", "task", "T"))
MOST_WITH_THEORY = 3  # lines of a panel that also shows theory
SHIFT = 0.35  # between the points of two temperatures on one prompt
FALSE_POSITIVES = (0.0, 0.25, 0.5)  # eta_FP of the theory's curves
Family = tuple[str, list[Point], Style]  # a line's label, points and style
PromptLengths = dict[str, list[float]]  # by the label of a line: the mean acceptance length of each prompt


def of_suite(collected: Collected, into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the speedups of a suite, the plots that it defines, and the plots of the first run of each pair."""
    specs, name = collected.suite.plots, collected.suite.name
    plot_files: list[Path] = []
    for i, spec in enumerate(specs):
        number = f"-{i + 1}" if len(specs) > 1 else ""
        is_by_prompt = spec.x == PROMPT
        panels = _prompt_panels(collected.summaries) if is_by_prompt else _line_panels(spec, collected.points)
        plot_files += save(into / f"{name}{number}", panels, formats, columns=_columns_of(spec, panels))
    plot_files += save(
        into / (f"{name}-speedup" if specs else name), _speed_panels(collected.points), formats, columns=1
    )
    plot_files += save(into / f"{name}-roc", _roc_panels(collected.verifiers), formats)
    plot_files += save(into / f"{name}-run-length", _run_length_panels(collected.verifiers), formats)
    others = ("speedup", "roc") if collected.verifiers else ("speedup",)  # drawn above, over all runs
    first_of_pair = {summary.pair: summary for summary in reversed(collected.summaries)}
    for summary in collected.summaries:
        if summary is first_of_pair[summary.pair]:
            panels = [panel for kind, panel in run_plots(summary).items() if kind not in others]
            plot_files += save(into / f"{name}-explained-{summary.pair}", panels, formats, columns=1)
    return plot_files


def of_curve(name: str, points: Sequence[Point], into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Plot quality against relative latency for the curves of one run."""
    panels = _line_panels(CURVE, points)
    return save(into / f"{name}-curve", panels, formats, columns=_columns_of(CURVE, panels))


def _columns_of(spec: PlotSpec, panels: Sequence[Panel]) -> int:
    """Return the columns of a figure: one for a few panels with labels next to points, which need room."""
    return 1 if not (spec.is_swept or spec.diagonal) and len(panels) <= MOST_WIDE else MOST_COLUMNS


def _line_panels(spec: PlotSpec, points: Sequence[Point]) -> list[Panel]:
    """Return a panel of lines for each setting of the spec's panels; none for a setting without a value."""
    panels = []
    for title, members in _panel_points(spec, points):
        drawable = [p for p in members if _x(spec, p) is not None and _y(spec, p) is not None]
        if any(p.method not in spec.flat and not (spec.is_swept and p.baseline) for p in drawable):
            height = 3.2 if spec.is_swept or spec.diagonal else 4.2
            panels.append(Panel(title, partial(_lines, spec=spec, points=members), height))
    return panels


def _speed_panels(points: Sequence[Point]) -> list[Panel]:
    """Return a panel of speedups for each pair, task and temperature; none without a speedup."""
    measured = [p for p in points if not p.group and isinstance(p.values.get("speedup"), Estimate)]
    over = {p.at(SPEEDS.panels): p.method for p in points if p.baseline}
    return [
        speed_panel(title, _speed_rows(members), _speed_axis("speedup", over.get(members[0].at(SPEEDS.panels))))
        for title, members in _panel_points(SPEEDS, measured)
    ]


def _speed_rows(points: Sequence[Point]) -> list[SpeedRow]:
    rows = []
    for point in points:
        speedup = point.values["speedup"]
        assert isinstance(speedup, Estimate)
        label = point.name
        theory = {key: point.number(key) for key in ("predicted", "corrected")}
        rows.append(SpeedRow(label=label, method=label, preset=point.method, speedup=speedup, **theory))
    return most_important(rows)


def _panel_points(spec: PlotSpec, points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Return the points of each panel with its title, without summaries of curves and groups of prompts."""
    shown = [p for p in points if not p.is_curve and not p.group and p.matches(spec.only)]
    order = list(dict.fromkeys(p.at(spec.panels) for p in shown))
    shown.sort(key=lambda point: order.index(point.at(spec.panels)))
    panels = [(setting, list(members)) for setting, members in groupby(shown, lambda point: point.at(spec.panels))]
    return [(_title(spec, setting, members), members) for setting, members in panels]


def _title(spec: PlotSpec, setting: Sequence[str | float | None], points: Sequence[Point]) -> str:
    words = [dimension_text(key, word) for key, word in zip(spec.panels, setting, strict=True)]
    return ", ".join(words) + Simulation.label_of(point.simulated for point in points)


def _lines(axes: "Axes", spec: PlotSpec, points: Sequence[Point]) -> list[Label]:
    """Draw each line of the spec, and the methods of `flat` horizontally."""
    families, labels = _families(spec, points), []
    draw = _scatter if spec.diagonal else _swept if spec.is_swept else _front
    for label, members, style in families[:MOST_LINES]:
        labels += draw(axes, spec, (label, members, style))
    for _, members, _ in families[MOST_LINES:]:
        draw(axes, spec, ("", members, Style(NEUTRAL, ".", ":")))
    if spec.is_swept and len(families) <= MOST_WITH_THEORY:
        for family in families:
            _theory(axes, spec, family)
    if spec.best and len(families) > 1:
        _envelope(axes, spec, families)
    if spec.diagonal:
        axes.axline((0.0, 0.0), slope=metric_of(spec.y).format.scale, color=MUTED, linewidth=1.0, zorder=0)
    flat = {p.method: p for p in points if p.method in spec.flat and _y(spec, p) is not None}
    for point in flat.values():
        labels += _flat(axes, spec, point)
    if metric_of(spec.y).is_ratio:
        axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=0)
    axes.set_xscale(spec.x_axis)
    axes.set_xlabel(_x_title(spec, points))
    baselines = {p.method for p in points if p.baseline}
    one = min(baselines) if metric_of(spec.y).is_ratio and len(baselines) == 1 else None
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
        return short(", ".join(dict.fromkeys(p.x_name for p in points if p.settings)))
    return metric_of(spec.x).title


def _speed_axis(name: str, baseline: str | None) -> str:
    column = metric_of(name)
    return f"{column.label} over {short(baseline)}, {column.clock}" if baseline else column.title


def _axis_title(name: str, points: Sequence[Point]) -> str:
    """Return the title of a value with its unit. A score has the name of the metric if all points have the same."""
    column = metric_of(name)
    metrics = {p.values.get("headline") for p in points} if name == "score" else set()
    if len(metrics) == 1 and (metric := metrics.pop()):
        return f"{short(str(metric))} {column.documented_unit}"
    return f"{column.title} {column.documented_unit}" if column.documented_unit.startswith("x ") else column.title


def _families(spec: PlotSpec, points: Sequence[Point]) -> list[Family]:
    """Return the lines of a panel, those with the highest value first."""
    lines: dict[tuple[str | float | None, ...], list[Point]] = {}
    for point in points:
        has_both = _x(spec, point) is not None and _y(spec, point) is not None
        if has_both and point.method not in spec.flat and not (spec.is_swept and point.baseline):
            lines.setdefault(point.at(spec.lines), []).append(point)
    counts: dict[str, int] = {}
    families = []
    for words, family in lines.items():
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
    best = _best_at_each_x(spec, [point for _, members, _ in families for point in members])
    positions = sorted((_x(spec, p) or 0.0, _y(spec, p) or 0.0) for p in best)
    xs, ys = zip(*positions, strict=True)
    axes.plot(
        xs, ys, color=NEUTRAL, linewidth=6.0, alpha=0.25, solid_capstyle="round", zorder=1, label="the best of these"
    )


def _scatter(axes: "Axes", spec: PlotSpec, family: Family) -> list[Label]:
    """Draw points without a line, with their intervals."""
    label, points, style = family
    scale = metric_of(spec.y).format.scale
    for point in points:
        x, y, bounds = _x(spec, point) or 0.0, _y(spec, point) or 0.0, point.bounds(spec.y)
        axes.plot([x], [y], marker=style.marker, color=style.color, linestyle="", alpha=0.8, zorder=3)
        if bounds:
            axes.plot([x, x], [scale * bound for bound in bounds], color=style.color, linewidth=1.0, alpha=0.6)
    axes.plot([], [], marker=style.marker, color=style.color, linestyle="", label=label)
    return []


def _swept(axes: "Axes", spec: PlotSpec, family: Family) -> list[Label]:
    """Draw values over the swept parameter, with their intervals."""
    label, points, style = family
    points = sorted(points, key=lambda point: _x(spec, point) or 0.0)
    xs, ys = [_x(spec, p) or 0.0 for p in points], [_y(spec, p) or 0.0 for p in points]
    axes.plot(xs, ys, style.dashes, marker=style.marker, color=style.color)
    scale = metric_of(spec.y).format.scale
    for x, point in zip(xs, points, strict=True):
        bounds = point.bounds(spec.y)
        if bounds:
            axes.plot([x, x], [scale * bound for bound in bounds], color=style.color, linewidth=1.0, alpha=0.8)
    return [Label(label, xs[-1], ys[-1], style.color)] if label else []


def _front(axes: "Axes", spec: PlotSpec, family: Family) -> list[Label]:
    """Draw the points of a method with their intervals, and a step line over those that no other of its points dominates."""
    label, points, style = family
    positions = [(_x(spec, p) or 0.0, _y(spec, p) or 0.0) for p in points]
    lower = metric_of(spec.x).better is Direction.lower
    front = pareto(positions, lower_x=lower)
    axes.plot(*zip(*positions, strict=True), style.marker, color=style.color, alpha=0.6, linestyle="", zorder=2)
    for point, (x, y) in zip(points, positions, strict=True):
        _bars(axes, spec, point, (x, y), style.color)
    xs, ys = zip(*front, strict=True)
    axes.plot(xs, ys, style.marker, color=style.color, linestyle="", zorder=3)
    axes.step(xs, ys, style.dashes, where="post" if lower else "pre", color=style.color, linewidth=1.2, zorder=2)
    marks = tuple((x, y, x, y) for x, y in positions)
    return [Label(label, xs[-1], ys[-1], style.color, at_edge=False, bars=marks)] if label else []


def _bars(axes: "Axes", spec: PlotSpec, point: Point, position: tuple[float, float], color: str) -> None:
    """Draw the intervals of both values of a point."""
    x, y = position
    scale = metric_of(spec.y).format.scale
    if across := point.bounds(spec.x):
        axes.plot(across, [y, y], color=color, linewidth=0.8, alpha=0.35, zorder=1)
    if upright := point.bounds(spec.y):
        axes.plot([x, x], [scale * bound for bound in upright], color=color, linewidth=0.8, alpha=0.35, zorder=1)


def _theory(axes: "Axes", spec: PlotSpec, family: Family) -> None:
    """Shade the range of theory below a line of speedups."""
    label, points, style = family
    predictions = [(p.x, p.number("predicted"), p.number("corrected")) for p in points if spec.y == "speedup"]
    ranges = sorted((x, a, b) for x, a, b in predictions if x is not None and a is not None and b is not None)
    if len(ranges) > 1:
        xs, low, high = zip(*ranges, strict=True)
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
    return None if number is None else metric_of(spec.y).format.scale * number


def _prompt_panels(summaries: Sequence[RunSummary]) -> list[Panel]:
    """Return a panel for each method that drafts, on each pair and task, with a line for each temperature."""
    panels: dict[tuple[str, str, str], PromptLengths] = {}
    for summary in summaries:
        records = list(read(Path(summary.folder)))
        for row in summary.measured_methods:
            if row.acceptance_by_position:
                lengths = list(lengths_of_prompts(complete(records, row.method)).values())
                setting = (summary.pair, summary.spec.task.name, row.label)
                panels.setdefault(setting, {})[f"T = {summary.decoding.temperature:g}"] = lengths
    return [
        Panel(", ".join(setting), partial(_lengths_by_prompt, lengths=lengths)) for setting, lengths in panels.items()
    ]


def _lengths_by_prompt(axes: "Axes", lengths: PromptLengths) -> list[Label]:
    for i, (label, values) in enumerate(lengths.items()):
        color, mean, deviation = COLORS[i % len(COLORS)], float(np.mean(values)), float(np.std(values))
        text = f"{label}: {HUNDREDTHS.number(mean)} ± {HUNDREDTHS.number(deviation)}"
        positions = [number + SHIFT * i for number in range(1, len(values) + 1)]
        axes.plot(positions, values, MARKERS[i % len(MARKERS)], color=color, linestyle="", label=text)
        axes.axhspan(mean - deviation, mean + deviation, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel="prompt", ylabel="mean acceptance length")
    most = max(max(values) for values in lengths.values())
    axes.set_ylim(0.0, 1.06 * most)  # room for the markers
    integer_ticks(axes)
    legend_above(axes)
    return []


def _roc_panels(reports: Sequence[VerifierReport]) -> list[Panel]:
    """Return a panel of ROC curves for each pair and task, with a line for each tau."""
    settings = groupby(
        sorted(reports, key=lambda report: (report.pair, report.task)), lambda report: (report.pair, report.task)
    )
    return [
        Panel(", ".join(setting), partial(_roc_curves, reports=list(members)), 3.8) for setting, members in settings
    ]


def _run_length_panels(reports: Sequence[VerifierReport]) -> list[Panel]:
    """Return expected run lengths and stopping times over eta_TP (Theorems 2 and 3), and measured and predicted ones."""
    if not reports:
        return []
    n = round(float(np.mean([report.acceptable_run for report in reports])))
    panels = [
        Panel(f"Theorem 2: first {n} tokens acceptable", partial(_expected_run_lengths, n=n, is_time=False), 3.4),
        Panel(f"Theorem 3: first {n} tokens acceptable", partial(_expected_run_lengths, n=n, is_time=True), 3.4),
    ]
    if any(report.run_length is not None for report in reports):
        panels.append(Panel("Measured at T = 1 beside Theorem 2", partial(_measured_run_lengths, reports=reports), 3.4))
    return panels


def _roc_curves(axes: "Axes", reports: Sequence[VerifierReport]) -> list[Label]:
    for i, report in enumerate(sorted(reports, key=lambda one: one.tau)):
        x, y = np.array(report.values["curve"]).T
        auc = THOUSANDTHS.number(report.values["auc"])
        dashes = DASHES[i % len(DASHES)]
        axes.plot(x, y, dashes, color=COLORS[i % len(COLORS)], label=f"tau_train = {report.tau:g}: AUC {auc}")
        point = ([report.values["eta_fp"]], [report.values["eta_tp"]])
        axes.plot(*point, marker=MARKERS[i % len(MARKERS)], color=COLORS[i % len(COLORS)], linestyle="")
    axes.axline((0.0, 0.0), slope=1.0, color=MUTED, linewidth=1.0)
    axes.set(xlabel="unacceptable tokens accepted (eta_FP)", ylabel="acceptable tokens accepted (eta_TP)")
    legend_above(axes)
    return []


def _expected_run_lengths(axes: "Axes", n: int, is_time: bool) -> list[Label]:
    rates = np.linspace(0.5, 0.999, 200)
    for i, false in enumerate(FALSE_POSITIVES):
        runs = [(expected_drafts if is_time else expected_run)(n, float(rate), false) for rate in rates]
        axes.plot(rates, runs, color=COLORS[i], label=f"eta_FP = {false:g}")
    axes.set(xlabel="eta_TP", ylabel="stopping time in draft steps" if is_time else "expected run length E[X]")
    legend_above(axes)
    return []


def _measured_run_lengths(axes: "Axes", reports: Sequence[VerifierReport]) -> list[Label]:
    settings = dict.fromkeys((report.pair, report.task) for report in reports)
    for i, setting in enumerate(settings):
        measured = [
            report for report in reports if (report.pair, report.task) == setting and report.run_length is not None
        ]
        xs, ys = [report.predicted_run for report in measured], [report.run_length or 0.0 for report in measured]
        marker, color = MARKERS[i % len(MARKERS)], COLORS[i % len(COLORS)]
        axes.plot(xs, ys, marker=marker, color=color, linestyle="", label=", ".join(setting))
    axes.axline((0.0, 0.0), slope=1.0, color=MUTED, linewidth=1.0)
    axes.set(xlabel="verifier accepts/run by Theorem 2", ylabel="verifier accepts/run, measured")
    legend_above(axes)
    return []
