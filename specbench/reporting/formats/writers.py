"""Reports of runs as text, by the name of the format: `report -f`.

Markdown is written here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError
from specbench.note import Note, warnings_of, without_warnings
from specbench.reporting import escaping
from specbench.reporting.conclusion import conclusion
from specbench.reporting.formats import acceptance_report, export, html, latex
from specbench.reporting.notes import common_notes, notes, notes_of, short_notes
from specbench.reporting.setup_lines import method_lines, page_title, setup_line
from specbench.reporting.tables import Table, across, chosen_table, overview, tables_by_run, valueless


def markdown_of_runs(summaries: Sequence[RunSummary], full: bool = False) -> str:
    """Return the page of some runs as GitHub-flavored Markdown: the first table and notes; all of them with `full`."""
    lines = notes_of(summaries) if full else short_notes(summaries)
    parts = [
        f"# {escaping.markdown(page_title(summaries))}",
        *markdown_head(summaries, conclusion(summaries), lines),
    ]
    if not full:
        parts += [markdown_table(overview(summaries)), markdown_notes(without_warnings(lines))]
        return "\n\n".join(filter(None, parts)) + "\n"
    if len(summaries) > 1:
        parts.append(markdown_table(across(summaries)))
    for summary, tables in tables_by_run(summaries):
        parts += map(markdown_table, tables)
        parts.append(markdown_notes(notes(summary) if len(summaries) > 1 else without_warnings(lines)))
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_of_chosen(table: Table, summaries: Sequence[RunSummary]) -> str:
    """Return a table of runs whose columns the user has chosen, and the runs' common notes."""
    return f"{markdown_table(table)}\n\n{markdown_notes([*common_notes(summaries), *valueless(table)])}\n"


def markdown_head(summaries: Sequence[RunSummary], sentences: Sequence[Note], remarks: Sequence[Note]) -> list[str]:
    """Return what follows a page's title: the conclusion, the warnings among remarks, what was measured, and the methods."""
    return [
        " ".join(escaping.markdown(f"{str(sentence).rstrip('.')}.") for sentence in sentences),
        markdown_notes(warnings_of(remarks)),
        escaping.markdown(setup_line(summaries)),
        markdown_list(method_lines(summaries)),
    ]


def markdown_list(lines: Iterable[str]) -> str:
    """Return lines as a Markdown list."""
    return "\n".join(f"- {escaping.markdown(line)}" for line in lines)


def markdown_notes(notes: Iterable[Note]) -> str:
    """Return notes as a Markdown list."""
    return markdown_list(note.line for note in notes)


def markdown_table(table: Table) -> str:
    """Return a GitHub-flavored table, after its title if it has one."""
    table = table.compact()
    align = [":--" if table.is_text(i) else "--:" for i in range(len(table.heads))]
    title = f"**{escaping.markdown(table.title)}**\n\n" if table.title else ""
    heads, *rows = ([escaping.markdown_cell(cell) for cell in line] for line in (table.heads, *table.rows))
    return title + "\n".join(f"| {' | '.join(line)} |" for line in (heads, align, *rows))


CHOOSING = ("md", "latex")  # formats whose columns can be chosen
RUN_WRITERS: Mapping[str, Callable[[Sequence[RunSummary]], str]] = {
    "md": markdown_of_runs,
    "csv": export.runs_csv,
    "json": export.runs_json,
    "latex": latex.of_runs,
    "html": html.of_runs,
    "acceptance": acceptance_report.reports,
}


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
