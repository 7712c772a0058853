"""What a suite's runs come to: its tables as the paper has them, and its expectations, held against every cell."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from specbench.analysis.chains import NONE
from specbench.analysis.points import COMPARED, Point, bounds_of, number_of
from specbench.config.suite import Expectation, Suite, TableSpec
from specbench.errors import hint
from specbench.report.columns import interval
from specbench.report.tables import Table

TIMES = ("speedup", "papers_speedup", "end_to_end_speedup", "over_sd", "predicted", "corrected", "matching")
FORMS = {  # of values that are no ratio of speeds: form, scale
    "score": ("{:.1f}", 100.0),
    "best": ("{:.1f}", 100.0),
    "relative_latency": ("{:.2f}", 1.0),
    "acceptance_rate": ("{:.3f}", 1.0),
    "tokens_per_second": ("{:.0f}", 1.0),
    "answer_length": ("{:.1f}", 1.0),
    "target_calls": ("{:.3f}", 1.0),
    "rule_rate": ("{:.1%}", 1.0),
    "deferral_rate": ("{:.1%}", 1.0),
    "win_rate": ("{:.1%}", 1.0),
    "wins": ("{:.1%}", 1.0),
    "ties": ("{:.1%}", 1.0),
    "win_rate_spread": ("{:.1%}", 1.0),
    "communication_share": ("{:.1%}", 1.0),
    "generation_milliseconds": ("{:.1f}", 1.0),
}
Keys = tuple[str, ...]  # dimensions
Place = tuple[Any, ...]  # the words of some dimensions
APART = ("method", "setting", "pair", "task", "T", "data", "made_up", "run")  # what tells two points apart
SPREADS = ("generation_milliseconds",)  # a mean and a standard deviation; other lists are lists
CLOCKED = {  # heads of what a clock is part of, and by which
    "tokens_per_second": "tokens/s, decoding",
    "speedup": "speedup, decoding",
    "geometric_mean_speedup": "geometric mean, decoding",
    "end_to_end_tokens_per_second": "tokens/s, end to end",
    "end_to_end_speedup": "speedup, end to end",
    "papers_speedup": "papers' average, end to end",
    "generation_milliseconds": "ms a generation, end to end",
    "over_sd": "speedup over sd, end to end",
    "relative_latency": "relative latency, end to end",
    "matching": "speed at the large model's quality, end to end",
}
HEADS = CLOCKED | {
    "accepted_length": "accepted length",
    "acceptance_rate": "acceptance",
    "average_tokens": "avg tokens",
    "answer_length": "tokens an answer",
    "target_calls": "target calls/token",
    "rule_rate": "rule rate",
    "deferral_rate": "deferral rate, or large-model calls a token",
    "best": "best quality within its latency",
    "win_rate": "win rate, ties half",
    "win_rate_spread": "its spread over repeats",
    "corrected": "theory, corrected",
}
LOWER = ("relative_latency", "generation_milliseconds", "target_calls")  # of which less is better
SELECTED = "†"
CONFIRMED, CONTRADICTED = "confirmed", "contradicted"
EXPECTED, OTHER = "on the expected side within the noise", "on the other side within the noise"


def suite_tables(suite: Suite, found: Sequence[Point]) -> list[Table]:
    """The suite's tables, of what was measured so far."""
    return [pivot(spec, found) for spec in suite.tables]


def unknown_values(suite: Suite, found: Sequence[Point]) -> list[str]:
    """A warning for each value of the suite's tables, plots and expectations that no point has."""
    known = {name for point in found for name in point["values"]}
    wanted = [*(value for spec in suite.tables for value in spec.values), *(each.value for each in suite.expect)]
    wanted += [value for spec in suite.plots for value in (spec.x, spec.y) if value != "x"]
    missing = [name for name in dict.fromkeys(wanted) if name not in known]
    return [f"! no value '{name}'{hint(name, known).partition(';')[0]}" for name in missing]


def papers_tables(reference: Sequence[Point]) -> list[Table]:
    """What the paper prints of its own models, a table a metric."""
    tables = []
    for metric in dict.fromkeys(row["metric"] for row in reference):
        rows = [row for row in reference if row["metric"] == metric]
        where: dict[tuple[str, str], dict[str, str]] = {(row["pair"], row["method"]): {} for row in rows}
        form, scale = FORMS.get(metric, ("{:.2f}", 1.0))
        for row in rows:
            place = ", ".join(
                word for word in (f"T = {row['T']}" if row["T"] else "", row["task"], row["group"]) if word
            )
            where[row["pair"], row["method"]][place] = form.format(scale * row["value"])
        columns = list(dict.fromkeys(place for cells in where.values() for place in cells))
        title = f"The paper's own, of its own models: {HEADS.get(metric, metric)}"
        lines = [[*key, *(cells.get(place, NONE) for place in columns)] for key, cells in where.items()]
        tables.append(Table(title, ["pair", "method", *columns], lines))
    return tables


