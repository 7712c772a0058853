"""Runs and suites as pages of GitHub-flavored Markdown."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from specbench.analysis.run_summary import RunSummary
from specbench.reporting import escaping
from specbench.reporting.conclusion import conclusion
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
from specbench.reporting.suites import Collected, counterpart, suite_notes
from specbench.reporting.tables import Table, across, overview, tables_by_run, valueless


def of_runs(summaries: Sequence[RunSummary], full: bool = False) -> str:
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


def of_suite(collected: Collected, plots: list[Path], page_folder: Path) -> str:
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


def of_chosen(table: Table, summaries: Sequence[RunSummary]) -> str:
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
