"""Plots of one run, one picture each: speed, acceptance, tokens per round, time, quality, draft lengths, break-even, ROC."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import HUNDREDTHS, TENTHS
from specbench.analysis.predictions import BreakEven
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.pair import HeadKind, folder
from specbench.errors import ConfigError
from specbench.files import read_json
from specbench.reporting.differences import distinct_titles
from specbench.reporting.plots.figures import (
    FORMATS,
    Label,
    Panel,
    errors,
    file_name,
    integer_ticks,
    legend_above,
    list_methods,
    note_rest,
    pareto,
    save,
    selected,
    short,
)
from specbench.reporting.plots.speed_plots import run_speed_panel, steps_panel
from specbench.reporting.plots.styles import COLORS, INK, MUTED, NEUTRAL, Style, part_colors, styles_of
from specbench.reporting.standings import speedup_of
from specbench.reporting.tables import ranked
from specbench.runs.run_spec import HeadSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 8  # methods in a panel of lines
MOST_BARS = 16  # rows of a chart of bars
MOST_LENGTHS = 12  # bars of tokens per round; the last one has all longer rounds
ROW, REST = 0.3, 1.2  # inches of a stacked bar, and of the rest of the panel
MOST_CURVES = 4  # methods in a panel of predictions
MOST_POINTS = 12  # with intervals and labels
MARK_SPACING = 0.1  # between measured marks at one draft length


def of_runs(summaries: Sequence[RunSummary], into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the plots of each run, a file for each kind of plot."""
    titles = distinct_titles(summaries) if len(summaries) > 1 else [""]
    names = Counter[str]()
    plot_files: list[Path] = []
    for summary, title in zip(summaries, titles, strict=True):
        name = file_name(summary.run)
        names[name] += 1
        number = f"-{names[name]}" if names[name] > 1 else ""  # folders at two locations with one name
        for kind, panel in run_plots(summary, title).items():
            plot_files += save(into / f"{name}{number}-{kind}", [panel], formats)
    return plot_files


def run_plots(summary: RunSummary, title: str = "") -> dict[str, Panel]:
    """Return the plots of a run by the endings of their files. Plots without data are left out.

    `title` distinguishes the run from other runs.
    """
    title = title or summary.title
    panels = {
        "speedup": run_speed_panel(summary, title),
        "steps": steps_panel(summary, title),
        "acceptance": _acceptance_panel(summary, title),
        "tokens-per-round": _length_panel(summary, title),
        "time": _time_panel(summary, title),
        "quality": _quality_panel(summary, title),
        "draft-lengths": _prediction_panel(summary, title),
        "break-even": _break_even_panel(summary, title),
        "roc": _roc_panel(summary, title),
    }
    return {kind: panel for kind, panel in panels.items() if panel}


def _acceptance_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return acceptance by position of the methods that draft; None if there are none."""
    rows = [row for row in ranked(summary) if row.acceptance_by_position]
    draw = partial(_acceptance, rows=rows, styles=styles_of(summary.spec.presets))
    return Panel(f"{title}: acceptance by position", draw) if rows else None


def _acceptance(axes: "Axes", rows: Sequence[MethodSummary], styles: Mapping[str, Style]) -> list[Label]:
    shown = selected(rows, MOST_LINES)
    labels: list[Label] = []
    longest = max(len(row.acceptance_by_position) for row in shown)
    lines = tuple(segment for row in shown for segment in _segments(row.acceptance_by_position))
    for row in shown:
        rates, style = row.acceptance_by_position, styles[row.method]
        axes.plot(range(1, len(rates) + 1), rates, style.dashes, marker=style.marker, color=style.color)
        ends = len(rates) == longest
        labels.append(Label(row.label, len(rates), rates[-1], style.color, ends, () if ends else lines))
    axes.set_xlim(0.8, max(longest, 2) + 0.2)
    axes.set_ylim(0, 1.04)
    integer_ticks(axes)
    axes.set_xlabel("position in the draft")
    note_rest(axes, len(rows) - len(shown), "not shown")
    axes.set_ylabel("acceptance rate, if all\nearlier tokens are accepted")
    return labels


def _segments(rates: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Return the ends of the parts of a line, which a label should not cover."""
    return [(i, a, i + 1, b) for i, (a, b) in enumerate(itertools.pairwise(rates), 1)]


