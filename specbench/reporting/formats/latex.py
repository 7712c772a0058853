"""Tables for a paper: booktabs, one environment per table, with a caption, a label, and warnings as a note.

Widths are those of Computer Modern, LaTeX's default font, estimated without running LaTeX.
"""

import itertools
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from textwrap import wrap
from typing import NamedTuple
from zlib import crc32

from specbench.analysis.run_summary import RunSummary
from specbench.note import Note, warnings_of
from specbench.reporting import escaping
from specbench.reporting.column import NONE
from specbench.reporting.columns import RANKED
from specbench.reporting.conclusion import headline, reservations
from specbench.reporting.notes import conditions, notes_of
from specbench.reporting.tables import Table, overview, tables_by_run

PREAMBLE = (
    r"% Requires \usepackage{{{packages}}}." + "\n"
    r"% Tables fit the text width of the class article. To choose columns: specbench report -f latex --columns"
    r" speedup,acceptance_rate"
)
RESIZED = r"\resizebox{\linewidth}{!}{%"
# Columns of a setting, within which values are compared
SETTING_HEADS = ("pair", "task", "T", "group", "data", "baseline", "machine", "simulated")
LONGEST_LABEL = 60  # characters after the prefix
MOST_ROWS = 35  # of a page
# A number with its unit, and what follows it: an interval, a deviation, or the paper's value
NUMBER = re.compile(r"(?P<number>[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?P<unit>x|%)?(?: (?P<rest>[\[(±].*))?")
TEXT_WIDTH = 345.0  # points: of the class article at 10 pt, on letter paper
MARGIN = 0.98  # share of it that an estimate may fill
GAP = 4.0  # points between a number and what follows it, 0.4 em
BOLD = 1.15  # width of bold digits relative to others
GROUPS = {  # points at 10 pt, by character
    2.8: "il.,:;'![]|", 3.3: " -`", 3.9: "rsfjt()/", 4.5: "cez", 5.0: "ago0123456789*", 5.6: "bdhnpuvkqxyI",
    7.3: "wABCEFLPRSTJZY_",
    8.4: "m%DGHKNOQUVX±×+=<>−&#@", 10.3: "MW",
}  # fmt: skip
WIDTHS = {letter: width for width, letters in GROUPS.items() for letter in letters}
UNKNOWN = 7.5  # points of another character


class Size(NamedTuple):
    """A font size of a table, and that of what follows a number, each with its width relative to 10 pt."""

    command: str
    scale: float
    small_command: str
    small_scale: float
    separation: float  # points at each side of a column


SIZES = (
    Size("", 1.0, r"\footnotesize", 0.85, 6.0),
    Size(r"\small", 0.925, r"\footnotesize", 0.85, 4.0),
    Size(r"\footnotesize", 0.85, r"\scriptsize", 0.8, 3.0),
)


@dataclass(frozen=True)
class Captioned:
    """A table with what its caption says, the warnings of its note, and the name of its report, for the label."""

    table: Table
    conditions: str = ""
    name: str = ""
    conclusion: str = ""
    warnings: Sequence[Note] = ()
    may_drop: bool = True  # columns that do not fit the page; False if the user has chosen them


def of_runs(summaries: Sequence[RunSummary], full: bool = False) -> str:
    """Return the first table of runs, with the conclusion in its caption and warnings as its note; all tables if `full`."""
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
    """Return a name for labels that no other selection of runs has."""
    if len(summaries) == 1:
        return summaries[0].run
    return f"{len(summaries)} runs {crc32(' '.join(sorted(summary.run for summary in summaries)).encode()):08x}"


def latex(tables: Iterable[Captioned]) -> str:
    """Return LaTeX for a document that loads the package booktabs, and graphicx if a table is too wide without it."""
    used: set[str] = set()
    environments = [_environment(table, used) for table in tables]
    packages = "booktabs,graphicx" if any(RESIZED in text for text in environments) else "booktabs"
    return "\n\n".join([PREAMBLE.format(packages=packages), *environments]) + "\n"


def _environment(captioned: Captioned, used: set[str]) -> str:
    """Return the environment of a table; of a table with more rows than a page has room for, several."""
    table = captioned.table.compact()
    caption = _caption(table.title, captioned.conclusion, _capital(captioned.conditions))
    slug = f"{captioned.name} {table.title}"
    layout = _layout(table, table.droppable if captioned.may_drop else [])
    table, columns, size = layout.table, layout.columns, layout.size
    best = _best(table)
    rows = (
        " & ".join(
            column.cell(text, size, is_best=(r, c) in best)
            for c, (column, text) in enumerate(zip(columns, row, strict=True))
        )
        for r, row in enumerate(table.rows)
    )
    heads = [column.head(size, layout.wrapped) for column in columns]
    shrunk = [size.command, rf"\setlength{{\tabcolsep}}{{{size.separation:g}pt}}"] if size.command else []
    dropped = f"Left out, as the table would be too wide: {'; '.join(layout.dropped)}" if layout.dropped else ""
    names = {cell for row in table.rows for cell in row}
    remarks = [note.text for note in captioned.warnings]
    lines = [*([f"% {escaping.latex(dropped)}"] if dropped else [])]
    pages = _pages(list(rows))
    for number, page in enumerate(pages, 1):
        later = _caption(table.title, f"Continued, {number} of {len(pages)}")
        shown = caption if number == 1 else later
        lines += [
            r"\begin{table}", r"\centering", *([rf"\caption{{{shown}}}"] if shown else []),
            rf"\label{{{_label(slug, used)}}}", *shrunk, *([RESIZED] if layout.resized else []),
            rf"\begin{{tabular}}{{{''.join(column.alignment for column in columns)}}}", r"\toprule",
            rf"{' & '.join(heads)} \\", r"\midrule", *(rf"{row} \\" for row in page), r"\bottomrule",
            r"\end{tabular}" + "}" * layout.resized,
            *(_note([*remarks, *([dropped] if dropped else [])], names) if number == len(pages) else []),
            r"\end{table}",
        ]  # fmt: skip
    return "\n".join(lines)


