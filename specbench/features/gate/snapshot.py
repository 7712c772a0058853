"""A snapshot: one JSON file with what was measured, and the commands that measure it again.

What is compared of a run: counters, quality, and seconds per repeat.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from specbench.analysis.method_records import complete, seconds
from specbench.analysis.quality import scores_of
from specbench.config.construct import Table
from specbench.config.request import Request
from specbench.config.request_table import RequestTable, request_from, table_of
from specbench.errors import ConfigError
from specbench.files import checked, read_with_checksum
from specbench.machine.hardware import Conditions, Environment, conditions
from specbench.runs.record import Record
from specbench.runs.run_folder import ENVIRONMENT, MetricTable, RunRecords, Scores, listed, runs_in, spec_of
from specbench.runs.run_folder import load as load_records
from specbench.runs.run_spec import SEMANTICS, RunSpec

Timing = tuple[int, float]  # tokens, seconds
Timings = dict[str, list[Timing]]  # by method, one round per repeat, of one process
Costs = dict[str, dict[str, tuple[int, float]]]  # by method and model or head: decoding forwards, their seconds
PackedGeneration = tuple[str, int, str, int, int, int, int, int, list[int | None], list[float | list[float] | None]]


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


def measured_run(folder: Path) -> MeasuredRun:
    """Return the measurements of a run folder. Raises ConfigError if it contains no run."""
    spec, scores, recorded = spec_of(folder), scores_of(folder), load_records(folder)
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
            name: [_summary_of(r, values.get(r.key, {})) for r in complete(records, name)] for name in methods
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
        forwards, time = costs.get(role, (0, 0.0))
        costs[role] = (forwards + spent.forwards, time + spent.seconds)
    return costs


def _problems(recorded: RunRecords, scores: Scores) -> list[str]:
    """Return why a run cannot be judged: generations that are missing, unknown, duplicate, or not scored."""
    assert recorded.expected is not None
    there, expected, out = len(recorded.records), recorded.expected.generations, []
    if there < expected:
        out.append(f"{there} of {expected} generations")
    if recorded.problems:
        out.append(f"{len(recorded.problems)} unknown, damaged or duplicate records ({listed(recorded.problems)})")
    completed = {record.key for record in recorded.records if record.error is None}
    scored = completed & {(row["method"], row["sample"], row["repeat"]) for row in scores["rows"]}
    if len(scored) < len(completed):
        out.append(f"{len(scored)} of {len(completed)} generations are scored")
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


def pooled(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Merge the measurements of equal config and machine, and concatenate their sessions.

    The counters come from the first session. The number of failures is the largest of any session.
    """
    out: dict[str, MeasuredRun] = {}
    for run in runs:
        key = json.dumps([run.spec.sha256, run.environment], sort_keys=True)
        if key in out:
            problems = [*out[key].problems, *run.problems]
            failed = {name: max(count, run.failed.get(name, 0)) for name, count in out[key].failed.items()}
            run = replace(out[key], sessions=[*out[key].sessions, *run.sessions], failed=failed, problems=problems)
        out[key] = run
    return list(out.values())


def _summary_of(record: Record, values: dict[str, float | list[float]]) -> GenerationSummary:
    sums = {key: sum(getattr(x, key) for x in record.rounds) for key in ("drafted", "tested", "accepted")}
    return GenerationSummary(
        record.sample,
        record.prompt,
        record.repeat,
        f"{zlib.crc32(json.dumps(record.tokens).encode()):08x}",
        len(record.tokens),
        len(record.rounds) or len(record.tokens),
        **sums,
        forwards={role: usage.forwards + bool(usage.prefill_fed) for role, usage in record.models.items()},
        values=values,
    )


class _Environment(TypedDict):
    threads: int


class _Generations(TypedDict):
    roles: list[str]
    rows: list[PackedGeneration]


class _Run(TypedDict):
    spec: Table
    environment: _Environment
    metrics: list[MetricTable]
    groups: dict[str, str]
    same_as: NotRequired[dict[str, str]]  # the first sample with an equal prompt; for those that are not it
    failed: dict[str, int]
    generations: dict[str, _Generations]
    sessions: list[dict[str, list[tuple[int, float]]]]
    costs: dict[str, dict[str, tuple[int, float]]]


class _Part(TypedDict):
    semantics: int
    counters_only: bool
    requests: list[RequestTable]
    runs: list[_Run]


@dataclass(frozen=True)
class RunSnapshot:
    """Measured runs, and the requests that measure them: a part of a snapshot file."""

    requests: list[Request]
    runs: list[MeasuredRun]
    counters_only: bool

    def text(self) -> str:
        """Return JSON with one line per part of a run, so that diffs are readable."""
        head = {"semantics": SEMANTICS, "counters_only": self.counters_only}
        lines = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
        lines.append('"requests": [\n  ' + ",\n  ".join(map(_compact, map(table_of, self.requests))) + "\n]")
        lines.append('"runs": [\n' + ",\n".join(map(_run_text, self.runs)) + "\n]")
        return "{\n" + ",\n".join(lines) + "\n}"


