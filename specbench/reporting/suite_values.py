"""Values of suites as text, beside the values that the paper prints."""

from collections.abc import Sequence

from specbench.analysis.chains import NONE
from specbench.analysis.points import COMPARED, Point, Reference
from specbench.analysis.stated import Stated
from specbench.config.suite import Suite
from specbench.config.suite_layout import NUMBERS, PROMPT
from specbench.errors import hint
from specbench.reporting.columns import column_of
from specbench.reporting.tables import Table


def value_text(point: Point | None, name: str) -> str:
    """Return a value, followed in parentheses by the paper's value and the difference if the paper prints one."""
    if point is None or point.values.get(name) is None:
        return NONE
    written = column_of(name).format
    text = written.text(point.values[name])
    compared = COMPARED.get(name, name)
    paper, ours = point.paper.get(compared), point.number(compared)
    if paper is None or ours is None:
        return text
    other = "" if compared == name else f"{column_of(compared).title} {written.number(ours)}, "
    return f"{text} ({other}paper {written.number(paper)}, {written.number(ours - paper, signed=True)})"


def dimension_text(name: str, value: str | float | None) -> str:
    """Return the value of a dimension."""
    if value in ("", None):
        return "overall" if name == "group" else NONE
    if name == "T":
        return f"T = {value:g}"
    if name in ("proposer", "draft_length"):
        return f"{name.replace('_', ' ')} {value}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def unknown_values(suite: Suite, points: Sequence[Point], is_timed: bool) -> list[str]:
    """Return a warning for each value in the suite's tables, plots and expectations that no point has.

    Untimed runs have no speeds, which is no reason for a warning.
    """
    known = {name for point in points for name in point.values}
    wanted = [*(value for spec in suite.tables for value in spec.values), *(each.value for each in suite.expect)]
    wanted += [value for spec in suite.plots for value in (spec.x, spec.y) if value not in (*NUMBERS, PROMPT)]
    missing = [name for name in dict.fromkeys(wanted) if name not in known and (is_timed or not _is_speed(name))]
    return [f"! no value '{name}'{hint(name, known).partition(';')[0]}" for name in missing]


def _is_speed(name: str) -> bool:
    return bool(column_of(name).clock)


def paper_tables(reference: Sequence[Reference]) -> list[Table]:
    """Return the values that the paper prints for its own models, one table per metric."""
    tables = []
    for metric in dict.fromkeys(row.metric for row in reference):
        rows = [row for row in reference if row.metric == metric]
        column = column_of(metric)
        lines: dict[tuple[str, str], dict[str, str]] = {(row.pair, row.method): {} for row in rows}
        for row in rows:
            words = (f"T = {row.T}" if row.T else "", row.task, row.group)
            lines[row.pair, row.method][", ".join(filter(None, words))] = column.format.number(row.value)
        places = list(dict.fromkeys(place for values in lines.values() for place in values))
        tables.append(
            Table(
                f"Printed in the paper, without a measured counterpart: {column.title}",
                ["pair", "method", *places],
                [[*key, *(values.get(place, NONE) for place in places)] for key, values in lines.items()],
                measured=False,
                places=2,
            )
        )
    return tables


def stated_table(stated: Sequence[Stated], points: Sequence[Point]) -> list[Table]:
    """Return a table of the numbers in a paper's text beside the measured ones; none without a measured one."""
    rows, simulated = [], set()
    for each in stated:
        if covered := each.covered(points):
            column = column_of(each.metric)
            simulated |= {word for point in covered for word in point.simulated.split()}
            numbers = (column.format.number(number) for number in (each.value, each.measured(covered)))
            rows.append([each.where, column.title, each.method, each.says, *numbers, str(len(covered))])
    title = " ".join(["Numbers in the paper's text", *(f"({word})" for word in sorted(simulated))])
    heads = ["in the paper", "value", "method", "summary", "paper", "here", "values"]
    return [Table(title, heads, rows)] if rows else []