def _pages(rows: Sequence[str]) -> list[Sequence[str]]:
    """Return the rows in parts of nearly equal size, none larger than a page."""
    count = max(-(-len(rows) // MOST_ROWS), 1)
    size = max(-(-len(rows) // count), 1)
    return [rows[at : at + size] for at in range(0, len(rows), size)] or [rows]


def _capital(text: str) -> str:
    """Return a text whose first letter is a capital."""
    return text[:1].upper() + text[1:]


def _caption(*parts: str) -> str:
    """Return sentences as a caption, with the sign that tables have for factors."""
    sentences = [part.rstrip(".") for part in parts if part]
    text = escaping.latex(". ".join(sentences) + "." if len(sentences) > 1 else "".join(sentences))
    return re.sub(r"(?<=\d)x(?!\w)|(?<= )x(?= \d)", lambda match: r"$\times$", text)


class _Layout(NamedTuple):
    """How a table is set. `wrapped`: its headings have several lines. `resized`: it is scaled to the width of the text."""

    table: Table
    columns: "list[_Column]"
    size: Size
    wrapped: bool
    dropped: list[str]
    resized: bool = False


def _layout(table: Table, droppable: Sequence[int]) -> _Layout:
    """Return the layout with the largest type in which a table fits the width of the text.

    Headings are wrapped first, then the type is smaller, then columns are left out in the order of `droppable`.
    """

    def columns_of(table: Table) -> list[_Column]:
        keys = table.keys or ("",) * len(table.heads)
        return [
            _Column(escaping.terminal(head), [row[i] for row in table.rows], key in RANKED)
            for i, (head, key) in enumerate(zip(table.heads, keys, strict=True))
        ]

    columns = columns_of(table)
    for size, wrapped in ((SIZES[0], False), *((size, True) for size in SIZES)):
        if _fits([column.width(size, wrapped) for column in columns], size):
            return _Layout(table, columns, size, wrapped, [])

    def fitting(shown: Table) -> Size | None:
        """Return the largest type in which a table fits with wrapped headings."""
        columns = columns_of(shown)
        return next((size for size in SIZES if _fits([column.width(size, True) for column in columns], size)), None)

    dropped = sorted(table.dropped(droppable, lambda shown: fitting(shown) is not None))
    shown, heads = table.without({*dropped}), [table.heads[i] for i in dropped]
    largest = fitting(shown)
    return _Layout(shown, columns_of(shown), largest or SIZES[-1], True, heads, resized=largest is None)


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

    Rows of different pairs, tasks or temperatures are not compared. No cell is the best if all are equal.
    """
    best: set[tuple[int, int]] = set()
    groups: dict[tuple[str, ...], list[int]] = {}
    for r, row in enumerate(table.rows):
        setting = tuple(row[i] for i in range(table.label_columns) if table.heads[i] in SETTING_HEADS)
        groups.setdefault(setting, []).append(r)
    ranked = [c for c, key in enumerate(table.keys) if key in RANKED]
    for c, rows in itertools.product(ranked if table.comparable else [], groups.values()):
        cells = {r: NUMBER.fullmatch(table.rows[r][c]) for r in rows}
        values = {r: float(cell["number"].replace(",", "")) for r, cell in cells.items() if cell}
        if len(set(values.values())) > 1:
            best |= {(r, c) for r, value in values.items() if value == max(values.values())}
    return best


class _Column:
    """The layout of a column by its cells.

    Numbers have equally many decimals, so aligning them to the right aligns their points. What follows a number has a column
    of its own, so that intervals do not shift the numbers.
    """

    def __init__(self, heading: str, cells: Sequence[str], ranked: bool = False) -> None:
        matches = [NUMBER.fullmatch(text) for text in cells if text != NONE]
        self.heading, self.cells, self.ranked = heading, cells, ranked
        self.is_number = bool(matches) and all(matches)
        self.is_split = self.is_number and any(match and match["rest"] for match in matches)

    @property
    def alignment(self) -> str:
        """The column's part of the argument of `tabular`."""
        return r"r@{\hspace{0.4em}}l" if self.is_split else "r" if self.is_number else "l"

    def width(self, size: Size, wrapped: bool) -> float:
        """Return the width in points, with the heading in several lines if `wrapped`."""
        cells = self._cell_width(size)
        lines = _lines_of(self.heading, cells / size.scale) if wrapped else [self.heading]
        return max(cells, size.scale * max(map(_text_width, lines), default=0.0))

    def _cell_width(self, size: Size) -> float:
        matches = [NUMBER.fullmatch(text) if self.is_split else None for text in self.cells]
        numbers = [
            f"{match['number']}{match['unit'] or ''}" if match else text
            for match, text in zip(matches, self.cells, strict=True)
        ]
        rests = [_text_width(match["rest"]) for match in matches if match and match["rest"]]
        number = size.scale * (BOLD if self.ranked else 1.0) * max(map(_text_width, numbers), default=0.0)
        return number + (GAP * size.scale + size.small_scale * max(rests) if rests else 0.0)

    def head(self, size: Size, wrapped: bool) -> str:
        """Return the heading, of several lines if it is wider than the cells and `wrapped`."""
        lines = _lines_of(self.heading, self._cell_width(size) / size.scale) if wrapped else [self.heading]
        text = r" \\ ".join(map(escaping.latex, lines))
        if len(lines) > 1:
            side = "c" if self.is_split else self.alignment
            text = rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{text}\end{{tabular}}"
        return rf"\multicolumn{{2}}{{c}}{{{text}}}" if self.is_split else text

    def cell(self, text: str, size: Size, is_best: bool = False) -> str:
        """Return a cell; in a split column two, with the separator."""
        match = NUMBER.fullmatch(text) if self.is_number else None
        if match is None:
            return escaping.latex(text) + (" & " if self.is_split else "")
        sign = match["number"][0]
        value = f"$-${match['number'][1:]}" if sign == "-" else match["number"]
        value += {"x": r"$\times$", "%": r"\%"}.get(match["unit"] or "", "")
        if is_best:
            value = rf"\textbf{{{value}}}"
        if not self.is_split:
            return value
        return f"{value} & " + (rf"{{{size.small_command} {_rest(match['rest'])}}}" if match["rest"] else "")


def _rest(text: str) -> str:
    """Return what follows a number, with minus signs in mathematics."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaping.latex(text).replace("{[}", "[", 1))


def _label(words: str, used: set[str]) -> str:
    """Return a label that no other table has."""
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "table"
    if len(slug) > LONGEST_LABEL:  # the names of runs differ at their ends
        slug = f"{slug[: LONGEST_LABEL - 9].strip('-')}-{crc32(slug.encode()):08x}"
    numbered = (slug if number == 1 else f"{slug}-{number}" for number in count(1))
    label = next(f"tab:{candidate}" for candidate in numbered if f"tab:{candidate}" not in used)
    used.add(label)
    return label


def _text_width(text: str) -> float:
    """Return the width of a text at 10 pt, in points."""
    return sum(WIDTHS.get(letter, UNKNOWN) for letter in text)


def _lines_of(heading: str, width: float) -> list[str]:
    """Return a heading in the fewest lines that are no wider than this many points, or than its longest word."""
    least = max(width, *map(_text_width, heading.split()), 0.0) if heading.split() else width
    for length in range(len(heading), 0, -1):
        lines = wrap(heading, length, break_long_words=False, break_on_hyphens=False)
        if max(map(_text_width, lines), default=0.0) <= least:
            return lines
    return heading.split()


def _fits(widths: Sequence[float], size: Size) -> bool:
    """Return whether columns of these widths fit the width of a page's text."""
    return sum(width + 2 * size.separation for width in widths) <= MARGIN * TEXT_WIDTH
