"""The measurements of a run for a comparison: counters, quality, and seconds per repeat."""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.analysis.quality import scores_of
from specbench.analysis.run_metrics import complete, seconds
from specbench.files import read_with_checksum
from specbench.machine.hardware import Conditions, Environment, conditions
from specbench.runs.record import Record
from specbench.runs.run_folder import ENVIRONMENT, RunRecords, Scores, listed, load, spec_of
from specbench.runs.run_spec import RunSpec

Timing = tuple[int, float]  # tokens, seconds
Timings = dict[str, list[Timing]]  # by method, one round per repeat, of one process
Costs = dict[str, dict[str, tuple[int, float]]]  # by method and model or head: decoding forwards, their seconds


@dataclass(frozen=True)
class GenerationSummary:
    """One generation: a checksum of its ids, its counters, and the value of each metric.

    `rounds` are verification rounds, or tokens if nothing is drafted. `forwards` are by model, including prefill.
    """

    sample: str
    prompt: str  # the first sample with an equal prompt: samples with equal prompts count as one
    repeat: int
    ids: str
    tokens: int
    rounds: int
    drafted: int
    tested: int
    accepted: int
    forwards: dict[str, int]
    values: dict[str, float | list[float]] = field(default_factory=dict)

    @property
    def counters(self) -> tuple[Any, ...]:
        return self.tokens, self.rounds, self.drafted, self.tested, self.accepted, sorted(self.forwards.items())


@dataclass(frozen=True)
class MeasuredRun:
    """The measurements of one run in one or several processes."""

    spec: RunSpec
    environment: Conditions  # they affect counters and speeds
    metrics: list[dict[str, str]]  # name, signature, combine
    groups: dict[str, str]  # subject by sample; empty without subjects
    generations: dict[str, list[GenerationSummary]]  # by method
    failed: dict[str, int]  # by method
    sessions: list[Timings]  # empty without timing
    costs: Costs = field(default_factory=dict)  # empty without timing
    problems: list[str] = field(default_factory=list)  # why a run is incomplete, with counts

    @property
    def name(self) -> str:
        return f"{self.spec.pair.name}, {self.spec.task.name}, T = {self.spec.decoding.temperature:g}"

    @property
    def threads(self) -> int:
        return int(self.environment["threads"] or 0)

    @property
    def samples(self) -> int:
        return self.spec.task.data.samples


def of_run(folder: Path) -> MeasuredRun:
    """Return the measurements of a run folder. Raises ConfigError if it contains no run."""
    spec, scores, recorded = spec_of(folder), scores_of(folder), load(folder)
    records = recorded.records
    environment = read_with_checksum(folder / ENVIRONMENT, Environment)
    names = {metric["name"] for metric in scores["metrics"]}
    values = {
        (row["method"], row["sample"], row["repeat"]): {k: v for k, v in row["values"].items() if k in names}
        for row in scores["rows"]
    }
    groups = {row["sample"]: row["group"] for row in scores["rows"] if row["group"]}
    methods = list(spec.methods)
    return MeasuredRun(
        spec=spec,
        environment=conditions(environment),
        metrics=[{key: metric[key] for key in ("name", "signature", "combine")} for metric in scores["metrics"]],
        groups=groups,
        generations={
            name: [_generation(r, values.get(r.key, {})) for r in complete(records, name)] for name in methods
        },
        failed={name: sum(r.method == name and r.error is not None for r in records) for name in methods},
        sessions=[session_of(records, methods, spec.clock == "end to end")],
        costs={name: _costs(complete(records, name)) for name in methods},
        problems=_problems(recorded, scores),
    )


def _costs(records: Sequence[Record]) -> dict[str, tuple[int, float]]:
    """Return the decoding forwards and their seconds of each model and head."""
    costs: dict[str, tuple[int, float]] = {}
    for usage in (usage for record in records for usage in record.models.items()):
        role, spent = usage
        forwards, seconds = costs.get(role, (0, 0.0))
        costs[role] = (forwards + spent["forwards"], seconds + spent["seconds"])
    return costs


def _problems(recorded: RunRecords[Record], scores: Scores) -> list[str]:
    """Return why a run cannot be judged: generations that are missing, unknown, duplicate, or not scored."""
    assert recorded.expected is not None
    there, expected, out = len(recorded.records), recorded.expected.generations, []
    if there < expected:
        out.append(f"{there} of {expected} generations")
    if recorded.problems:
        out.append(f"{len(recorded.problems)} unknown, damaged or duplicate records ({listed(recorded.problems)})")
    complete = {record.key for record in recorded.records if record.error is None}
    scored = complete & {(row["method"], row["sample"], row["repeat"]) for row in scores["rows"]}
    if len(scored) < len(complete):
        out.append(f"{len(scored)} of {len(complete)} generations are scored")
    return out


def session_of(records: Sequence[Record], methods: list[str], end_to_end: bool) -> Timings:
    """Return the tokens and seconds of each method by repeat, over the prompts that all methods completed in that repeat."""
    done = {(r.method, r.sample, r.repeat): r for r in records if r.error is None}
    session: Timings = {name: [] for name in methods}
    for repeat in sorted({r.repeat for r in records}):
        samples = {r.sample for r in records if all((name, r.sample, repeat) in done for name in methods)}
        for name in methods if samples else ():
            rows = [done[name, sample, repeat] for sample in samples]
            session[name].append((sum(len(r.tokens) for r in rows), sum(seconds(r, end_to_end) for r in rows)))
    return session


def pooled(cells: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Merge the measurements of equal config and machine, and concatenate their sessions.

    Counters are those of the first session. The number of failures is the largest of any session.
    """
    out: dict[str, MeasuredRun] = {}
    for run in cells:
        key = json.dumps([run.spec.sha256, run.environment], sort_keys=True)
        if key in out:
            problems = [*out[key].problems, *run.problems]
            failed = {name: max(count, run.failed.get(name, 0)) for name, count in out[key].failed.items()}
            run = replace(out[key], sessions=[*out[key].sessions, *run.sessions], failed=failed, problems=problems)
        out[key] = run
    return list(out.values())


def _generation(record: Record, values: dict[str, float | list[float]]) -> GenerationSummary:
    sums = {key: sum(x[key] for x in record.rounds) for key in ("drafted", "tested", "accepted")}
    return GenerationSummary(
        record.sample,
        record.prompt,
        record.repeat,
        f"{zlib.crc32(json.dumps(record.tokens).encode()):08x}",
        len(record.tokens),
        len(record.rounds) or len(record.tokens),
        **sums,
        forwards={role: usage["forwards"] + bool(usage["prefill_fed"]) for role, usage in record.models.items()},
        values=values,
    )
