"""Points as tables: a suite's points in the paper's layout, the points of curves, and the values that a paper prints."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.metric import METRICS, metric_of
from specbench.analysis.number_format import COUNT, NONE, NOT_REACHED, PERCENT, NumberCell
from specbench.analysis.points import Point, PointValue, Reference, StatedValue, points
from specbench.analysis.summary import summary_of
from specbench.errors import suggestion
from specbench.features.suites.frontier import frontier_points
from specbench.features.suites.papers.expectation import NUMBERS
from specbench.features.suites.suite import PROMPT, Suite, TableSpec
from specbench.note import Note, warning
from specbench.reporting.tables import Table
from specbench.vocabulary import Simulation

Coordinates = tuple[str | float | None, ...]  # the values of some dimensions
Cells = dict[Coordinates, dict[Coordinates, Point]]  # by row, then by column
# Dimensions that may distinguish points, tried in this order
DISTINGUISHING = ("method", "setting", "pair", "task", "T", "data", "simulated", "machine", "run")
SELECTED = "†"  # after the best of several settings
POINTS = TableSpec(
    rows=("method", "setting"),
    values=("score", "relative_latency", "end_to_end_speedup", "rule_rate", "acceptance_rate", "target_calls"),
)
SUMMARIES = TableSpec(title="Summaries of the curves", rows=("method",), values=("matching", "best"))


def suite_tables(suite: Suite, points: Sequence[Point]) -> list[Table]:
    """Return the suite's tables of what has been measured."""
    return [table for spec in suite.tables if (table := pivot(spec, points)).rows]


def pivot(spec: TableSpec, points: Sequence[Point]) -> Table:
    """Return points as a table, with rows and columns in the order in which they were measured.

    If several points with different values belong to one cell, columns that distinguish them are added.
    """
    shown = [p for p in points if p.matches(spec.only) and bool(p.group) <= ("group" in spec.rows + spec.columns)]
    shown = [p for p in shown if any(p.values.get(value) is not None for value in spec.values)]
    if shown:  # without values that no point has, such as speeds of untimed runs
        spec = replace(spec, values=tuple(v for v in spec.values if any(p.values.get(v) is not None for p in shown)))
    row_keys = _row_dimensions(spec, shown)
    grid: Cells = {
        row: {column: _merged(spec, members) for column, members in cells.items()}
        for row, cells in _grouped(row_keys, spec.columns, shown).items()
    }
    if spec.best:
        grid = _with_best(spec, grid)
    columns = list(dict.fromkeys(column for cells in grid.values() for column in cells))
    if spec.columns == ("weight",):
        columns.sort(key=lambda column: (column[0] is not None, column[0]))
    names = _names_of_numbers(shown)
    headings = [*row_keys, *(_heading(spec, column, value, names) for column in columns for value in spec.values)]
    rows = [
        [
            *(_row_text(key, word, cells) for key, word in zip(row_keys, row, strict=True)),
            *(value_text(cells.get(column), value) for column in columns for value in spec.values),
        ]
        for row, cells in grid.items()
    ]
    keys = (*[""] * len(row_keys), *(value for _ in columns for value in spec.values))
    return Table(
        _table_title(spec, shown),
        headings,
        rows,
        keys,
        label_columns=len(row_keys),
        comparable=_comparable(spec, shown),
    ).compact()


def _comparable(spec: TableSpec, points: Sequence[Point]) -> bool:
    """Return whether all values of a column that are not distinguished by its rows are of one pair, task and temperature."""
    hidden = [key for key in ("pair", "task", "T") if key not in spec.rows + spec.columns]
    return all(len({point.dimension(key) for point in points}) <= 1 for key in hidden)


def _table_title(spec: TableSpec, points: Sequence[Point]) -> str:
    """Return the title, with the value and its clock unless the headings have them.

    Labels of models that are not real are added unless the rows have them.
    """
    column = metric_of(spec.values[0])
    value = [column.title] if column.clock.heading and not _headings_have_values(spec) else []
    label = "" if "method" in spec.rows else Simulation.label_of(point.simulated for point in points)
    return f"{': '.join([spec.title, *value] if spec.title else value)}{label}".strip()


