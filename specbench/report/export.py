"""Summaries of runs and points of suites as JSON and CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from specbench.analysis.points import PLACE, Point, bounds_of, number_of
from specbench.analysis.run_summary import MethodSummary, RunSummary, to_table
from specbench.report import escaping

HEAD_IDENTITY = ("source", "checksum")  # columns of a head
RUN_COLUMNS = ("run", "folder", "simulated", "pair", "task", "baseline", "headline", "complete")


def runs_json(summaries: Sequence[RunSummary]) -> str:
    """Return summaries as JSON, in the form of summary.json."""
    return escaping.json_text([to_table(summary) for summary in summaries], indent=2) + "\n"


def runs_csv(summaries: Sequence[RunSummary]) -> str:
    """Return a CSV line per run and method. Keys of nested values are joined by dots."""
    lines = [
        {escaping.csv_value(key): escaping.csv_value(value) for key, value in _line(summary, row).items()}
        for summary in summaries
        for row in summary.methods
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(k for line in lines for k in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _line(summary: RunSummary, row: MethodSummary) -> dict[str, object]:
    """Return a run's conditions under the names of its config, and what was measured of one method."""
    table, spec, environment = to_table(summary), summary.spec, summary.environment
    heads = {name: {key: getattr(head, key) for key in HEAD_IDENTITY} for name, head in summary.heads.items()}
    machine = {
        "cpu": environment["cpu"],
        "gpu": environment.get("gpu", {}).get("name"),
        "threads": environment["threads"],
        "revision": environment["git"].get("revision"),
    }
    nested = {
        "data": {key: value for key, value in vars(summary.data).items() if key != "source"},
        "decoding": vars(summary.decoding),
        "engine": {"device": spec.device, "placement": summary.placement},
        "models": {role: model.identity for role, model in summary.models.items()},
        "heads": heads,
        "machine": machine,
        "config": spec.methods[row.method].options,
    }
    (method,) = (each for each in table["methods"] if each["method"] == row.method)
    return {
        **{key: table[key] for key in RUN_COLUMNS},
        "data": summary.data.source,
        "engine": spec.engine,
        **_flatten(nested),
        **_flatten(method),
    }


def _flatten(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {path: value}
    return {k: v for key, each in value.items() for k, v in _flatten(each, f"{path}.{key}".lstrip(".")).items()}


def as_json(points: Iterable[Point]) -> str:
    """Return points as JSON."""
    return escaping.json_text(msgspec.to_builtins(list(points), str_keys=True), indent=1) + "\n"


def as_csv(points: Iterable[Point]) -> str:
    """Return a CSV line per point and value: its place, the value with its interval, and the paper's value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*PLACE, "metric", "value", "low", "high", "paper"])
    for point in points:
        for metric, value in point.values.items():
            number, bounds = number_of(value), bounds_of(value)
            if number is not None and bounds is not None:
                low, high = bounds if bounds != (number, number) else ("", "")
                line = [*point.at(PLACE), metric, number, low, high, point.paper.get(metric, "")]
                writer.writerow(map(escaping.csv_value, line))
    return text.getvalue()


def method_row(summary: RunSummary, row: MethodSummary) -> dict[str, object]:
    """Return the main values of a method as a row of a data frame."""
    score = summary.score(row)
    return {
        "pair": summary.pair,
        "task": summary.task,
        "method": row.method,
        "generations": row.generations,
        "failed": row.failed,
        "tokens_per_second": row.tokens_per_second,
        "speedup": row.speedup.value if row.speedup else None,
        "speedup_low": row.speedup.low if row.speedup else None,
        "speedup_high": row.speedup.high if row.speedup else None,
        "predicted": row.number("predicted"),
        "corrected": row.number("corrected"),
        "acceptance_rate": row.acceptance_rate,
        "metric": summary.headline,
        "score": score.value if score else None,
    }
