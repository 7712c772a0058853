"""Tables for a paper, in LaTeX with booktabs. Each has a caption, a label, and warnings as a note.

A table is one environment, or several if it has more than MOST_ROWS rows. The least important columns are left out until the
rows have at most MOST_CHARACTERS characters. LaTeX scales a table that is still wider than the text.
"""

import itertools
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite
from zlib import crc32

from specbench.analysis.metric import metric_of
from specbench.analysis.number_format import NONE, NumberCell
from specbench.analysis.run_summary import RunSummary
from specbench.note import Note, warnings_of
from specbench.reporting import escaping
from specbench.reporting.columns import BY_KEY
from specbench.reporting.conclusion import headline, reservations
from specbench.reporting.notes import notes_of
from specbench.reporting.setup_lines import conditions
from specbench.reporting.tables import Table, overview, tables_by_run

PREAMBLE = r"""% Requires \usepackage{booktabs,graphicx}.
% Tables that are too wide lose their least important columns, and are scaled to the text width. To choose columns:
% specbench report -f latex --columns speedup,acceptance_rate"""
SCALED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
# Columns of a setting: the best value is the best among rows that are equal in these
SETTING_HEADS = ("pair", "task", "T", "group", "data", "baseline", "machine", "simulated")
LONGEST_LABEL = 60  # characters after the prefix
MOST_ROWS = 35  # of a page
MOST_CHARACTERS = 95  # of a row; scaled to the text width, its type is about two thirds of the full size


@dataclass(frozen=True)
class Captioned:
    """A table with the contents of its caption and note. `name` is the name of its report, for the label."""

    table: Table
    conditions: str = ""
    name: str = ""
    conclusion: str = ""
    warnings: Sequence[Note] = ()
    may_drop: bool = True  # columns that do not fit; False if the user has chosen them


def of_runs(summaries: Sequence[RunSummary], full: bool = False) -> str:
    """Return the first table of runs, with the conclusion in its caption and warnings as its note.

    With `full`, the other tables follow: for several runs, all tables of each run, as the first one merges their rows.
    """
    first = _captioned(overview(summaries), summaries)
    if not full:
        return latex([first])
    single = [(summary, table) for summary, tables in tables_by_run(summaries) for table in tables]
    rest = single if len(summaries) > 1 else single[1:]
    return latex([first, *(Captioned(table, conditions([one]), one.run) for one, table in rest)])


def of_chosen(table: Table, summaries: Sequence[RunSummary]) -> str:
    """Return a table of runs whose columns the user has chosen."""
    return latex([replace(_captioned(replace(table, title=""), summaries), may_drop=False)])


def _captioned(table: Table, summaries: Sequence[RunSummary]) -> Captioned:
    warnings = [*warnings_of(notes_of(summaries)), *reservations(summaries)]
    return Captioned(
        table, conditions(summaries), _report_name(summaries), " ".join(map(str, headline(summaries))), warnings
    )


def _report_name(summaries: Sequence[RunSummary]) -> str:
    """Return a name for labels that no other selection of runs has: the run, or the number of runs and a checksum."""
    if len(summaries) == 1:
        return summaries[0].run
    return f"{len(summaries)} runs {crc32(' '.join(sorted(summary.run for summary in summaries)).encode()):08x}"


def latex(tables: Iterable[Captioned]) -> str:
    """Return LaTeX for a document that loads the packages booktabs and graphicx."""
    used: set[str] = set()
    return "\n\n".join([PREAMBLE, *(_environment(table, used) for table in tables)]) + "\n"


def _environment(captioned: Captioned, used: set[str]) -> str:
    """Return the environment of a table, or several environments for a table with more rows than fit on a page."""
    table = captioned.table.compact()
    caption = _caption(table.title, captioned.conclusion, _capital(captioned.conditions))
    dropped = table.dropped(table.droppable, _fits) if captioned.may_drop else set()
    left_out = ", ".join(table.heads[i] for i in sorted(dropped))
    table = table.without(dropped)
    columns = [_Column(head, [row[i] for row in table.rows]) for i, head in enumerate(table.heads)]
    best = _best(table)
    rows = [
        " & ".join(columns[c].cell(text, is_best=(r, c) in best) for c, text in enumerate(row))
        for r, row in enumerate(table.rows)
    ]
    names = {cell for row in table.rows for cell in row}
    remarks = [note.text for note in captioned.warnings]
    remarks += [f"Columns that were left out, as the table would be too wide: {left_out}"] if left_out else []
    lines: list[str] = []
    pages = _pages(rows)
    for number, page in enumerate(pages, 1):
        later = _caption(table.title, f"Continued, {number} of {len(pages)}")
        shown = caption if number == 1 else later
        lines += [
            r"\begin{table}", r"\centering", *([rf"\caption{{{shown}}}"] if shown else []),
            rf"\label{{{_label(f'{captioned.name} {table.title}', used)}}}", SCALED,
            rf"\begin{{tabular}}{{{''.join(column.alignment for column in columns)}}}", r"\toprule",
            rf"{' & '.join(column.head for column in columns)} \\", r"\midrule", *(rf"{row} \\" for row in page),
            r"\bottomrule", r"\end{tabular}}",
            *(_note(remarks, names) if number == len(pages) else []), r"\end{table}",
        ]  # fmt: skip
    return "\n".join(lines)


def _fits(table: Table) -> bool:
    """Return whether a table's rows are short enough, with each heading in one line per part between commas."""
    widths = (
        max(len(text) for text in (*head.split(", "), *(row[i] for row in table.rows)))
        for i, head in enumerate(table.heads)
    )
    return sum(widths) <= MOST_CHARACTERS


def _pages(rows: Sequence[str]) -> list[Sequence[str]]:
    """Return the rows in parts of nearly equal size, none larger than a page: 36 rows are 18 and 18, not 35 and 1."""
    count = max(-(-len(rows) // MOST_ROWS), 1)
    size = max(-(-len(rows) // count), 1)
    return [rows[at : at + size] for at in range(0, len(rows), size)] or [rows]


def _capital(text: str) -> str:
    """Return a text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def _caption(*parts: str) -> str:
    """Return the nonempty parts as the sentences of a caption, with a multiplication sign in place of the x of factors.

    A single part gets no full stop.
    """
    sentences = [part.rstrip(".") for part in parts if part]
    text = escaping.latex(". ".join(sentences) + "." if len(sentences) > 1 else "".join(sentences))
    return re.sub(r"(?<=\d)x(?!\w)|(?<= )x(?= \d)", lambda match: r"$\times$", text)


def _note(texts: Sequence[str], names: Set[str]) -> list[str]:
    """Return the lines of a note below a table.

    A sentence begins with a capital, unless it begins with one of the `names`.
    """
    sentences = [text.rstrip(".") for text in texts]
    if not sentences:
        return []
    text = escaping.latex("Note: " + " ".join(f"{_capitalized(sentence, names)}." for sentence in sentences))
    return [rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize\raggedright {text}}}"]


def _capitalized(sentence: str, names: Set[str]) -> str:
    return sentence if sentence.split()[0] in names else f"{sentence[0].upper()}{sentence[1:]}"


def _best(table: Table) -> set[tuple[int, int]]:
    """Return the cells, by row and column, that have the best value of a ranked column among the rows of one setting.

    Rows of different pairs, tasks or temperatures are not compared, and neither are rows of a table that is not `comparable`.
    No cell is the best if all show the same number.
    """
    best: set[tuple[int, int]] = set()
    groups: dict[tuple[str, ...], list[int]] = {}
    for r, row in enumerate(table.rows):
        setting = tuple(row[i] for i in range(table.label_columns) if table.heads[i] in SETTING_HEADS)
        groups.setdefault(setting, []).append(r)
    ranked = [
        c for c, key in enumerate(table.keys) if (BY_KEY[key].metric if key in BY_KEY else metric_of(key)).is_ranked
    ]
    for c, rows in itertools.product(ranked if table.comparable else [], groups.values()):
        cells = {r: cell for r in rows if isinstance(cell := table.rows[r][c], NumberCell) and isfinite(cell.value)}
        if len({cell.number for cell in cells.values()}) > 1:
            highest = max(cells.values(), key=lambda cell: cell.value).number
            best |= {(r, c) for r, cell in cells.items() if cell.number == highest}
    return best


class _Column:
    """The layout of a column by its cells.

    Numbers are aligned to the right. They have equally many decimals, so that this aligns their decimal points. If an
    interval or a deviation follows a number, the column is split in two, so that its width does not shift the numbers:
    `1.52x` and `[1.49, 1.55]` are two cells.
    """

    def __init__(self, heading: str, cells: Sequence[str]) -> None:
        filled = [cell for cell in cells if cell != NONE]
        self.lines = [escaping.latex(part) for part in escaping.terminal(heading).split(", ")]
        self.is_number = bool(filled) and all(isinstance(cell, NumberCell) for cell in filled)
        self.is_split = self.is_number and any(isinstance(cell, NumberCell) and cell.rest for cell in filled)

    @property
    def alignment(self) -> str:
        """The column's part of the argument of `tabular`."""
        return r"r@{\hspace{0.4em}}l" if self.is_split else "r" if self.is_number else "l"

    @property
    def head(self) -> str:
        """The heading, with a line for each part between commas, over both columns if the column is split."""
        text = r", \\ ".join(self.lines)
        if len(self.lines) > 1:
            side = "c" if self.is_split else self.alignment
            text = rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{text}\end{{tabular}}"
        return rf"\multicolumn{{2}}{{c}}{{{text}}}" if self.is_split else text

    def cell(self, text: str, is_best: bool = False) -> str:
        """Return a cell; in a split column two, with the separator."""
        if not (self.is_number and isinstance(text, NumberCell)):
            return escaping.latex(text) + (" & " if self.is_split else "")
        value = f"$-${text.number[1:]}" if text.number.startswith("-") else text.number
        value += {"x": r"$\times$", "%": r"\%"}.get(text.unit, escaping.latex(text.unit))
        if is_best:
            value = rf"\textbf{{{value}}}"
        if not self.is_split:
            return value
        return f"{value} & " + (rf"{{\footnotesize {_rest(text.rest)}}}" if text.rest else "")


def _rest(text: str) -> str:
    """Return the text after a number, with minus signs in mathematics."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaping.latex(text).replace("{[}", "[", 1))


def _label(words: str, used: set[str]) -> str:
    """Return a label that no other table has, and add it to `used`.

    A long name is cut and gets a checksum, since the names of runs differ at their ends. A repeated one gets a number.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "table"
    if len(slug) > LONGEST_LABEL:
        slug = f"{slug[: LONGEST_LABEL - 9].strip('-')}-{crc32(slug.encode()):08x}"
    numbered = (slug if number == 1 else f"{slug}-{number}" for number in count(1))
    label = next(f"tab:{candidate}" for candidate in numbered if f"tab:{candidate}" not in used)
    used.add(label)
    return label
