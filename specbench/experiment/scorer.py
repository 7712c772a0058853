"""Floor 4: stored generations to scores, apart from decoding: no model, no clock, and as often as one likes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.data.task import Data, Sample, Task
from specbench.errors import ConfigError, hint
from specbench.files import read_sealed, write_sealed
from specbench.runs.record import Record
from specbench.runs.run_folder import CONFIG, SCORES, read, spec_of
from specbench.runs.scores import Scores
from specbench.sandbox import Sandbox
from specbench.scoring.metric import NO_ANSWER, Score

TOLD = 800  # characters of a prompt, and of a reference


def is_scored(folder: Path, task: Task, sandbox: Sandbox | None) -> bool:
    """Whether scores of all the folder's generations are there, by this version of the task."""
    known = _kept(folder)
    if task.executes_code and sandbox is not None and known.get("sandbox") != sandbox.signature:
        return False
    if known.get("version") != task.version:
        return False
    records = list(read(folder))
    scored = {(row["method"], row["sample"], row["repeat"]) for row in known["rows"]}
    return bool(known["records"] == len(records) and scored == {r.key for r in records if r.error is None})


def is_executed(folder: Path) -> bool:
    """Whether the folder's scores come from running what was generated."""
    return bool(_kept(folder).get("sandbox"))


def _kept(folder: Path) -> dict[str, Any]:
    """The scores that are there; none where they are damaged, since generations can be scored again."""
    path = folder / SCORES
    try:
        return dict(read_sealed(path, Scores)) if path.exists() else {}
    except (ConfigError, TypeError, ValueError):
        return {}


def score(
    folder: Path, task: Task, data: Data, sandbox: Sandbox | None, advance: Callable[[], None] = lambda: None
) -> None:
    """Score every generation of a run folder and write scores.json; `advance` is called after each.

    Text at a fixed length runs past its end and gets no score. A task that runs what was written gets none without a
    sandbox; the generations stay, to be scored later.
    """
    told = f"task:{task.name}@{task.version}|chat:{task.chat}"
    if task.executes_code and sandbox:
        told += f"|{sandbox.signature}"
    fixed_length = spec_of(folder).decoding.ignore_eos
    samples = {sample.id: sample for sample in data.samples}
    records, rows = list(read(folder)), []
    for record in records:
        if record.error is None:
            sample = samples[record.sample]
            values = {} if fixed_length else _checked(task, task.score(sample, record.text, sandbox))
            rows.append(_row(record, sample.group, values))
        advance()
    scores = {
        "schema": 1,
        "version": task.version,
        "metrics": [
            dataclasses.asdict(metric) | {"signature": f"{metric.signature}|{told}"} for metric in task.metrics
        ],
        "headline": task.headline,
        "sandbox": sandbox.signature if sandbox and task.executes_code else None,
        "not_executed": task.executes_code and sandbox is None,
        "records": len(records),
        "samples": {each: _told(samples[each]) for each in dict.fromkeys(record.sample for record in records)},
        "rows": rows,
    }
    write_sealed(folder / SCORES, scores)


def task_of(folder: Path, source: str = "") -> tuple[Task, Data]:
    """The task that a run was on, as it was set, and its samples, read again.

    `source` is where the rows are now, if they have moved; the hub's are read at the commit of the run. Raises ConfigError
    where they are not the rows of the run.
    """
    spec = spec_of(folder).task
    task = Task.build(spec.options, f"{folder / CONFIG}: task")
    if not source and spec.data.revision:
        task = dataclasses.replace(task, revision=spec.data.revision)
    from_hub = task.hub is not None and spec.data.source.startswith(f"{task.hub.repo}/")
    data = task.data(source or ("hub" if from_hub else spec.data.source))
    if data.sha256 != spec.data.sha256:
        raise ConfigError(f"{data.source} does not hold the rows that {folder} was run on; help: --data FILE.jsonl")
    return task, data


def _checked(task: Task, values: Score) -> Score:
    """The values, which are of the task's metrics, and where they are plain numbers from 0 to 1. Raises ConfigError."""
    names = [metric.name for metric in task.metrics]
    for name in values:
        if name not in (*names, NO_ANSWER):
            raise ConfigError(
                f"task {task.name}: score() gives '{name}', which is none of its metrics{hint(name, names)}"
            )
    numbers = {name: _number(task, name, value) for name, value in values.items()}
    for name, value in numbers.items():
        if isinstance(value, float) and not 0.0 <= value <= 1.0:
            raise ConfigError(f"task {task.name}: score() gives {name} = {value:g}, which must be from 0 to 1")
    return numbers


def _number(task: Task, name: str, value: Any) -> float | list[float]:
    """A score as a Python float, or the list of a corpus metric's statistics. Raises ConfigError if it is not a number."""
    try:
        return [float(each) for each in value] if isinstance(value, list) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"task {task.name}: score() gives {name} = {value!r}, which is not a number") from None


def _told(sample: Sample) -> dict[str, str]:
    """The end of what was asked, and the beginning of what is right, for whoever reads answers."""
    asked = sample.turn or sample.prompt
    return {"prompt": asked[-TOLD:], "reference": "" if sample.reference is None else str(sample.reference)[:TOLD]}


def _row(record: Record, group: str, values: Score) -> dict[str, Any]:
    return {
        "method": record.method,
        "sample": record.sample,
        "repeat": record.repeat,
        "group": group,
        "values": values,
    }
