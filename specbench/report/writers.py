"""Reports of runs and suites as text, by the name of the format: Markdown, LaTeX, CSV, JSON or HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError
from specbench.report import export, html, latex, markdown_page
from specbench.report.chosen import chosen_table, valueless
from specbench.report.conditions import conditions
from specbench.report.latex import Captioned
from specbench.report.notes import common_notes
from specbench.report.suite_report import Collected
from specbench.report.tables import across, markdown, markdown_list, markdown_table, of_runs


def _latex_of_runs(summaries: Sequence[RunSummary]) -> str:
    several = [Captioned(across(summaries), conditions(summaries))] if len(summaries) > 1 else []
    each = (Captioned(table, conditions([summary])) for summary, tables in of_runs(summaries) for table in tables)
    return latex.latex([*several, *each])


def _latex_of_suite(collected: Collected) -> str:
    text, name = conditions(collected.summaries), collected.suite.name
    return latex.latex(Captioned(table, text if table.measured else "", name) for table in collected.tables)


CHOOSING = ("md", "latex")  # formats whose columns can be chosen
RUN_WRITERS: Mapping[str, Callable[[Sequence[RunSummary]], str]] = {
    "md": markdown,
    "csv": export.runs_csv,
    "json": export.runs_json,
    "latex": _latex_of_runs,
    "html": html.of_runs,
}
SUITE_WRITERS: Mapping[str, Callable[[Collected], str]] = {
    "csv": lambda collected: export.as_csv(collected.points),
    "json": lambda collected: export.as_json(collected.points),
    "latex": _latex_of_suite,
    "html": html.of_suite,
}


def suite_text(collected: Collected, form: str, drawn: Sequence[Path], beside: Path) -> str:
    """Return a suite in a format. A Markdown page links the drawn SVGs, or else PNGs, relative to the folder `beside`."""
    if form == "md":
        shown = [path for path in drawn if path.suffix == ".svg"] or [path for path in drawn if path.suffix == ".png"]
        return markdown_page.page(collected, shown, beside)
    return SUITE_WRITERS[form](collected)


def runs_text(summaries: Sequence[RunSummary], form: str, columns: Sequence[str] = (), full: bool = False) -> str:
    """Return runs in a format: with every table if `full`, which matters to `md`, or as one table of the named columns.

    Raises:
        ConfigError: The format or a column is unknown, or the format is neither `md` nor `latex` and columns are named.
    """
    if form not in RUN_WRITERS:
        raise ConfigError(f"format = {form!r}: use one of {', '.join(RUN_WRITERS)}")
    if not columns:
        return markdown(summaries, full) if form == "md" else RUN_WRITERS[form](summaries)
    if form not in CHOOSING:
        raise ConfigError(f"columns can be chosen for {' and '.join(CHOOSING)}; {form} contains every value")
    table = chosen_table(summaries, columns)
    if form == "latex":
        return latex.latex([Captioned(replace(table, title=""), conditions(summaries), table.title)])
    return f"{markdown_table(table)}\n\n{markdown_list([*common_notes(summaries), *valueless(table)])}\n"
