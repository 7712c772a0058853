"""Tables for a paper: booktabs, one environment a table."""

from collections.abc import Iterable, Sequence

from specbench.report import escaping
from specbench.report.tables import Table


def latex(tables: Iterable[Table]) -> str:
    """LaTeX that needs the package booktabs and nothing else."""
    return "\n\n".join(map(_environment, tables)) + "\n"


def _environment(table: Table) -> str:
    columns = "l" + "r" * (len(table.heads) - 1)
    caption = [rf"\caption{{{escaping.latex(table.title)}}}"] if table.title else []
    return "\n".join([
        r"\begin{table}", r"\centering", *caption, rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        _line(table.heads), r"\midrule", *map(_line, table.rows), r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(escaping.latex, cells)) + r" \\"
