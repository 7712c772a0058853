"""Reports of runs and suites as text, by the name of the format: Markdown, LaTeX, CSV, JSON or HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError
from specbench.reporting import export, html, latex, markdown_page
from specbench.reporting.conclusion import headline, reservations
from specbench.reporting.conditions import conditions
from specbench.reporting.latex import Captioned
from specbench.reporting.markdown_page import suite_notes
from specbench.reporting.notes import common_notes, notes_of, warnings_of
from specbench.reporting.suite_report import Collected
from specbench.reporting.tables import (
    Table,
    chosen_table,
    markdown,
    markdown_list,
    markdown_table,
    of_runs,
    overview,
    valueless,
)


def latex_of_runs(summaries: Sequence[RunSummary], full: bool = False) -> str:
    """Return the first table of runs, with the conclusion in its caption and warnings as its note; all tables if `full`."""
    first = _captioned(overview(summaries), summaries)
    if not full:
        return latex.latex([first])
    found = [(summary, table) for summary, tables in of_runs(summaries) for table in tables]
    rest = found if len(summaries) > 1 else found[1:]
    return latex.latex([first, *(Captioned(table, conditions([one]), one.run) for one, table in rest)])


def _captioned(table: Table, summaries: Sequence[RunSummary]) -> Captioned:
    warnings = [*warnings_of(notes_of(summaries)), *reservations(summaries)]
    return Captioned(table, conditions(summaries), _name(summaries), " ".join(headline(summaries)), warnings)


def _name(summaries: Sequence[RunSummary]) -> str:
    """Return a name for labels that no other selection of runs has."""
    if len(summaries) == 1:
        return summaries[0].run
    return f"{len(summaries)} runs {crc32(' '.join(sorted(summary.run for summary in summaries)).encode()):08x}"


def latex_of_suite(collected: Collected, full: bool = False) -> str:
    """Return the first table of a suite, with the conclusion in its caption and warnings as its note; all if `full`."""
    text, name = conditions(collected.summaries), collected.suite.name
    warnings = warnings_of(suite_notes(collected))
    found = [Captioned(table, text if table.measured else "", name) for table in collected.tables]
    first = [replace(each, conclusion=" ".join(collected.conclusion), warnings=warnings) for each in found[:1]]
    return latex.latex([*first, *(found[1:] if full else [])])


CHOOSING = ("md", "latex")  # formats whose columns can be chosen
RUN_WRITERS: Mapping[str, Callable[[Sequence[RunSummary]], str]] = {
    "md": markdown,
    "csv": export.runs_csv,
    "json": export.runs_json,
    "latex": latex_of_runs,
    "html": html.of_runs,
}
SUITE_WRITERS: Mapping[str, Callable[[Collected], str]] = {
    "csv": lambda collected: export.as_csv(collected.points),
    "json": lambda collected: export.as_json(collected.points),
    "html": html.of_suite,
}


def suite_text(collected: Collected, form: str, drawn: Sequence[Path], beside: Path, full: bool = False) -> str:
    """Return a suite in a format, in LaTeX with every table if `full`.

    A Markdown page links the drawn SVGs, or else PNGs, relative to the folder `beside`.
    """
    if form == "md":
        shown = [path for path in drawn if path.suffix == ".svg"] or [path for path in drawn if path.suffix == ".png"]
        return markdown_page.page(collected, shown, beside)
    if form == "latex":
        return latex_of_suite(collected, full)
    return SUITE_WRITERS[form](collected)


def runs_text(summaries: Sequence[RunSummary], form: str, columns: Sequence[str] = (), full: bool = False) -> str:
    """Return runs in a format, in `md` and `latex` with every table if `full`, or as one table of the named columns.

    Raises:
        ConfigError: The format or a column is unknown, or the format is neither `md` nor `latex` and columns are named.
    """
    if form not in RUN_WRITERS:
        raise ConfigError(f"format = {form!r}: use one of {', '.join(RUN_WRITERS)}")
    if not columns:
        if form == "md":
            return markdown(summaries, full)
        return latex_of_runs(summaries, full) if form == "latex" else RUN_WRITERS[form](summaries)
    if form not in CHOOSING:
        raise ConfigError(f"columns can be chosen for {' and '.join(CHOOSING)}; {form} contains every value")
    table = chosen_table(summaries, columns)
    if form == "latex":
        return latex.latex([replace(_captioned(replace(table, title=""), summaries), may_drop=False)])
    return f"{markdown_table(table)}\n\n{markdown_list([*common_notes(summaries), *valueless(table)])}\n"
