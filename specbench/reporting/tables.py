"""Tables of runs, and tables as Markdown. The columns are those of `specbench/reporting/columns.py`."""

import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.chains import NONE
from specbench.analysis.differences import Line, differences, distinct_titles
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.analysis.win_rate import judged_of, win_rate_values, win_rates
from specbench.reporting import conditions, escaping
from specbench.reporting.column import Column, Priority
from specbench.reporting.columns import column_of, columns_of, merged_columns
from specbench.reporting.conclusion import conclusion
from specbench.reporting.notes import notes, notes_of, short_notes, warnings_of, without_warnings
from specbench.reporting.run_tables import TABLES
from specbench.reporting.suite_columns import SUITE_COLUMNS
from specbench.runs.scores import Judged

NUMBER = re.compile(r"[-+]?\d")  # start of a cell with a number


@dataclass(frozen=True)
class Table:
    """A title, column headings, and rows of text.

    `keys` are the columns' keys in the registry, in order, empty for columns that are not in it. It is empty if no column is.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    keys: tuple[str, ...] = ()
    measured: bool = True  # False for numbers that a paper prints
    places: int = 1  # columns at the left that say what a row is about
    comparable: bool = (
        True  # False if a column has rows of several pairs, tasks or temperatures that no place distinguishes
    )
    kept: tuple[str, ...] = ()  # keys of columns that stay where the table is too wide, whatever their priority

    def is_text(self, column: int) -> bool:
        """Return whether a column is aligned to the left: the first, and those in which most cells are not numbers."""
        known = [row[column] for row in self.rows if row[column] not in ("", NONE)]
        return column == 0 or 2 * sum(NUMBER.match(cell) is not None for cell in known) < len(known)

    def compact(self) -> "Table":
        """Return the table without the columns, and the rows, in which no cell has a value."""
        rows = [row for row in self.rows if any(cell != NONE for cell in row[self.places :])] or self.rows
        unused = {i for i in range(1, len(self.heads)) if rows and all(row[i] == NONE for row in rows)}
        return replace(self, rows=rows).without(unused)

    @property
    def droppable(self) -> list[int]:
        """The columns that may be hidden where a table is too wide, the least important first."""
        ranks = {i: column_of(key).priority for i, key in enumerate(self.keys) if i and key and key not in self.kept}
        return sorted((i for i in ranks if ranks[i] < Priority.high), key=lambda i: (ranks[i], -i))

    def dropped(self, order: Sequence[int], fits: Callable[["Table"], bool]) -> set[int]:
        """Return the columns to hide so that the table fits, the first of `order` first.

        Of these, the columns for which there is room after all stay, the last of `order` first.
        """
        hidden: list[int] = []
        for i in order:
            if fits(self.without({*hidden})):
                break
            hidden.append(i)
        for i in reversed(hidden):
            if fits(self.without({*hidden} - {i})):
                hidden.remove(i)
        return {*hidden}

    def without(self, dropped: Set[int]) -> "Table":
        """Return the table without the columns at some positions."""

        def kept(values: Sequence[str]) -> list[str]:
            return [value for i, value in enumerate(values) if i not in dropped]

        return replace(
            self, heads=kept(self.heads), rows=list(map(kept, self.rows)), keys=tuple(kept(self.keys)),
            places=self.places - sum(i < self.places for i in dropped),
        )  # fmt: skip


def tables(summary: RunSummary, title: str = "") -> list[Table]:
    """Return the tables of a run, without empty columns and tables, the fastest method first.

    `title` starts every title if the report has several runs.
    """
    out: list[Table] = []
    for table in TABLES:
        if not table.shown(summary):
            continue
        own = table.title.format(baseline=summary.baseline, headline=summary.headline)
        first = title or (summary.title if not out else "")
        made = table_of(summary, columns_of(table.key, summary), ": ".join(filter(None, (first, own))))
        made = (made if not out else replace(made, rows=made.rows[: len(summary.measured)])).compact()
        made = replace(made, kept=table.kept)
        if len(made.heads) > 1 or not out:
            out.append(made)
    return out


def table_of(summary: RunSummary, columns: Sequence[Column], title: str) -> Table:
    """Return a table of a run with these columns, the fastest method first, those without a completed generation last."""
    rows = [[column.text(summary, row) for column in columns] for row in ranked(summary)]
    rows += [[row.label, *_failed(row, len(columns) - 1)] for row in _unmeasured(summary)]
    keys = tuple(column.key for column in columns)
    return Table(title, [column.title_in(summary) for column in columns], rows, keys)


def ranked(summary: RunSummary) -> list[MethodSummary]:
    """Return the methods of which a generation completed, the fastest first."""

    def speed(row: MethodSummary) -> float:
        return row.number("end_to_end_tokens_per_second" if summary.end_to_end else "tokens_per_second") or 0.0

    return sorted(summary.measured, key=speed, reverse=True)


def across(summaries: Sequence[RunSummary], chosen: Sequence[Column] | None = None) -> Table:
    """Return the merged table of several runs: a row per run and method, and a column per property in which rows differ.

    If all runs have one task, the title names it. `chosen` replaces the measured columns, and keeps the column of the task.
    """
    lines = [Line(s, row) for s in summaries for row in [*ranked(s), *_unmeasured(s)]]
    columns = list(merged_columns(list(summaries)) if chosen is None else chosen)
    differing = differences(lines)
    pairs = differing.pop("pair", None)
    places = [*(["pair"] if pairs else []), "task", "method", *differing]
    headings = [*places, *(column.title for column in columns)]
    keys = (*[""] * len(places), *(column.key for column in columns))
    rows = []
    for i, (summary, row) in enumerate(lines):
        place = [summary.task, row.label, *(texts[i] for texts in differing.values())]
        measured = [column.text(summary, row) for column in columns] if row.measured else _failed(row, len(columns))
        rows.append([*([pairs[i]] if pairs else []), *place, *measured])
    names = list(dict.fromkeys(summary.pair for summary in summaries))
    title = names[0] if len(names) == 1 else f"{len(summaries)} runs"
    table = Table(title, headings, rows, keys, places=len(headings) - len(columns))
    if chosen is not None:
        return table
    table, (task, *others) = table.compact(), dict.fromkeys(summary.task for summary in summaries)
    return table if others else replace(table.without({table.heads.index("task")}), title=f"{title}, {task}")


def of_runs(summaries: Sequence[RunSummary]) -> list[tuple[RunSummary, list[Table]]]:
    """Return the tables of each run. If there are several runs, no two titles are equal."""
    titles = distinct_titles(summaries) if len(summaries) > 1 else [""]
    return [
        (summary, [*tables(summary, title), *_judged(summary, title)])
        for summary, title in zip(summaries, titles, strict=True)
    ]


def _judged(summary: RunSummary, title: str) -> list[Table]:
    judged = judged_of(Path(summary.folder))
    return [judged_table(judged, title)] if judged and judged["rows"] else []


def judged_table(judged: Judged, title: str = "") -> Table:
    """Return the wins, ties and losses of a judged method as a table of one row."""
    values = win_rate_values(win_rates(judged["rows"]))
    columns = [column for column in SUITE_COLUMNS if column.key in values]
    return Table(
        ": ".join(filter(None, (title, f"Judged by {judged['label']} against {judged['against']}"))),
        ["method", *(column.title for column in columns)],
        [[judged["of"], *(column.format.text(values[column.key]) for column in columns)]],
        ("", *(column.key for column in columns)),
    )


def overview(summaries: Sequence[RunSummary]) -> Table:
    """Return the first table of a report: of one run its speeds and scores, of several runs the merged table."""
    return across(summaries) if len(summaries) > 1 else tables(summaries[0])[0]


def markdown(summaries: Sequence[RunSummary], full: bool = False) -> str:
    """Return the page of some runs as GitHub-flavored Markdown: the first table and notes; all of them with `full`."""
    lines = notes_of(summaries) if full else short_notes(summaries)
    parts = [
        f"# {escaping.markdown(conditions.title(summaries))}",
        *markdown_head(summaries, conclusion(summaries), lines),
    ]
    if not full:
        parts += [markdown_table(overview(summaries)), markdown_list(without_warnings(lines))]
        return "\n\n".join(filter(None, parts)) + "\n"
    if len(summaries) > 1:
        parts.append(markdown_table(across(summaries)))
    for summary, each in of_runs(summaries):
        parts += map(markdown_table, each)
        parts.append(markdown_list(notes(summary) if len(summaries) > 1 else without_warnings(lines)))
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_head(summaries: Sequence[RunSummary], sentences: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return what follows a page's title: the conclusion, the warnings in `lines`, what was measured, and the methods."""
    return [
        " ".join(escaping.markdown(f"{each.rstrip('.')}.") for each in sentences),
        markdown_list(warnings_of(lines)),
        escaping.markdown(conditions.about(summaries)),
        markdown_list(conditions.methods(summaries)),
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


def _unmeasured(summary: RunSummary) -> list[MethodSummary]:
    """Return the methods of which every generation failed."""
    return [row for row in summary.methods if row.failed and not row.measured]


def _failed(row: MethodSummary, columns: int) -> list[str]:
    """Return the texts of a method without a completed generation."""
    return [f"all {row.failed} failed", *[NONE] * (columns - 1)][:columns]