def _grouped(
    rows: Sequence[str], columns: Sequence[str], points: Sequence[Point]
) -> dict[Coordinates, dict[Coordinates, list[Point]]]:
    cells: dict[Coordinates, dict[Coordinates, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        cells[point.at(rows)][point.at(columns)].append(point)
    return cells


def _row_dimensions(spec: TableSpec, points: Sequence[Point]) -> tuple[str, ...]:
    """Return the dimensions of the rows, and others that distinguish points with different values in one cell."""
    keys = spec.rows
    for key in DISTINGUISHING:
        cells = [members for row in _grouped(keys, spec.columns, points).values() for members in row.values()]
        clashing = [members for members in cells if any(len(_values(members, value)) > 1 for value in spec.values)]
        differs = any(len({point.dimension(key) for point in members}) > 1 for members in clashing)
        if differs and key not in keys + spec.columns:
            keys = (*keys, key)
    return keys


def _values(points: Sequence[Point], name: str) -> list[PointValue]:
    """Return the different values of points in one cell. The 1.00 of a baseline in two runs is one value."""
    out: list[PointValue] = []
    for point in points:
        if (value := point.values.get(name)) is not None and value not in out:
            out.append(value)
    return out


def _merged(spec: TableSpec, points: Sequence[Point]) -> Point:
    """Return the points of one cell as one. A run's own points, its curve's and its judge's have different values."""
    values = {key: value for point in reversed(points) for key, value in point.values.items() if value is not None}
    assert all(len(_values(points, value)) <= 1 for value in spec.values), "the run distinguishes all others"
    return replace(points[0], values=values)


def _with_best(spec: TableSpec, grid: Cells) -> Cells:
    """Return the rows. A method with several settings has a further row with the best of each column, marked as selected.

    The paper prints only the best, so only that row is compared with the paper. There is none for settings that were measured
    on different machines.
    """
    at = spec.rows.index("setting" if "setting" in spec.rows else "variant")
    families: dict[Coordinates, list[Coordinates]] = defaultdict(list)
    for row in grid:
        families[row[:at] + row[at + 1 :]].append(row)
    out: Cells = {}
    for rest, rows in families.items():
        machines = {point.machine for row in rows for point in grid[row].values()}
        if len(rows) == 1 or len(machines) > 1:
            out |= {row: grid[row] for row in rows}
            continue
        for row in rows:
            out[row] = {column: replace(point, paper={}) for column, point in grid[row].items()}
        columns = dict.fromkeys(column for row in rows for column in grid[row])
        out[(*rest[:at], f"best of {len(rows)} {SELECTED}", *rest[at:])] = {
            column: _best([grid[row][column] for row in rows if column in grid[row]], spec.best) for column in columns
        }
    return out


def _best(candidates: Sequence[Point], value: str) -> Point:
    sign = metric_of(value).better.sign
    measured = [point for point in candidates if point.number(value) is not None]
    return max(measured or candidates, key=lambda point: sign * (point.number(value) or 0.0))


def _names_of_numbers(points: Sequence[Point]) -> dict[str, str]:
    """Return what the dimensions x and weight are called where all points agree, such as `mu` and `weight of code`."""
    candidates = {
        "x": {point.x_name for point in points if point.x is not None},
        "weight": {f"weight of {point.weighted}" for point in points if point.weighted},
    }
    return {key: min(names) for key, names in candidates.items() if len(names) == 1}


def _heading(spec: TableSpec, column: Coordinates, value: str, names: Mapping[str, str]) -> str:
    """Return the heading of a column: the values of its dimensions, with the name of each number."""
    words = [
        f"{names[key]} = {dimension_text(key, word)}"
        if key in names and word is not None
        else dimension_text(key, word)
        for key, word in zip(spec.columns, column, strict=True)
    ]
    return ", ".join([*words, metric_of(value).title] if _headings_have_values(spec) else words)


def _headings_have_values(spec: TableSpec) -> bool:
    return len(spec.values) > 1 or not spec.columns


def _row_text(key: str, word: str | float | None, cells: Mapping[Coordinates, Point]) -> str:
    if key == "method":
        return f"{word}{next(iter(cells.values())).simulated.label}"
    return dimension_text(key, word)


def value_text(point: Point | None, name: str) -> str:
    """Return a value, followed in parentheses by the paper's value and the difference if the paper prints one."""
    if point is None or point.values.get(name) is None:
        return NONE
    written = metric_of(name).format
    text = written.text(point.values[name])
    compared = metric_of(name).papers or name
    paper, ours = point.paper.get(compared), point.number(compared)
    if paper is None or ours is None:
        return text
    other = "" if compared == name else f"{metric_of(compared).title} {written.number(ours)}, "
    printed = f"({other}paper {written.number(paper)}, {written.number(ours - paper, signed=True)})"
    return text.followed_by(printed) if isinstance(text, NumberCell) else f"{text} {printed}"


def dimension_text(name: str, value: str | float | None) -> str:
    """Return the value of a dimension."""
    if value in ("", None):
        return "overall" if name == "group" else NONE
    if name == "T":
        return f"T = {value:g}"
    if name in ("proposer", "draft_length"):
        return f"{name.replace('_', ' ')} {value}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def unknown_values(suite: Suite, points: Sequence[Point], is_timed: bool) -> list[Note]:
    """Return a warning for each value in the suite's tables, plots and expectations that no point has.

    Untimed runs have no speeds, which is no reason for a warning.
    """
    measured = {name for point in points for name in point.values}
    names = [
        *(value for spec in suite.tables for value in spec.values),
        *(expectation.value for expectation in suite.expect),
    ]
    names += [value for spec in suite.plots for value in (spec.x, spec.y) if value not in (*NUMBERS, PROMPT)]
    missing = [name for name in dict.fromkeys(names) if name not in measured and (is_timed or not _is_speed(name))]
    return [
        warning(
            "no value",
            f"no run here has a value '{name}'"
            if name in METRICS
            else f"no value '{name}'{suggestion(name, measured)}",
        )
        for name in missing
    ]


def _is_speed(name: str) -> bool:
    return metric_of(name).is_timed


def paper_tables(reference: Sequence[Reference]) -> list[Table]:
    """Return the values that the paper prints for its own models, one table per metric."""
    tables = []
    for metric in dict.fromkeys(row.metric for row in reference):
        rows = [row for row in reference if row.metric == metric]
        column = metric_of(metric)
        lines: dict[tuple[str, str], dict[str, str]] = {(row.pair, row.method): {} for row in rows}
        for row in rows:
            words = (f"T = {row.T}" if row.T else "", row.task, row.group)
            lines[row.pair, row.method][", ".join(filter(None, words))] = NumberCell(
                row.value, column.format.number(row.value)
            )
        settings = list(dict.fromkeys(setting for values in lines.values() for setting in values))
        tables.append(
            Table(
                f"The paper's values, on its own models and data: {column.title}",
                ["pair", "method", *settings],
                [[*key, *(values.get(setting, NONE) for setting in settings)] for key, values in lines.items()],
                measured=False,
                label_columns=2,
            )
        )
    return tables


def stated_table(stated: Sequence[StatedValue], points: Sequence[Point]) -> list[Table]:
    """Return a table of the numbers in a paper's text and the measured ones; none without a measured one."""
    rows, simulated = [], set[Simulation]()
    for statement in stated:
        if covered := statement.covered(points):
            column = metric_of(statement.metric)
            simulated |= {point.simulated for point in covered}
            numbers = (
                NumberCell(number, column.format.number(number))
                for number in (statement.value, statement.summarize(covered))
            )
            words = [statement.where, column.title, statement.method, statement.says]
            rows.append([*words, *numbers, COUNT.text(len(covered))])
    title = f"Numbers in the paper's text{Simulation.label_of(simulated)}"
    heads = ["in the paper", "value", "method", "summary", "paper", "here", "values"]
    return [Table(title, heads, rows)] if rows else []


def points_of(folder: Path) -> list[Point]:
    """Return the points of a run, followed by the summaries of each of its curves."""
    measured = points([summary_of(folder)])
    return measured + frontier_points(folder, measured)


def curve_tables(points: Sequence[Point]) -> list[Table]:
    """Return the table of the points, SpecCascade's two summaries, and the settings that they chose."""
    return [*(table for spec in (POINTS, SUMMARIES) if (table := pivot(spec, points)).rows), *choice_tables(points)]


def choice_tables(points: Sequence[Point]) -> list[Table]:
    """Return a table of the settings that the summaries chose, and how reliable these choices are; none without summaries.

    A setting that never calls the target is the small model alone, and its row says so. The last two columns are what
    the choices of the resamples of prompts were worth on the prompts that they left out, and how often they met the
    condition there.
    """
    heads = [
        "task", "T", "method", "summary", "chosen setting", "condition met in resamples", "value on left-out prompts",
        "condition met on left-out prompts",
    ]  # fmt: skip
    calls = {
        (point.run, point.method, point.setting): point.number("target_calls") for point in points if not point.group
    }
    rows = []
    for point in points:
        for name in SUMMARIES.values:
            if isinstance(choice := point.values.get(name), CurveChoice):
                column = metric_of(name)
                cells = [
                    point.task,
                    NumberCell(point.T, f"{point.T:g}"),
                    f"{point.label}{point.simulated.label}",
                    column.label,
                ]
                unseen = NONE if choice.holdout_value is None else column.format.text(choice.holdout_value)
                shares = [PERCENT.text(share) for share in (choice.reach_rate, choice.holdout_rate)]
                is_small = calls.get((point.run, point.method, choice.setting or "")) == 0.0
                setting = f"{choice.setting or NOT_REACHED}{' (the small model alone)' if is_small else ''}"
                rows.append([*cells, setting, shares[0], unseen, shares[1]])
    return [Table("Chosen settings", heads, rows)] if rows else []
