"""Reports of runs and suites as text, by the name of the format: `report -f`.

Markdown is written here.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError
from specbench.features.suites.papers.reproduction import counterpart
from specbench.features.suites.suite_report import Collected, suite_notes
from specbench.reporting import escaping
from specbench.reporting.conclusion import conclusion
from specbench.reporting.formats import export, html, latex
from specbench.reporting.notes import (
    common_notes,
    counted,
    method_lines,
    notes,
    notes_of,
    page_title,
    setup_line,
    short_notes,
    warnings_of,
    without_warnings,
)
from specbench.reporting.tables import Table, across, chosen_table, overview, tables_by_run, valueless


def markdown_of_runs(summaries: Sequence[RunSummary], full: bool = False) -> str:
    """Return the page of some runs as GitHub-flavored Markdown: the first table and notes; all of them with `full`."""
    lines = notes_of(summaries) if full else short_notes(summaries)
    parts = [
        f"# {escaping.markdown(page_title(summaries))}",
        *markdown_head(summaries, conclusion(summaries), lines),
    ]
    if not full:
        parts += [markdown_table(overview(summaries)), markdown_list(without_warnings(lines))]
        return "\n\n".join(filter(None, parts)) + "\n"
    if len(summaries) > 1:
        parts.append(markdown_table(across(summaries)))
    for summary, tables in tables_by_run(summaries):
        parts += map(markdown_table, tables)
        parts.append(markdown_list(notes(summary) if len(summaries) > 1 else without_warnings(lines)))
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_of_suite(collected: Collected, plots: list[Path], page_folder: Path) -> str:
    """Return the page of a suite. It links its plots relative to `page_folder`."""
    suite, first = collected.suite, collected.summaries[0]
    tiny = escaping.markdown(counterpart(suite))
    setups = {(s.machine, s.environment["cpu"], _revision(s)) for s in collected.summaries}
    others = f", the first of {len(setups)} machines or revisions" if len(setups) > 1 else ""
    runs = "1 run" if len(collected.folders) == 1 else f"{len(collected.folders)} runs"
    lines = suite_notes(collected)
    command = f"specbench run --suite {suite.requested or suite.name}"
    parts = [
        f"# {escaping.markdown(f'{suite.paper}, {suite.shows}: {suite.description}')}",
        f"{tiny}{' ' if tiny else ''}`{escaping.terminal(command).replace('`', '')}` measured"
        f" {runs} in {_duration(collected.index.minutes)} on {escaping.markdown(first.machine)},"
        f" {counted(first.environment['threads'], 'thread')}, at revision {_revision(first)[:9] or 'unknown'}{others}.",
        *markdown_head(collected.summaries, collected.conclusion, lines),
        *map(markdown_table, collected.tables),
        *(f"![{escaping.markdown(plot.stem)}]({quote(os.path.relpath(plot, page_folder))})" for plot in plots),
        markdown_list(without_warnings(lines)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_of_chosen(table: Table, summaries: Sequence[RunSummary]) -> str:
    """Return a table of runs whose columns the user has chosen, and the runs' common notes."""
    return f"{markdown_table(table)}\n\n{markdown_list([*common_notes(summaries), *valueless(table)])}\n"


def markdown_head(summaries: Sequence[RunSummary], sentences: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return what follows a page's title: the conclusion, the warnings in `lines`, what was measured, and the methods."""
    return [
        " ".join(escaping.markdown(f"{sentence.rstrip('.')}.") for sentence in sentences),
        markdown_list(warnings_of(lines)),
        escaping.markdown(setup_line(summaries)),
        markdown_list(method_lines(summaries)),
    ]


def markdown_list(lines: Iterable[str]) -> str:
    """Return lines as a Markdown list."""
    return "\n".join(f"- {escaping.markdown(line)}" for line in lines)


def markdown_table(table: Table) -> str:
    """Return a GitHub-flavored table, after its title if it has one."""
    table = table.compact()
    align = [":--" if table.is_text(i) else "--:" for i in range(len(table.heads))]
    title = f"**{escaping.markdown(table.title)}**\n\n" if table.title else ""
    heads, *rows = ([escaping.markdown_cell(cell) for cell in line] for line in (table.heads, *table.rows))
    return title + "\n".join(f"| {' | '.join(line)} |" for line in (heads, align, *rows))


def _duration(minutes: float) -> str:
    return f"{minutes:.1f} minutes" if minutes >= 1.0 else counted(round(60.0 * minutes), "second")


def _revision(summary: RunSummary) -> str:
    """Return the commit of a run; empty for an installed package."""
    return summary.environment["git"].get("revision", "")


CHOOSING = ("md", "latex")  # formats whose columns can be chosen
RUN_WRITERS: Mapping[str, Callable[[Sequence[RunSummary]], str]] = {
    "md": markdown_of_runs,
    "csv": export.runs_csv,
    "json": export.runs_json,
    "latex": latex.of_runs,
    "html": html.of_runs,
    "passport": export.passports,
}
SUITE_WRITERS: Mapping[str, Callable[[Collected], str]] = {
    "csv": lambda collected: export.as_csv(collected.points),
    "json": lambda collected: export.as_json(collected.points),
    "html": html.of_suite,
}


def suite_text(collected: Collected, form: str, drawn: Sequence[Path], page_folder: Path, full: bool = False) -> str:
    """Return a suite in a format, in LaTeX with every table if `full`.

    A Markdown page links the drawn SVGs, or else PNGs, relative to `page_folder`.
    """
    if form == "md":
        shown = [path for path in drawn if path.suffix == ".svg"] or [path for path in drawn if path.suffix == ".png"]
        return markdown_of_suite(collected, shown, page_folder)
    if form == "latex":
        return latex.of_suite(collected, full)
    if form not in SUITE_WRITERS:
        raise ConfigError(
            f"format = {form!r} applies to run folders; a suite has {', '.join(SUITE_WRITERS)}, md and latex"
        )
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
            return markdown_of_runs(summaries, full)
        return latex.of_runs(summaries, full) if form == "latex" else RUN_WRITERS[form](summaries)
    if form not in CHOOSING:
        raise ConfigError(f"columns can be chosen for {' and '.join(CHOOSING)}; {form} contains every value")
    table = chosen_table(summaries, columns)
    return latex.of_chosen(table, summaries) if form == "latex" else markdown_of_chosen(table, summaries)
