"""Scoring of stored generations, independent of decoding and repeatable."""

import dataclasses
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.data.task import Data, Sample, Task
from specbench.errors import ConfigError, MissingAsset, PluginError, exits_as_errors, hint, short_repr
from specbench.files import read_with_checksum, write_with_checksum
from specbench.runs.record import Record
from specbench.runs.run_folder import CONFIG, SCORES, ScoreRow, Scores, read, require_texts, spec_of
from specbench.sandbox import Sandbox
from specbench.scoring import NO_ANSWER, Score

GRADER = 12  # hex digits of a grader's checksum
SHOWN = 800  # characters of a prompt, and of a reference, in scores.json


def is_scored(folder: Path, task: Task, sandbox: Sandbox | None) -> bool:
    """Return whether all generations of a folder are scored by this version of the task."""
    scores = _stored(folder)
    if scores is None or scores["version"] != task.version:
        return False
    if any(grader_of(task) not in metric["signature"] for metric in scores["metrics"]):
        return False
    if task.executes_code and sandbox is not None and scores.get("sandbox") != sandbox.signature:
        return False
    records = list(read(folder))
    scored = {(row["method"], row["sample"], row["repeat"]) for row in scores["rows"]}
    return bool(scores["records"] == len(records) and scored == {r.key for r in records if r.error is None})


def grader_of(task: Task) -> str:
    """Return the checksum of the files that define a plugin's task; empty for a bundled task, which has a version."""
    classes = [
        class_
        for class_ in type(task).__mro__
        if issubclass(class_, Task) and not class_.__module__.startswith("specbench.")
    ]
    modules = dict.fromkeys(sys.modules.get(class_.__module__) for class_ in classes)
    files = [file for module in modules if (file := getattr(module, "__file__", None))]
    digest = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files))
    return f"grader:{digest.hexdigest()[:GRADER]}" if files else ""


def is_executed(folder: Path) -> bool:
    """Return whether the scores of a folder come from executing generated code."""
    scores = _stored(folder)
    return scores is not None and bool(scores.get("sandbox"))


def _stored(folder: Path) -> Scores | None:
    """Return the stored scores; None if they are missing or damaged, since generations can be scored again."""
    path = folder / SCORES
    try:
        return read_with_checksum(path, Scores) if path.exists() else None
    except (ConfigError, TypeError, ValueError):
        return None


def score(
    folder: Path, task: Task, data: Data, sandbox: Sandbox | None, advance: Callable[[], None] = lambda: None
) -> None:
    """Score every generation of a run folder and write scores.json; `advance` is called after each.

    Text of a fixed length gets no score, since it continues after the end of the answer. Without a sandbox, tasks that
    execute generated code get none; their generations can be scored later. Raises ConfigError for an imported run without
    texts.
    """
    require_texts(folder)
    signature = f"task:{task.name}@{task.version}|chat:{task.chat}"
    if grader := grader_of(task):
        signature += f"|{grader}"
    if task.executes_code and sandbox:
        signature += f"|{sandbox.signature}"
    fixed_length = spec_of(folder).decoding.ignore_eos
    samples = {sample.id: sample for sample in data.samples}
    records, rows = list(read(folder)), []
    for record in records:
        if record.error is None:
            sample = samples[record.sample]
            values = {} if fixed_length else grade(task, sample, record, sandbox)
            rows.append(_row(record, sample.group, values))
        advance()
    scores = {
        "schema": 1,
        "version": task.version,
        "metrics": [
            dataclasses.asdict(metric) | {"signature": f"{metric.signature}|{signature}"} for metric in task.metrics
        ],
        "headline": task.headline,
        "sandbox": sandbox.signature if sandbox and task.executes_code else None,
        "not_executed": task.executes_code and sandbox is None,
        "records": len(records),
        "samples": {sample: _excerpt(samples[sample]) for sample in dict.fromkeys(record.sample for record in records)},
        "rows": rows,
    }
    write_with_checksum(folder / SCORES, scores)


def task_of(folder: Path, source: str = "") -> tuple[Task, Data]:
    """Return the task of a run with its options, and read its samples again.

    `source` replaces the recorded source if the rows have moved. Rows from the hub are read at the recorded commit.
    Raises ConfigError if they are not the rows of the run.
    """
    spec = spec_of(folder).task
    task = Task.build(spec.options, f"{folder / CONFIG}: task")
    if not source and spec.data.revision:
        task = dataclasses.replace(task, revision=spec.data.revision)
    from_hub = task.hub is not None and spec.data.source.startswith(f"{task.hub.repo}/")
    try:
        data = task.data(source or ("hub" if from_hub else spec.data.source))
    except MissingAsset as error:
        if source:
            raise
        raise MissingAsset(f"the rows of {folder} are not here: {error}; help: --data FILE") from None
    if data.sha256 != spec.data.sha256:
        raise ConfigError(f"{data.source} does not contain the rows of {folder}; help: --data FILE.jsonl")
    return task, data


def grade(task: Task, sample: Sample, record: Record, sandbox: Sandbox | None) -> Score:
    """Return the metrics of a record of any kind by its text; {} if the grader returns None.

    Raises PluginError if the grader exits or returns no dictionary, and ConfigError for values that are none of its metrics.
    """
    with exits_as_errors(f"task {task.name}: score()"):
        values: Any = task.score(sample, record.text, sandbox)
    if values is not None and not isinstance(values, dict):
        raise PluginError(
            f"task {task.name}: score() returned {short_repr(values)}, which is not a dictionary of metrics"
        )
    return _checked(task, values or {})


def _checked(task: Task, values: Score) -> Score:
    """Return the values as floats. Raises ConfigError for an unknown metric, or a number that is not from 0 to 1."""
    names = [metric.name for metric in task.metrics]
    for name in values:
        if name not in (*names, NO_ANSWER):
            raise ConfigError(
                f"task {task.name}: score() returned {short_repr(name)}, which is not one of its"
                f" metrics{hint(str(name), names)}"
            )
    numbers = {name: _number(task, name, value) for name, value in values.items()}
    for name, value in numbers.items():
        if isinstance(value, float) and not 0.0 <= value <= 1.0:
            raise ConfigError(f"task {task.name}: score() returned {name} = {value:g}, which must be from 0 to 1")
    return numbers


def _number(task: Task, name: str, value: Any) -> float | list[float]:
    """Return a score as a float, or as the statistics of a corpus metric. Raises ConfigError if it is not a number."""
    try:
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, str | bytes) for number in numbers):
            raise TypeError
        return [float(number) for number in value] if isinstance(value, list) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"task {task.name}: score() returned {name} = {short_repr(value)}, which is not a number"
        ) from None


def _excerpt(sample: Sample) -> dict[str, str]:
    """Return the end of the prompt and the beginning of the reference, for readers of scores.json."""
    return {
        "prompt": sample.question[-SHOWN:],
        "reference": "" if sample.reference is None else str(sample.reference)[:SHOWN],
    }


def _row(record: Record, group: str, values: Score) -> ScoreRow:
    return {
        "method": record.method,
        "sample": record.sample,
        "repeat": record.repeat,
        "group": group,
        "values": values,
    }
