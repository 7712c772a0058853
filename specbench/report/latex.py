"""Tables for a paper: booktabs, one environment per table, with a caption, a label, and warnings as a note."""

import itertools
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import count

from specbench.analysis.chains import NONE
from specbench.report import escaping
from specbench.report.columns import RANKED
from specbench.report.tables import Table

PREAMBLE = (
    r"% Requires \usepackage{booktabs}." + "\n"
    r"% If a table is too wide, choose its columns: specbench report -f latex --columns speedup,acceptance_rate"
)
PLACES = ("pair", "task", "T", "group", "data", "baseline", "machine", "simulated")  # values are compared within them
LONGEST_LABEL = 100  # characters after the prefix
# A number with its unit, and what follows it: an interval, a deviation, or the paper's value
NUMBER = re.compile(r"(?P<number>[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?P<unit>x|%)?(?: (?P<rest>[\[(±].*))?")


@dataclass(frozen=True)
class Captioned:
    """A table with what its caption says, the warnings of its note, and the name of its report, for the label."""

    table: Table
    conditions: str = ""
    name: str = ""
    conclusion: str = ""
    warnings: Sequence[str] = ()


def latex(tables: Iterable[Captioned]) -> str:
    """Return LaTeX for a document that loads the package booktabs."""
    used: set[str] = set()
    return "\n\n".join([PREAMBLE, *(_environment(each, used) for each in tables)]) + "\n"


def _environment(each: Captioned, used: set[str]) -> str:
    table = each.table.compact()
    columns = [_Column([row[i] for row in table.rows]) for i in range(len(table.heads))]
    parts = (part.rstrip(".") for part in (table.title, each.conclusion, each.conditions))
    caption = escaping.latex(". ".join(filter(None, parts)))
    label = _label(f"{each.name} {table.title}", used)
    heads = [
        rf"\multicolumn{{2}}{{c}}{{{escaping.latex(head)}}}" if column.is_split else escaping.latex(head)
        for head, column in zip(table.heads, columns, strict=True)
    ]
    best = _best(table)
    rows = (
        " & ".join(
            column.cell(text, is_best=(r, c) in best) for c, (column, text) in enumerate(zip(columns, row, strict=True))
        )
        for r, row in enumerate(table.rows)
    )
    return "\n".join([
        r"\begin{table}", r"\centering", *([rf"\caption{{{caption}}}"] if caption else []), rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{''.join(column.alignment for column in columns)}}}", r"\toprule",
        rf"{' & '.join(heads)} \\", r"\midrule", *(rf"{row} \\" for row in rows), r"\bottomrule", r"\end{tabular}",
        *_note(each.warnings, {cell for row in table.rows for cell in row}), r"\end{table}",
    ])  # fmt: skip


def _note(warnings: Sequence[str], names: Set[str]) -> list[str]:
    """Return the lines of a note below a table: warnings without what the user of the command line can do about them.

    A sentence begins with a capital, unless it begins with one of the `names`.
    """
    sentences = [line.removeprefix("! ").partition("; help: ")[0].rstrip(".") for line in warnings]
    if not sentences:
        return []
    text = escaping.latex("Note: " + " ".join(f"{_capitalized(each, names)}." for each in sentences))
    return [rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize\raggedright {text}}}"]


def _capitalized(sentence: str, names: Set[str]) -> str:
    return sentence if sentence.split()[0] in names else f"{sentence[0].upper()}{sentence[1:]}"


def _best(table: Table) -> set[tuple[int, int]]:
    """Return the cells, by row and column, that have the best value of a ranked column among the rows of one place.

    Rows of different pairs, tasks or temperatures are not compared. No cell is the best if all are equal.
    """
    found: set[tuple[int, int]] = set()
    groups: dict[tuple[str, ...], list[int]] = {}
    for r, row in enumerate(table.rows):
        place = tuple(row[i] for i in range(table.places) if table.heads[i] in PLACES)
        groups.setdefault(place, []).append(r)
    ranked = [c for c, key in enumerate(table.keys) if key in RANKED]
    for c, rows in itertools.product(ranked if table.comparable else [], groups.values()):
        cells = {r: NUMBER.fullmatch(table.rows[r][c]) for r in rows}
        values = {r: float(cell["number"].replace(",", "")) for r, cell in cells.items() if cell}
        if len(set(values.values())) > 1:
            found |= {(r, c) for r, value in values.items() if value == max(values.values())}
    return found


class _Column:
    """The layout of a column by its cells.

    Numbers have equally many decimals, so aligning them to the right aligns their points. What follows a number has a column
    of its own, so that intervals do not shift the numbers.
    """

    def __init__(self, cells: Sequence[str]) -> None:
        found = [NUMBER.fullmatch(text) for text in cells if text != NONE]
        self.is_number = bool(found) and all(found)
        self.is_split = self.is_number and any(each and each["rest"] for each in found)

    @property
    def alignment(self) -> str:
        """The column's part of the argument of `tabular`."""
        return r"r@{\hspace{0.4em}}l" if self.is_split else "r" if self.is_number else "l"

    def cell(self, text: str, is_best: bool = False) -> str:
        """Return a cell; in a split column two, with the separator."""
        found = NUMBER.fullmatch(text) if self.is_number else None
        if found is None:
            return escaping.latex(text) + (" & " if self.is_split else "")
        sign = found["number"][0]
        value = f"$-${found['number'][1:]}" if sign == "-" else found["number"]
        value += {"x": r"$\times$", "%": r"\%"}.get(found["unit"] or "", "")
        if is_best:
            value = rf"\textbf{{{value}}}"
        if not self.is_split:
            return value
        return f"{value} & " + (rf"{{\footnotesize {_rest(found['rest'])}}}" if found["rest"] else "")


def _rest(text: str) -> str:
    """Return what follows a number, with minus signs in mathematics."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaping.latex(text).replace("{[}", "[", 1))


def _label(words: str, used: set[str]) -> str:
    """Return a label that no other table has."""
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:LONGEST_LABEL].strip("-") or "table"
    numbered = (slug if number == 1 else f"{slug}-{number}" for number in count(1))
    label = next(f"tab:{each}" for each in numbered if f"tab:{each}" not in used)
    used.add(label)
    return label
