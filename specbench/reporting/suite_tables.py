"""The tables of a suite, laid out as in the paper."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specbench.analysis.points import Point, PointValue
from specbench.config.suite import Suite
from specbench.config.suite_layout import TableSpec
from specbench.reporting.columns import column_of
from specbench.reporting.suite_values import dimension_text, value_text
from specbench.reporting.tables import Table

Place = tuple[str | float | None, ...]  # the values of some dimensions
Grid = dict[Place, dict[Place, Point]]  # by row, then by column
DISTINGUISHING = (
    "method",
    "setting",
    "pair",
    "task",
    "T",
    "data",
    "simulated",
    "machine",
    "run",
)  # tried in this order
SELECTED = "†"  # after the best of several settings


def suite_tables(suite: Suite, points: Sequence[Point]) -> list[Table]:
    """Return the suite's tables of what has been measured."""
    return [pivot(spec, points) for spec in suite.tables]


def pivot(spec: TableSpec, points: Sequence[Point]) -> Table:
    """Return points as a table, with rows and columns in the order in which they were measured.

    If several points with different values belong to one place, columns that distinguish them are added.
    """
    kept = [p for p in points if p.matches(spec.only) and bool(p.group) <= ("group" in spec.rows + spec.columns)]
    kept = [p for p in kept if any(p.values.get(value) is not None for value in spec.values)]
    if kept:  # without values that no point has, such as speeds of untimed runs
        spec = replace(spec, values=tuple(v for v in spec.values if any(p.values.get(v) is not None for p in kept)))
    row_keys = _row_dimensions(spec, kept)
    grid: Grid = {
        row: {column: _merged(spec, each) for column, each in places.items()}
        for row, places in _placed(row_keys, spec.columns, kept).items()
    }
    if spec.best:
        grid = _with_best(spec, grid)
    columns = list(dict.fromkeys(column for places in grid.values() for column in places))
    if spec.columns == ("weight",):
        columns.sort(key=lambda column: (column[0] is not None, column[0]))
    names = _names_of_numbers(kept)
    headings = [*row_keys, *(_heading(spec, column, value, names) for column in columns for value in spec.values)]
    rows = [
        [
            *(_row_text(key, word, places) for key, word in zip(row_keys, row, strict=True)),
            *(value_text(places.get(column), value) for column in columns for value in spec.values),
        ]
        for row, places in grid.items()
    ]
    keys = (*[""] * len(row_keys), *(value for _ in columns for value in spec.values))
    return Table(
        _title(spec, kept), headings, rows, keys, places=len(row_keys), comparable=_comparable(spec, kept)
    ).compact()


def _comparable(spec: TableSpec, kept: Sequence[Point]) -> bool:
    """Return whether all values of a column that are not distinguished by its rows are of one pair, task and temperature."""
    hidden = [key for key in ("pair", "task", "T") if key not in spec.rows + spec.columns]
    return all(len({point.dimension(key) for point in kept}) <= 1 for key in hidden)


def _title(spec: TableSpec, kept: Sequence[Point]) -> str:
    """Return the title, with the value and its clock unless the headings have them.

    Labels of models that are not real are added unless the rows have them.
    """
    column = column_of(spec.values[0])
    value = [column.title] if column.clock and not _headings_have_values(spec) else []
    simulated = {point.simulated for point in kept if point.simulated} if "method" not in spec.rows else set()
    label = " ".join(f"({word})" for words in sorted(simulated) for word in words.split())
    return f"{': '.join([spec.title, *value] if spec.title else value)} {label}".strip()


def _placed(
    rows: Sequence[str], columns: Sequence[str], points: Sequence[Point]
) -> dict[Place, dict[Place, list[Point]]]:
    places: dict[Place, dict[Place, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        places[point.at(rows)][point.at(columns)].append(point)
    return places


def _row_dimensions(spec: TableSpec, points: Sequence[Point]) -> tuple[str, ...]:
    """Return the dimensions of the rows, and others that distinguish points with different values in one place."""
    keys = spec.rows
    for key in DISTINGUISHING:
        places = [each for row in _placed(keys, spec.columns, points).values() for each in row.values()]
        clashing = [each for each in places if any(len(_values(each, value)) > 1 for value in spec.values)]
        differs = any(len({point.dimension(key) for point in each}) > 1 for each in clashing)
        if differs and key not in keys + spec.columns:
            keys = (*keys, key)
    return keys


def _values(points: Sequence[Point], name: str) -> list[PointValue]:
    """Return the different values of points in one place. The 1.00 of a baseline in two runs is one value."""
    out: list[PointValue] = []
    for point in points:
        if (each := point.values.get(name)) is not None and each not in out:
            out.append(each)
    return out


def _merged(spec: TableSpec, points: Sequence[Point]) -> Point:
    """Return the points of one place as one. A run's own points and those of its curve or its judge have different values."""
    values = {key: each for point in reversed(points) for key, each in point.values.items() if each is not None}
    assert all(len(_values(points, value)) <= 1 for value in spec.values), "the run distinguishes all others"
    return replace(points[0], values=values)


def _with_best(spec: TableSpec, grid: Grid) -> Grid:
    """Return the rows. A method with several settings has a further row with the best of each column, marked as selected.

    The paper prints only the best, so only that row is compared with the paper. There is none for settings that were measured
    on different machines.
    """
    at = spec.rows.index("setting" if "setting" in spec.rows else "variant")
    families: dict[Place, list[Place]] = defaultdict(list)
    for row in grid:
        families[row[:at] + row[at + 1 :]].append(row)
    out: Grid = {}
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
    sign = -1.0 if column_of(value).lower_is_better else 1.0
    known = [point for point in candidates if point.number(value) is not None]
    return max(known or candidates, key=lambda point: sign * (point.number(value) or 0.0))


def _names_of_numbers(points: Sequence[Point]) -> dict[str, str]:
    """Return what the dimensions x and weight are called where all points agree, such as `mu` and `weight of code`."""
    found = {
        "x": {point.setting.partition("=")[0] for point in points if point.x is not None},
        "weight": {f"weight of {point.weighted}" for point in points if point.weighted},
    }
    return {key: min(names) for key, names in found.items() if len(names) == 1}


def _heading(spec: TableSpec, column: Place, value: str, names: Mapping[str, str]) -> str:
    """Return the heading of a column: the values of its dimensions, with the name of each number."""
    words = [
        f"{names[key]} = {dimension_text(key, word)}"
        if key in names and word is not None
        else dimension_text(key, word)
        for key, word in zip(spec.columns, column, strict=True)
    ]
    return ", ".join([*words, column_of(value).title] if _headings_have_values(spec) else words)


def _headings_have_values(spec: TableSpec) -> bool:
    return len(spec.values) > 1 or not spec.columns


def _row_text(key: str, word: str | float | None, places: Mapping[Place, Point]) -> str:
    if key == "method":
        simulated = next(iter(places.values())).simulated
        return " ".join([str(word), *(f"({each})" for each in simulated.split())])
    return dimension_text(key, word)