def _length_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the distribution of tokens per round of the methods that draft; None if there are none."""
    rows = [
        row for row in ranked(summary) if row.length_counts and row.accepted_length and set(row.length_counts) != {1}
    ]
    draw = partial(_lengths, rows=rows, styles=styles_of(summary.spec.presets))
    return Panel(f"{title}: tokens per round", draw) if rows else None


def _lengths(axes: "Axes", rows: Sequence[MethodSummary], styles: Mapping[str, Style]) -> list[Label]:
    shown = selected(rows, MOST_LINES)
    longest = min(max(max(row.length_counts) for row in shown), MOST_LENGTHS)
    width = 0.84 / len(shown)
    for i, row in enumerate(shown):
        total, shares = sum(row.length_counts.values()), dict.fromkeys(range(longest + 1), 0.0)
        for length, count in row.length_counts.items():
            shares[min(length, longest)] += 100 * count / total
        positions = [length + (i - (len(shown) - 1) / 2) * width for length in shares]
        mean = HUNDREDTHS.number(row.accepted_length or 0.0)
        axes.bar(
            positions,
            list(shares.values()),
            width,
            color=styles[row.method].color,
            label=f"{short(row.label)}, mean {mean}",
        )
    first = min(min(row.length_counts) for row in shown)
    ends_open = any(max(row.length_counts) > longest for row in shown)
    ticks = list(range(min(first, longest), longest + 1))
    axes.set_xticks(ticks, [f"{tick}+" if ends_open and tick == longest else str(tick) for tick in ticks])
    axes.set_xlim(ticks[0] - 0.6, longest + 0.6)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("tokens committed in a round")
    note_rest(axes, len(rows) - len(shown), "not shown")
    axes.set_ylabel("share of rounds (%)")
    legend_above(axes)
    return []


def _time_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the milliseconds per committed token of each model and of the host; None if no forward was timed."""
    timed = [row for row in summary.measured_methods if row.round_milliseconds]
    if not timed:
        return None
    timed.sort(key=_per_token)
    rows = selected(timed, MOST_BARS)
    draw = partial(_times, rows=rows, left_out=len(timed) - len(rows))
    return Panel(f"{title}: time per token", draw, REST + ROW * len(rows))


def _per_token(row: MethodSummary) -> float:
    return sum(row.round_milliseconds.values()) / (row.accepted_length or 1.0)


