"""The rows of the interactive chart of speedups on an HTML page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.reporting import escaping
from specbench.reporting.column import SCORE, TIMES, lossless
from specbench.reporting.columns import column_of
from specbench.reporting.conclusion import SPEEDUPS, speedup_of
from specbench.reporting.plots.styles import Style, styles_of
from specbench.reporting.tables import ranked


class ChartRow(TypedDict):
    """One method of one run: the heading of its block, its speedup with interval, and what a tooltip says about it."""

    task: str
    heading: str
    method: str
    color: str
    marker: str
    value: float
    low: float | None
    high: float | None
    corrected: float | None
    text: str
    about: str


def chart_rows(summaries: Sequence[RunSummary]) -> list[ChartRow]:
    """Return a row for every method with a speedup, the baselines included at 1.

    Headings contain pair, task, temperature and clock, and the run if these do not identify it.
    """
    places = [_place(summary) for summary in summaries]
    styles = styles_of(method for summary in summaries for method in summary.spec.methods)
    return [
        row
        for summary, place in zip(summaries, places, strict=True)
        for row in _rows(summary, place if places.count(place) == 1 else f"{place}, {summary.run}", styles)
    ]


def _place(summary: RunSummary) -> str:
    return f"{summary.title}, T = {summary.decoding.temperature:g}"


def _rows(summary: RunSummary, place: str, styles: Mapping[str, Style]) -> Iterator[ChartRow]:
    title = column_of(SPEEDUPS[summary.clock]).title_in(summary)
    for row in ranked(summary):
        speedup = speedup_of(summary, row)
        if speedup is None and row.method != summary.baseline:
            continue
        yield ChartRow(
            task=escaping.terminal(summary.task),
            heading=escaping.terminal(f"{place}: {title}"),
            method=escaping.terminal(row.label),
            color=styles[row.method].color,
            marker=styles[row.method].marker,
            value=speedup.value if speedup else 1.0,
            low=speedup.low if speedup else None,
            high=speedup.high if speedup else None,
            corrected=None if summary.end_to_end else row.number("corrected"),
            text=TIMES.text(speedup) if speedup else "1x (baseline)",
            about=escaping.terminal_lines("\n".join(_about(summary, row, title))),
        )


def _about(summary: RunSummary, row: MethodSummary, title: str) -> Iterator[str]:
    """Yield the lines of a tooltip."""
    speedup = speedup_of(summary, row)
    yield row.label if speedup is None else f"{row.label}: {TIMES.text(speedup)} {title}"
    for key in ("tokens_per_second", "acceptance_rate", "accepted_length", "corrected"):
        if row.value(key) is not None:
            yield f"{column_of(key).title}: {column_of(key).text(summary, row)}"
    if row.rank:
        yield f"rank: {row.rank}"
    if declared := lossless(summary, row):
        yield f"lossless: {declared}"
    if score := summary.score(row):
        yield f"{summary.headline}: {SCORE.text(score)}"