def parsed(table: dict[str, Any], path: Path, outdated: bool = False) -> RunSnapshot:
    """Return the runs of a snapshot file.

    Raises ConfigError if they are damaged, or if there are none. Also raises it, unless `outdated` is set, if they were
    recorded by a version that defined its numbers differently. Missing generations are listed in `MeasuredRun.problems`.
    """
    checked(table, _Part, str(path))
    if table["semantics"] != SEMANTICS and not outdated:
        raise ConfigError(f"{path} was recorded by another version of specbench; help: specbench gate update {path}")
    if not table["runs"]:
        raise ConfigError(f"{path} has no runs; help: specbench gate record {path} -m METHOD ...")
    requests = [request_from(request, path) for request in table["requests"]]
    try:
        snapshot = RunSnapshot(requests, [_parsed_run(run, path) for run in table["runs"]], table["counters_only"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}: {error}); help: restore it, or record it again"
        ) from None
    for run in snapshot.runs:
        methods = run.spec.methods.keys()
        if not methods == run.generations.keys() == run.failed.keys() or run.spec.baseline not in methods:
            raise ConfigError(f"{path}: damaged: the methods, generations and failures of {run.name} do not match")
    return snapshot


def runs_of(path: Path) -> list[MeasuredRun]:
    """Return the runs of a run folder or a folder of run folders. Runs with equal specs are pooled."""
    folders = runs_in(path)
    if not folders:
        raise ConfigError(f"{path} contains no run and is not a snapshot; help: specbench run")
    return pooled(map(measured_run, folders))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _run_text(run: MeasuredRun) -> str:
    """Return a run as JSON with the spec, each method's generations and each session on lines of their own."""
    parts = {"spec": run.spec.to_toml()}
    parts |= {key: getattr(run, key) for key in ("environment", "metrics", "groups", "failed")}
    rows = (row for rows in run.generations.values() for row in rows)
    parts["same_as"] = {row.sample: row.prompt for row in rows if row.prompt != row.sample}
    lines = [f'"{key}":{_compact(value)}' for key, value in parts.items()]
    methods = [f'"{name}":{_compact(_pack_generations(rows, run))}' for name, rows in run.generations.items()]
    lines.append('"generations":{\n  ' + ",\n  ".join(methods) + "}")
    lines.append(f'"costs":{_compact(run.costs)}')
    lines.append('"sessions":[' + ",\n  ".join(_compact(_rounded(session)) for session in run.sessions) + "]")
    return "{" + ",\n ".join(lines) + "}"


def _pack_generations(rows: list[GenerationSummary], run: MeasuredRun) -> dict[str, Any]:
    """Return generations as rows of numbers, under lists of roles and metrics."""
    roles = sorted({role for row in rows for role in row.forwards})
    names = [metric["name"] for metric in run.metrics]
    return {"roles": roles, "rows": [
        [row.sample, row.repeat, row.ids, row.tokens, row.rounds, row.drafted, row.tested, row.accepted,
         [row.forwards.get(role) for role in roles], [row.values.get(name) for name in names]]
        for row in rows
    ]}  # fmt: skip


def _rounded(session: Timings) -> Timings:
    return {name: [(tokens, round(seconds, 6)) for tokens, seconds in rounds] for name, rounds in session.items()}


def _parsed_run(stored: dict[str, Any], path: Path) -> MeasuredRun:
    names = [metric["name"] for metric in stored["metrics"]]
    same_as = stored.pop("same_as", {})
    generations = {
        method: [_parsed_generation(row, table["roles"], names, same_as) for row in table["rows"]]
        for method, table in stored["generations"].items()
    }
    sessions = [
        {name: [(int(n), s) for n, s in rounds] for name, rounds in session.items()} for session in stored["sessions"]
    ]
    spec = RunSpec.from_toml(stored["spec"], f"{path}: spec")
    costs = {method: {role: (n, s) for role, (n, s) in by_role.items()} for method, by_role in stored["costs"].items()}
    run = MeasuredRun(**{**stored, "spec": spec, "generations": generations, "sessions": sessions, "costs": costs})
    return replace(run, problems=_missing(run))


def _missing(run: MeasuredRun) -> list[str]:
    """Return which methods lack generations, with counts."""
    expected = run.samples * run.spec.decoding.repeats
    counts = {name: len(rows) + run.failed.get(name, 0) for name, rows in run.generations.items()}
    return [f"{name}: {count} of {expected} generations" for name, count in counts.items() if count != expected]


def _parsed_generation(
    row: list[Any], roles: list[str], names: list[str], same_as: dict[str, str]
) -> GenerationSummary:
    sample, repeat, ids, tokens, rounds, drafted, tested, accepted, forwards, values = row
    counted = _named(roles, forwards), _named(names, values)
    prompt = same_as.get(sample, sample)
    return GenerationSummary(sample, prompt, repeat, ids, tokens, rounds, drafted, tested, accepted, *counted)


def _named(names: list[str], values: list[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