def pivot(spec: TableSpec, found: Sequence[Point]) -> Table:
    """Points as a table: rows and columns in the order in which they were measured.

    Where several points would stand in one place with different values, columns are added that tell them apart.
    """
    kept = [p for p in found if is_at(p, spec.only) and bool(p["group"]) <= ("group" in spec.rows + spec.columns)]
    kept = [p for p in kept if any(p["values"].get(value) is not None for value in spec.values)]
    row_keys = _telling_apart(spec, kept)
    places: dict[Place, dict[Place, Point]] = {
        row: {column: _merged(spec, points) for column, points in cells.items()}
        for row, cells in _placed(row_keys, spec.columns, kept).items()
    }
    if spec.best:
        places = _with_best(spec, places)
    columns = list(dict.fromkeys(column for cells in places.values() for column in cells))
    heads = [*row_keys, *(_head(spec, column, value) for column in columns for value in spec.values)]
    rows = [
        [
            *(_word(key, word, cells) for key, word in zip(row_keys, row, strict=True)),
            *(told(cells.get(column), value) for column in columns for value in spec.values),
        ]
        for row, cells in places.items()
    ]
    return Table(_title(spec, kept), heads, rows)


def _title(spec: TableSpec, kept: Sequence[Point]) -> str:
    """The title, with the value and its clock where no head has them, and what about the models is made up where no row
    has that."""
    value = [CLOCKED[spec.values[0]]] if not _heads_have_values(spec) and spec.values[0] in CLOCKED else []
    made_up = {point["made_up"] for point in kept if point["made_up"]} if "method" not in spec.rows else set()
    label = " ".join(f"({word})" for words in sorted(made_up) for word in words.split())
    return f"{': '.join([spec.title, *value] if spec.title else value)} {label}".strip()


