"""Plots as files: of a suite, of runs, and of quality-latency curves."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from specbench.analysis.differences import distinct_titles
from specbench.analysis.points import Point
from specbench.analysis.run_summary import RunSummary
from specbench.config.suite_layout import PROMPT, PlotSpec
from specbench.reporting.figures import FORMATS, MOST_COLUMNS, Panel, file_name, save
from specbench.reporting.prompt_plot import prompt_panels
from specbench.reporting.run_plots import run_plots
from specbench.reporting.suite_plots import line_panels, speed_panels
from specbench.reporting.suite_report import Collected
from specbench.reporting.verifiers import roc_panels, run_length_panels

CURVE = PlotSpec(x="relative_latency", y="score", panels=("task", "T"), flat=("ar",))
MOST_WIDE = 4  # panels over the whole width of a figure


def of_suite(collected: Collected, into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the speedups of a suite, the plots that it defines, and the plots of the first run of each pair."""
    specs, name = collected.suite.plots, collected.suite.name
    drawn: list[Path] = []
    for i, spec in enumerate(specs):
        number = f"-{i + 1}" if len(specs) > 1 else ""
        is_by_prompt = spec.x == PROMPT
        panels = prompt_panels(collected.summaries) if is_by_prompt else line_panels(spec, collected.points)
        drawn += save(into / f"{name}{number}", panels, formats, columns=columns_of(spec, panels))
    drawn += save(into / (f"{name}-speedup" if specs else name), speed_panels(collected.points), formats, columns=1)
    drawn += save(into / f"{name}-roc", roc_panels(collected.verifiers), formats)
    drawn += save(into / f"{name}-run-length", run_length_panels(collected.verifiers), formats)
    others = ("speedup", "roc") if collected.verifiers else ("speedup",)  # drawn above, over all runs
    first_of_pair = {summary.pair: summary for summary in reversed(collected.summaries)}
    for summary in collected.summaries:
        if summary is first_of_pair[summary.pair]:
            panels = [panel for kind, panel in run_plots(summary).items() if kind not in others]
            drawn += save(into / f"{name}-explained-{summary.pair}", panels, formats, columns=1)
    return drawn


def of_runs(summaries: Sequence[RunSummary], into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the plots of each run, a file for each kind of plot."""
    titles = distinct_titles(summaries) if len(summaries) > 1 else [""]
    names = Counter[str]()
    drawn: list[Path] = []
    for summary, title in zip(summaries, titles, strict=True):
        name = file_name(summary.run)
        names[name] += 1
        number = f"-{names[name]}" if names[name] > 1 else ""  # folders in two places with one name
        for kind, panel in run_plots(summary, title).items():
            drawn += save(into / f"{name}{number}-{kind}", [panel], formats)
    return drawn


def of_curve(name: str, points: Sequence[Point], into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw quality over relative latency of one run's curves."""
    panels = line_panels(CURVE, points)
    return save(into / f"{name}-curve", panels, formats, columns=columns_of(CURVE, panels))


def columns_of(spec: PlotSpec, panels: Sequence[Panel]) -> int:
    """Return the columns of a figure: one for a few panels with labels beside points, which need room."""
    return 1 if not (spec.is_swept or spec.diagonal) and len(panels) <= MOST_WIDE else MOST_COLUMNS
