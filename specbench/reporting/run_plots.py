"""Plots of one run, one picture each: speed, acceptance, tokens per round, time, quality, draft lengths, break-even, ROC."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from specbench.analysis.intervals import Estimate
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.pair import folder
from specbench.errors import ConfigError
from specbench.files import read_json
from specbench.reporting.break_even_plot import break_even_panel
from specbench.reporting.conclusion import speedup_of
from specbench.reporting.figures import Panel, errors, integer_ticks, legend_above
from specbench.reporting.fronts import pareto
from specbench.reporting.labels import Label, short
from specbench.reporting.round_plots import acceptance_panel, length_panel, time_panel
from specbench.reporting.selection import note_rest, selected
from specbench.reporting.speed_plot import run_speed_panel
from specbench.reporting.styles import COLORS, MUTED, NEUTRAL, styles_of
from specbench.runs.run_spec import HeadSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CURVES = 4  # of predicted draft lengths in one panel
MOST_POINTS = 12  # with intervals and labels
BESIDE = 0.1  # between measured marks at one draft length


def run_plots(summary: RunSummary, title: str = "") -> dict[str, Panel]:
    """Return the plots of a run by the endings of their files. Plots without data are left out.

    `title` distinguishes the run from other runs.
    """
    title = title or summary.title
    found = {
        "speedup": run_speed_panel(summary, title),
        "acceptance": acceptance_panel(summary, title),
        "tokens-per-round": length_panel(summary, title),
        "time": time_panel(summary, title),
        "quality": _quality_panel(summary, title),
        "draft-lengths": _prediction_panel(summary, title),
        "break-even": break_even_panel(summary, title),
        "roc": _roc_panel(summary, title),
    }
    return {kind: panel for kind, panel in found.items() if panel}


def _quality_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the main score over the speedup. None without scores of two methods, or for simulated models."""
    rows = [(row, score) for row in summary.measured if (score := summary.score(row))]
    if len(rows) < 2 or summary.simulated:
        return None
    draw = partial(_quality, summary=summary, rows=rows)
    return Panel(f"{title}: quality against speed", draw, 3.6)


def _quality(axes: "Axes", summary: RunSummary, rows: Sequence[tuple[MethodSummary, Estimate]]) -> list[Label]:
    shown = {
        row.method
        for row in selected(sorted((row for row, _ in rows), key=lambda row: -_speed(summary, row)), MOST_POINTS)
    }
    labels, points, styles = [], [], styles_of(summary.spec.methods)
    for row, score in rows:
        style, speed = styles[row.method], speedup_of(summary, row) or Estimate(1.0, None, None)
        x, y = speed.value, 100 * score.value
        points.append((x, y))
        if row.method not in shown:
            axes.plot(x, y, style.marker, color=style.color, alpha=0.4, zorder=2)
            continue
        axes.errorbar(
            x, y, xerr=errors(speed), yerr=errors(score, 100.0), fmt=style.marker, color=style.color, markersize=7,
            elinewidth=1.1, zorder=3,
        )  # fmt: skip
        labels.append(Label(row.label, x, y, style.color, at_edge=False, bars=_bars(x, y, speed, score)))
    front = pareto(points, lower_x=False)
    if len(front) > 1:
        xs, ys = zip(*front, strict=True)
        axes.step(xs, ys, where="pre", color=MUTED, linewidth=1.0, linestyle="--", zorder=1, label="not dominated")
    axes.axvline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    axes.margins(0.12)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel(f"speedup over {summary.baseline}, {summary.clock}")
    axes.set_ylabel(short(f"{summary.headline} x 100"))
    note_rest(axes, len(rows) - len(shown), "not labelled")
    legend_above(axes)
    return labels


def _speed(summary: RunSummary, row: MethodSummary) -> float:
    speedup = speedup_of(summary, row)
    return speedup.value if speedup else 1.0


def _bars(x: float, y: float, speed: Estimate, score: Estimate) -> tuple[tuple[float, float, float, float], ...]:
    """Return the ends of the two intervals of a point."""
    across = [(speed.low, y, speed.high, y)] if speed.low is not None and speed.high is not None else []
    up = [(x, 100 * score.low, x, 100 * score.high)] if score.low is not None and score.high is not None else []
    return (*across, *up)


def _prediction_panel(summary: RunSummary, title: str) -> Panel | None:
    rows = [row for row in summary.measured if row.predicted_lengths][:MOST_CURVES]
    if not rows or summary.end_to_end:
        return None
    return Panel(f"{title}: predicted speed by draft length", partial(_predictions, summary=summary, rows=rows))


def _predictions(axes: "Axes", summary: RunSummary, rows: Sequence[MethodSummary]) -> list[Label]:
    styles, labels = styles_of(summary.spec.methods), []
    for place, row in enumerate(rows):
        style, lengths = styles[row.method], row.predicted_lengths
        xs, ys = [each.gamma for each in lengths], [each.speedup.value for each in lengths]
        axes.plot(xs, ys, style.dashes, color=style.color, marker=".", markersize=5, zorder=2)
        bounds = [each.speedup for each in lengths]
        low, high = ([getattr(each, side) for each in bounds] for side in ("low", "high"))
        if None not in low + high:
            axes.fill_between(xs, low, high, color=style.color, alpha=0.15, linewidth=0)
        labels.append(Label(row.label, xs[-1], ys[-1], style.color))
        theory, measured = summary.traits(row).theory, speedup_of(summary, row)
        if theory and measured:
            axes.errorbar(
                theory.gamma[0] + BESIDE * (place - (len(rows) - 1) / 2), measured.value, yerr=errors(measured),
                fmt=style.marker, color=style.color, markersize=7, elinewidth=1.4, zorder=3,
                label=f"measured: {short(row.label)}",
            )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    integer_ticks(axes)
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("draft length (tokens)")
    axes.set_ylabel(f"speedup over {summary.baseline}")
    legend_above(axes)
    return labels


class Roc(TypedDict):
    """A verifier's ROC curve in its training report (report.json), and the point of its threshold."""

    curve: list[tuple[float, float]]  # false positive rate, true positive rate
    auc: float
    eta_fp: float
    eta_tp: float


def _roc_panel(summary: RunSummary, title: str) -> Panel | None:
    curves = {name: curve for name, head in summary.heads.items() if (curve := _roc_of(head))}
    return (
        Panel(f"{title}: ROC of the verifiers on unseen texts", partial(_roc, curves=curves), 3.8) if curves else None
    )


def _roc_of(head: HeadSource) -> Roc | None:
    """Return the ROC of a verifier. None for other heads, and if its report is missing or damaged."""
    place = folder(head.source, Path()) if head.kind == "sprinter" else None
    report = place / "report.json" if place else None
    try:
        return read_json(report, Roc) if report and report.exists() else None
    except ConfigError:
        return None


def _roc(axes: "Axes", curves: Mapping[str, Roc]) -> list[Label]:
    for i, (name, roc) in enumerate(curves.items()):
        color = COLORS[i % len(COLORS)]
        axes.plot(*zip(*roc["curve"], strict=True), color=color, label=short(f"{name}: AUC {roc['auc']:.3f}"))
        point = f"its threshold: ({roc['eta_fp']:.2f}, {roc['eta_tp']:.2f})"
        axes.plot([roc["eta_fp"]], [roc["eta_tp"]], "o", color=color, markersize=7, label=point)
    axes.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=0.9, linestyle="--")
    axes.set_xlabel("share of unacceptable tokens accepted (eta_FP)")
    axes.set_ylabel("share of acceptable tokens\naccepted (eta_TP)")
    legend_above(axes)
    return []