def _placed(row_keys: Keys, columns: Keys, found: Sequence[Point]) -> dict[Place, dict[Place, list[Point]]]:
    places: dict[Place, dict[Place, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in found:
        row, column = (tuple(point[key] for key in keys) for keys in (row_keys, columns))
        places[row][column].append(point)
    return places


def _telling_apart(spec: TableSpec, found: Sequence[Point]) -> Keys:
    """The rows' dimensions, and those besides that tell points with different values in one place apart."""
    keys = spec.rows
    for key in APART:
        cells = [points for row in _placed(keys, spec.columns, found).values() for points in row.values()]
        clashing = [points for points in cells if any(len(_values(points, value)) > 1 for value in spec.values)]
        if key not in keys + spec.columns and any(len({point[key] for point in points}) > 1 for points in clashing):
            keys = (*keys, key)
    return keys


def _values(points: Sequence[Point], value: str) -> list[Any]:
    """The different values of points in one place; a baseline's 1.00 in two runs is one."""
    out: list[Any] = []
    for point in points:
        if (each := point["values"].get(value)) is not None and each not in out:
            out.append(each)
    return out


def _merged(spec: TableSpec, points: Sequence[Point]) -> Point:
    """The points of one place as one: a run's own and those of its curve or its judge have different values."""
    values = {key: each for point in reversed(points) for key, each in point["values"].items() if each is not None}
    assert all(len(_values(points, value)) <= 1 for value in spec.values), "told apart by their runs"
    return {**points[0], "values": values}


def told(point: Point | None, value: str) -> str:
    """A value as the paper prints it, and where the point is the paper's own the paper's beside it, with the difference."""
    if point is None or point["values"].get(value) is None:
        return NONE
    raw, (form, scale) = point["values"][value], FORMS.get(value, ("{:.2f}", 1.0))
    if number_of(raw) is None:
        text = "not reached"
    elif isinstance(raw, list | tuple):
        text = (" ± " if value in SPREADS else ", ").join(form.format(scale * each) for each in raw)
    else:
        estimate = raw if isinstance(raw, dict) else {"value": raw, "low": None, "high": None}
        text = interval(estimate, form, "x" if value in TIMES else "", scale)
    alike = COMPARED.get(value, value)
    papers, ours = point["paper"].get(alike), number_of(point["values"].get(alike))
    if papers is None or ours is None:
        return text
    mean = "" if alike == value else f"{CLOCKED[alike]} {form.format(scale * ours)}, "
    signed = form.replace("{:", "{:+")
    return f"{text} ({mean}paper {form.format(scale * papers)}, {signed.format(scale * (ours - papers))})"


def _with_best(spec: TableSpec, places: dict[Any, dict[Any, Point]]) -> dict[Any, dict[Any, Point]]:
    """The rows, and behind those of a method at several settings one with the best of each column, marked as selected."""
    at = spec.rows.index("setting")
    families: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for row in places:
        families[row[:at] + row[at + 1 :]].append(row)
    out: dict[Any, dict[Any, Point]] = defaultdict(dict)
    for rest, rows in families.items():
        for row in rows:
            out[row] = places[row]
        if len(rows) > 1:
            for row in rows:  # the paper prints the best alone
                out[row] = {column: {**point, "paper": {}} for column, point in places[row].items()}
            columns = dict.fromkeys(column for row in rows for column in places[row])
            out[(*rest[:at], f"best of {len(rows)} {SELECTED}", *rest[at:])] = {
                column: _best([places[row][column] for row in rows if column in places[row]], spec.best)
                for column in columns
            }
    return out


def _best(candidates: list[Point], value: str) -> Point:
    sign = -1.0 if value in LOWER else 1.0
    known = [point for point in candidates if number_of(point["values"].get(value)) is not None]
    return max(known or candidates, key=lambda point: sign * (number_of(point["values"].get(value)) or 0.0))


def _head(spec: TableSpec, column: tuple[Any, ...], value: str) -> str:
    words = [dimension(key, word) for key, word in zip(spec.columns, column, strict=True)]
    return ", ".join([*words, HEADS.get(value, value)] if _heads_have_values(spec) else words)


def _heads_have_values(spec: TableSpec) -> bool:
    return len(spec.values) > 1 or not spec.columns


def _word(key: str, word: Any, cells: dict[Any, Point]) -> str:
    if key == "method":
        made_up = next(iter(cells.values()))["made_up"]
        return " ".join([str(word), *(f"({each})" for each in made_up.split())])
    return dimension(key, word)


def dimension(key: str, word: Any) -> str:
    """A word of a dimension, as it is told."""
    if word in ("", None):
        return {"group": "overall"}.get(key, NONE)
    return f"T = {word:g}" if key == "T" else f"{word:g}" if isinstance(word, float) else str(word)


def is_at(point: Point, wanted: dict[str, Any]) -> bool:
    """Whether a point's dimensions are as told; a list allows several."""
    return all(point[key] in (word if isinstance(word, list) else [word]) for key, word in wanted.items())


def expectations(suite: Suite, found: Sequence[Point]) -> list[str]:
    """A line for each expectation: in how many cells it was confirmed beyond the noise, or contradicted, or neither."""
    return [_verdict(each, found) for each in suite.expect]


def _verdict(expected: Expectation, found: Sequence[Point]) -> str:
    bound, sign = (expected.at_least, 1.0) if expected.at_least is not None else (expected.at_most, -1.0)
    assert bound is not None
    cells: dict[str, list[Point]] = defaultdict(list)
    for point in found:
        if not point["group"]:
            cells[point["run"]].append(point)
    seen: dict[str, list[str]] = {verdict: [] for verdict in (CONFIRMED, EXPECTED, OTHER, CONTRADICTED)}
    for points in cells.values():
        ours = _chosen(points, expected.of, expected)
        theirs = _chosen(points, bound, expected) if isinstance(bound, dict) else [None]
        for point in ours:
            for other in theirs:
                seen[_compare(point, other, bound, expected.value, sign)].append(_place(point))
    if not any(seen.values()):
        return f"{expected.says}: not measured side by side (of one pair, task and temperature)"
    counts = ", ".join(f"{verdict} {len(where)}" for verdict, where in seen.items() if where)
    against = f" (contradicted: {'; '.join(dict.fromkeys(seen[CONTRADICTED]))})" if seen[CONTRADICTED] else ""
    why = f". {expected.because}" if expected.because and (seen[CONTRADICTED] or seen[OTHER]) else ""
    return f"{expected.says}: {counts}{against}{why}"


def _chosen(points: list[Point], wanted: dict[str, Any], expected: Expectation) -> list[Point]:
    chosen = [p for p in points if is_at(p, wanted) and p["values"].get(expected.value) is not None]
    if expected.best and chosen:
        sign = 1.0 if expected.at_least is not None else -1.0
        return [max(chosen, key=lambda p: sign * _span(p, expected.value)[0])]
    return chosen


def _span(point: Point, value: str) -> tuple[float, float, float]:
    """A value with its interval; a summary that was not reached is below everything."""
    told = point["values"][value]
    number, bounds = number_of(told), bounds_of(told)
    return (-math.inf, -math.inf, -math.inf) if number is None or bounds is None else (number, *bounds)


def _compare(point: Point, other: Point | None, bound: Any, value: str, sign: float) -> str:
    """On which side a value is of its bound, and whether their intervals reach each other."""
    ours, low, high = _span(point, value)
    limit, below, above = _span(other, value) if other else (float(bound),) * 3
    if sign < 0:
        (ours, low, high), (limit, below, above) = (-ours, -high, -low), (-limit, -above, -below)
    if ours >= limit:
        return CONFIRMED if low >= above > -math.inf else EXPECTED
    return OTHER if high >= below else CONTRADICTED


def _place(point: Point) -> str:
    words = [point[key] for key in ("pair", "task", "method", "setting") if point[key]]
    return f"{' '.join(words)} at T = {point['T']:g}"