def _times(axes: "Axes", rows: Sequence[MethodSummary], left_out: int) -> list[Label]:
    parts = list(dict.fromkeys(part for row in rows for part in row.round_milliseconds if part != "host"))
    parts += ["host"] if any("host" in row.round_milliseconds for row in rows) else []
    starts, colors = [0.0] * len(rows), part_colors(parts)
    for part in parts:
        spent = [row.round_milliseconds.get(part, 0.0) / (row.accepted_length or 1.0) for row in rows]
        axes.barh(range(len(rows)), spent, left=starts, height=0.62, color=colors[part], label=short(part))
        starts = [a + b for a, b in zip(starts, spent, strict=True)]
    for position, total in enumerate(starts):
        axes.annotate(
            TENTHS.number(total) if total >= 1.0 else HUNDREDTHS.number(total), (total, position), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
    list_methods(axes, [short(row.label) for row in rows], above=0.5, below=0.5)
    axes.margins(x=0.08)
    axes.set_xlabel("decoding time per committed token (ms)")
    note_rest(axes, left_out, "not shown")
    legend_above(axes)
    return []


def _quality_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the main score over the speedup. None without scores of two methods, or for simulated models."""
    rows = [(row, score) for row in summary.measured_methods if (score := summary.score(row))]
    if len(rows) < 2 or summary.simulated:
        return None
    draw = partial(_quality, summary=summary, rows=rows)
    return Panel(f"{title}: quality against speed", draw, 3.6)


def _quality(axes: "Axes", summary: RunSummary, rows: Sequence[tuple[MethodSummary, Estimate]]) -> list[Label]:
    shown = {
        row.method
        for row in selected(sorted((row for row, _ in rows), key=lambda row: -_speed(summary, row)), MOST_POINTS)
    }
    labels, points, styles = [], [], styles_of(summary.spec.presets)
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
    rows = [row for row in summary.measured_methods if row.predicted_lengths][:MOST_CURVES]
    if not rows or summary.end_to_end:
        return None
    return Panel(f"{title}: predicted speed by draft length", partial(_predictions, summary=summary, rows=rows))


def _predictions(axes: "Axes", summary: RunSummary, rows: Sequence[MethodSummary]) -> list[Label]:
    styles, labels = styles_of(summary.spec.presets), []
    for number, row in enumerate(rows):
        style, lengths = styles[row.method], row.predicted_lengths
        xs, ys = [prediction.gamma for prediction in lengths], [prediction.speedup.value for prediction in lengths]
        axes.plot(xs, ys, style.dashes, color=style.color, marker=".", markersize=5, zorder=2)
        bounds = [prediction.speedup for prediction in lengths]
        low, high = ([getattr(bound, side) for bound in bounds] for side in ("low", "high"))
        if None not in low + high:
            axes.fill_between(xs, low, high, color=style.color, alpha=0.15, linewidth=0)
        labels.append(Label(row.label, xs[-1], ys[-1], style.color))
        theory, measured = summary.traits(row).theory, speedup_of(summary, row)
        if theory and measured:
            axes.errorbar(
                theory.gamma[0] + MARK_SPACING * (number - (len(rows) - 1) / 2), measured.value, yerr=errors(measured),
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


def _break_even_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return a curve for each of the first methods with break-even points; None without one."""
    rows = [(row, row.break_even) for row in summary.measured_methods if row.break_even][:MOST_CURVES]
    if not rows:
        return None
    return Panel(
        f"{title}: break-even by theory, at the measured costs",
        partial(_break_even_curves, summary=summary, rows=rows),
        3.8,
    )


def _break_even_curves(
    axes: "Axes", summary: RunSummary, rows: Sequence[tuple[MethodSummary, BreakEven]]
) -> list[Label]:
    styles, labels = styles_of(summary.spec.presets), list[Label]()
    for row, break_even in rows:
        style, name = styles[row.method], short(row.label)
        rates = np.linspace(0.0, 1.0, len(break_even.curve))
        curve = f"{name}, draft length {break_even.gamma}: {_break_even_words(break_even)}"
        axes.plot(rates, break_even.curve, style.dashes, color=style.color, label=curve)
        if break_even.acceptance and break_even.curve[0] < 1.0:
            axes.plot(
                break_even.acceptance, 1.0, "o", color=style.color, markersize=8, markerfacecolor="none", zorder=3
            )
            text = f"break-even {HUNDREDTHS.number(break_even.acceptance)}"
            line = itertools.pairwise(zip(rates.tolist(), break_even.curve, strict=True))
            bars = tuple((*start, *end) for start, end in line)
            labels.append(Label(text, break_even.acceptance, 1.0, style.color, at_edge=False, bars=bars))
        if row.speedup:
            rate = row.value("acceptance_rate")
            axes.errorbar(
                break_even.measured_acceptance, row.speedup.value, yerr=errors(row.speedup),
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


def _break_even_words(break_even: BreakEven) -> str:
    """Return at which acceptance rate a method breaks even, in words."""
    if break_even.acceptance is None:
        return "no break-even"
    if break_even.curve[0] >= 1.0:
        return "faster at every rate"
    return f"break-even at {HUNDREDTHS.number(break_even.acceptance)}"


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
    location = folder(head.source, Path()) if head.kind == HeadKind.sprinter else None
    report = location / "report.json" if location else None
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
