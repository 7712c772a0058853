"""Tables of runs, and tables as Markdown. The columns are those of `specbench/report/columns.py`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specbench.analysis.chains import NONE
from specbench.analysis.differences import Line, differences, distinct_titles
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.report import escaping
from specbench.report.column import Column
from specbench.report.columns import columns_of, merged_columns
from specbench.report.notes import notes
from specbench.report.run_tables import TABLES


@dataclass(frozen=True)
class Table:
    """A title, column headings, and rows of text. The first column is aligned to the left, all others to the right."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    measured: bool = True  # False for numbers that a paper prints


def tables(summary: RunSummary, title: str = "") -> list[Table]:
    """Return the tables of a run. `title` starts every title if the report has several runs."""
    out: list[Table] = []
    for table in TABLES:
        if not table.shown(summary):
            continue
        own = table.title.format(baseline=summary.baseline, headline=summary.headline)
        first = title or (f"{summary.pair}, {summary.task}" if not out else "")
        made = table_of(summary, columns_of(table.key, summary), ": ".join(filter(None, (first, own))))
        out.append(made if not out else replace(made, rows=made.rows[: len(summary.measured)]))
    return out


def table_of(summary: RunSummary, columns: Sequence[Column], title: str) -> Table:
    """Return a table of a run with these columns. Methods without a completed generation come last."""
    rows = [[column.text(summary, row) for column in columns] for row in summary.measured]
    failed = [row for row in summary.methods if row.failed and not row.measured]
    rows += [[row.label, *_failed(row, len(columns) - 1)] for row in failed]
    return Table(title, [column.title_in(summary) for column in columns], rows)


def across(summaries: Sequence[RunSummary], chosen: Sequence[Column] | None = None) -> Table:
    """Return the merged table of several runs: a row per run and method, and a column per property in which rows differ.

    `chosen` replaces the measured columns.
    """
    lines = [Line(s, row) for s in summaries for row in s.methods if row.measured or row.failed]
    columns = list(merged_columns(list(summaries)) if chosen is None else chosen)
    differing = differences(lines)
    pairs = differing.pop("pair", None)
    headings = [*(["pair"] if pairs else []), "task", "method", *differing, *(column.title for column in columns)]
    rows = []
    for i, (summary, row) in enumerate(lines):
        place = [summary.task, row.label, *(texts[i] for texts in differing.values())]
        measured = [column.text(summary, row) for column in columns] if row.measured else _failed(row, len(columns))
        rows.append([*([pairs[i]] if pairs else []), *place, *measured])
    names = list(dict.fromkeys(summary.pair for summary in summaries))
    return Table(names[0] if len(names) == 1 else f"{len(summaries)} runs", headings, rows)


def of_runs(summaries: Sequence[RunSummary]) -> list[tuple[RunSummary, list[Table]]]:
    """Return the tables of each run. If there are several runs, no two titles are equal."""
    titles = distinct_titles(summaries) if len(summaries) > 1 else [""]
    return [(summary, tables(summary, title)) for summary, title in zip(summaries, titles, strict=True)]


def all_tables(summaries: Sequence[RunSummary]) -> list[Table]:
    """Return the merged table, if there are several runs, and the tables of each run."""
    merged = [across(summaries)] if len(summaries) > 1 else []
    return merged + [table for _, each in of_runs(summaries) for table in each]


def markdown(summaries: Sequence[RunSummary]) -> str:
    """Return all tables as GitHub-flavored Markdown, with notes."""
    parts = [markdown_table(across(summaries))] if len(summaries) > 1 else []
    for summary, each in of_runs(summaries):
        parts += map(markdown_table, each)
        parts.append(markdown_list(notes(summary)))
    return "\n\n".join(parts) + "\n"


def markdown_list(lines: Iterable[str]) -> str:
    """Lines as a Markdown list."""
    return "\n".join(f"- {escaping.markdown(line)}" for line in lines)


def markdown_table(table: Table) -> str:
    """Return a GitHub-flavored table, after its title if it has one."""
    align = [":--", *["--:"] * (len(table.heads) - 1)]
    title = f"**{escaping.markdown(table.title)}**\n\n" if table.title else ""
    heads, *rows = ([escaping.markdown_cell(cell) for cell in line] for line in (table.heads, *table.rows))
    return title + "\n".join(f"| {' | '.join(line)} |" for line in (heads, align, *rows))


def _failed(row: MethodSummary, columns: int) -> list[str]:
    """Return the texts of a method without a completed generation."""
    return [f"all {row.failed} failed", *[NONE] * (columns - 1)][:columns]
