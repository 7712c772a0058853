"""Tables for a paper: booktabs, one environment a table."""

from collections.abc import Iterable

from specbench.report.tables import Table

ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "±": r"$\pm$", "†": r"$\dagger$",
    "γ": r"$\gamma$", "λ": r"$\lambda$", "μ": r"$\mu$", "α": r"$\alpha$",
}  # fmt: skip


def latex(tables: Iterable[Table]) -> str:
    """LaTeX that needs the package booktabs and nothing else."""
    return "\n\n".join(map(_environment, tables)) + "\n"


def escaped(text: str) -> str:
    return "".join(ESCAPED.get(letter, letter) for letter in text)


def _environment(table: Table) -> str:
    columns = "l" + "r" * (len(table.heads) - 1)
    rows = [" & ".join(map(escaped, row)) + r" \\" for row in table.rows]
    caption = [rf"\caption{{{escaped(table.title)}}}"] if table.title else []
    return "\n".join([
        r"\begin{table}", r"\centering", *caption, rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        " & ".join(map(escaped, table.heads)) + r" \\", r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip
