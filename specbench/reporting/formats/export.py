"""Summaries of runs and points of suites as JSON, CSV and rows of data frames."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from specbench.analysis.acceptance import acceptance_rate, accepted_length, position_counts
from specbench.analysis.intervals import Estimate
from specbench.analysis.method_records import complete, seconds, token_count
from specbench.analysis.points import POINT_COLUMNS, Point, bounds_of, number_of
from specbench.analysis.quality import scores_by_prompt, scores_of
from specbench.analysis.run_summary import SLOW, MethodSummary, RunSummary, to_table
from specbench.analysis.speed import tokens_per_second
from specbench.reporting import escaping
from specbench.runs.record import Record
from specbench.runs.run_folder import read

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
    slow = {SLOW: table[SLOW]} if table[SLOW] else {}
    (method,) = (entry for entry in table["methods"] if entry["method"] == row.method)
    return {
        **{key: table[key] for key in RUN_COLUMNS},
        "data": summary.data.source,
        "engine": spec.engine,
        **_flatten(nested | slow),
        **_flatten(method),
    }


def _flatten(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {path: value}
    return {k: v for key, inner in value.items() for k, v in _flatten(inner, f"{path}.{key}".lstrip(".")).items()}


def as_json(points: Iterable[Point]) -> str:
    """Return points as JSON."""
    return escaping.json_text([_point_row(point) for point in points], indent=1) + "\n"


def _point_row(point: Point) -> dict[str, object]:
    """Return a point with its settings, and what follows from them."""
    row = msgspec.to_builtins(point, str_keys=True)
    at = list(row).index("settings")
    derived = {"setting": point.setting, "x": point.x, "variant": point.variant}
    return dict([*list(row.items())[:at], *derived.items(), *list(row.items())[at:]])


def as_csv(points: Iterable[Point]) -> str:
    """Return a CSV line per point and value: its setting, the value with its interval, and the paper's value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*POINT_COLUMNS, "metric", "value", "low", "high", "paper"])
    for point in points:
        for metric, value in point.values.items():
            number, bounds = number_of(value), bounds_of(value)
            if number is not None and bounds is not None:
                low, high = bounds if bounds != (number, number) else ("", "")
                line = [*point.at(POINT_COLUMNS), metric, number, low, high, point.paper.get(metric, "")]
                writer.writerow(map(escaping.csv_value, line))
    return text.getvalue()


def method_row(summary: RunSummary, row: MethodSummary) -> dict[str, object]:
    """Return the main values of a method as a row of a data frame."""
    score = summary.score(row)
    return {
        "pair": summary.pair,
        "task": summary.task,
        "method": row.method,
        "draft_length": summary.traits(row).longest_draft,
        "temperature": summary.decoding.temperature,
        "rank": row.rank.first if row.rank else None,
        "last_rank": row.rank.last if row.rank else None,
        "generations": row.generations,
        "failed": row.failed,
        "tokens_per_second": row.tokens_per_second,
        **_estimate("speedup", row.speedup or _one(summary, row)),
        "end_to_end_tokens_per_second": row.number("end_to_end_tokens_per_second"),
        **_estimate("end_to_end_speedup", row.value("end_to_end_speedup") or _one(summary, row)),
        "predicted": row.number("predicted"),
        "corrected": row.number("corrected"),
        "acceptance_rate": row.acceptance_rate,
        "metric": summary.headline,
        "score": score.value if score else None,
    }


def _one(summary: RunSummary, row: MethodSummary) -> Estimate | None:
    """Return the speedup of the baseline, 1 without an interval; None for other methods and untimed runs."""
    return (
        Estimate(1.0, None, None) if row.method == summary.baseline and row.is_measured and summary.is_timed else None
    )


def prompt_rows(summary: RunSummary) -> Iterator[dict[str, object]]:
    """Yield a row of a data frame for each method and prompt, over the repeats that completed."""
    folder = Path(summary.folder)
    records = list(read(folder))
    stored = scores_of(folder)
    combined = {metric["name"]: metric["combine"] for metric in stored["metrics"]}
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for scored in scores_by_prompt(stored, {record.sample: record.prompt for record in records})["rows"]:
        value = scored["values"].get(stored["headline"])
        if isinstance(value, float | int) and combined[stored["headline"]] == "mean":
            scores[scored["method"], scored["sample"]].append(value)
    for row in summary.measured_methods:
        prompts: dict[str, list[Record]] = defaultdict(list)
        for record in complete(records, row.method):
            prompts[record.prompt].append(record)
        for prompt, rows in prompts.items():
            prompt_scores = scores[row.method, prompt]
            yield {
                **_setting(summary, row),
                "prompt": prompt,
                "prompt_tokens": rows[0].prompt_tokens,
                "generations": len(rows),
                "tokens": token_count(rows),
                "seconds": sum(map(seconds, rows)) if summary.is_timed else None,
                "end_to_end_seconds": sum(seconds(record, end_to_end=True) for record in rows)
                if summary.is_timed
                else None,
                "tokens_per_second": tokens_per_second(rows) if summary.is_timed else None,
                "acceptance_rate": acceptance_rate(rows),
                "accepted_length": accepted_length(rows),
                "score": sum(prompt_scores) / len(prompt_scores) if prompt_scores else None,
            }


def position_rows(summary: RunSummary) -> Iterator[dict[str, object]]:
    """Yield a row of a data frame for each method that drafts and each position in its drafts."""
    records = list(read(Path(summary.folder)))
    for row in summary.measured_methods:
        for position, (tested, accepted) in enumerate(position_counts(complete(records, row.method)), 1):
            counts = {"tested": tested, "accepted": accepted, "acceptance_rate": accepted / tested}
            yield {**_setting(summary, row), "position": position, **counts}


def _setting(summary: RunSummary, row: MethodSummary) -> dict[str, object]:
    temperature = summary.decoding.temperature
    return {"pair": summary.pair, "task": summary.task, "method": row.method, "temperature": temperature}


def _estimate(name: str, value: object) -> dict[str, float | None]:
    """Return the columns of a value with its interval."""
    numbers = (value.value, value.low, value.high) if isinstance(value, Estimate) else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))
