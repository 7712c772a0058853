"""Plots of the rounds of a run: acceptance by position, tokens per round, and where the time goes."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.reporting.column import HUNDREDTHS, TENTHS
from specbench.reporting.figures import Panel, integer_ticks, legend_above, list_methods
from specbench.reporting.labels import Label, short
from specbench.reporting.selection import note_rest, selected
from specbench.reporting.styles import INK, Style, part_colors, styles_of
from specbench.reporting.tables import ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 8  # methods in a panel of lines
MOST_BARS = 16  # rows of a chart of bars
MOST_LENGTHS = 12  # bars of tokens per round; the last one has all longer rounds
ROW, REST = 0.3, 1.2  # inches of a stacked bar, and of the rest of the panel


def acceptance_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return acceptance by position of the methods that draft; None if there are none."""
    rows = [row for row in ranked(summary) if row.acceptance_by_position]
    draw = partial(_acceptance, rows=rows, styles=styles_of(summary.spec.methods))
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


def length_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the distribution of tokens per round of the methods that draft; None if there are none."""
    rows = [
        row for row in ranked(summary) if row.length_counts and row.accepted_length and set(row.length_counts) != {1}
    ]
    draw = partial(_lengths, rows=rows, styles=styles_of(summary.spec.methods))
    return Panel(f"{title}: tokens per round", draw) if rows else None


def _lengths(axes: "Axes", rows: Sequence[MethodSummary], styles: Mapping[str, Style]) -> list[Label]:
    shown = selected(rows, MOST_LINES)
    longest = min(max(max(row.length_counts) for row in shown), MOST_LENGTHS)
    width = 0.84 / len(shown)
    for i, row in enumerate(shown):
        total, shares = sum(row.length_counts.values()), dict.fromkeys(range(longest + 1), 0.0)
        for length, count in row.length_counts.items():
            shares[min(length, longest)] += 100 * count / total
        places = [length + (i - (len(shown) - 1) / 2) * width for length in shares]
        mean = HUNDREDTHS.number(row.accepted_length or 0.0)
        axes.bar(
            places,
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


def time_panel(summary: RunSummary, title: str) -> Panel | None:
    """Return the milliseconds per committed token of each model and of the host; None if no forward was timed."""
    timed = [row for row in summary.measured if row.round_milliseconds]
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
    left, colors = [0.0] * len(rows), part_colors(parts)
    for part in parts:
        spent = [row.round_milliseconds.get(part, 0.0) / (row.accepted_length or 1.0) for row in rows]
        axes.barh(range(len(rows)), spent, left=left, height=0.62, color=colors[part], label=short(part))
        left = [a + b for a, b in zip(left, spent, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(
            TENTHS.number(total) if total >= 1.0 else HUNDREDTHS.number(total), (total, place), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
    list_methods(axes, [short(row.label) for row in rows], above=0.5, below=0.5)
    axes.margins(x=0.08)
    axes.set_xlabel("decoding time per committed token (ms)")
    note_rest(axes, left_out, "not shown")
    legend_above(axes)
    return []
