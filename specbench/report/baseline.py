"""What a run comes to for a comparison: counters, quality and seconds by round, of a run folder or of a baseline file.

A baseline is one JSON file, written compactly, which also says how to measure the same again.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, hint
from specbench.hardware import machine
from specbench.options import Options
from specbench.records import SAMPLES, SEMANTICS, Record, read, read_json, run_config, write
from specbench.report import metrics as m
from specbench.report.quality import scores_of

SCHEMA = 1
LIBRARIES = ("torch", "torchao", "transformers", "tokenizers", "numpy")  # what decides a number's last bits
NOT_COMPARED = ("traffic", "shapes")  # of a pair: they follow from its models
TOLD = ("report", "data")  # what a head says of itself

Round = tuple[int, float]  # tokens, seconds
Session = dict[str, list[Round]]  # method -> its rounds, one a repeat, of one process


@dataclass(frozen=True)
class Generation:
    """What decoding one prompt once gave: a checksum of the ids, counters, and the value of each metric.

    `rounds` are verification rounds (tokens, where nothing is drafted); `forwards` are by model, prefill included.
    """

    sample: str
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
class Measured:
    """One cell as it was measured, in one process or in several."""

    config: dict[str, Any]  # the run's, resolved
    environment: dict[str, Any]  # what counters and speeds depend on
    metrics: list[dict[str, str]]  # name, signature, combine
    groups: dict[str, str]  # sample -> its subject; empty where all are of one
    generations: dict[str, list[Generation]]  # by method
    failed: dict[str, int]  # by method
    sessions: list[Session]  # empty where no timing is kept

    @property
    def name(self) -> str:
        decoding = self.config["decoding"]
        return f"{self.config['pair']['name']}, {self.config['task']['name']}, T = {decoding['temperature']:g}"

    @property
    def samples(self) -> int:
        return int(self.config["task"]["data"]["samples"])


@dataclass(frozen=True)
class Baseline:
    """Cells, and the commands that measure them: methods, pair, tasks and options each."""

    commands: list[dict[str, Any]]
    cells: list[Measured]
    counters_only: bool

    def dumps(self) -> str:
        """JSON, a line a cell's part, so that a changed baseline can be reviewed."""
        head = {"schema": SCHEMA, "semantics": SEMANTICS, "counters_only": self.counters_only}
        lines = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
        lines.append('"commands": [\n  ' + ",\n  ".join(map(_compact, self.commands)) + "\n]")
        lines.append('"cells": [\n' + ",\n".join(map(_cell_text, self.cells)) + "\n]")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, self.dumps())


def load(path: Path, outdated: bool = False) -> Baseline:
    """A baseline file. Raises ConfigError where it is none or holds nothing, and, unless `outdated` ones will do, where it
    was recorded when numbers had another meaning."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        schema, semantics, cells = told["schema"], told["semantics"], told["cells"]
        commands, counters_only = told["commands"], told["counters_only"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise ConfigError(f"{path} is no baseline; help: specbench gate --record {path} -m METHOD ...") from None
    if schema != SCHEMA or (semantics != SEMANTICS and not outdated):
        help_ = f"specbench gate --baseline {path} --update" if schema == SCHEMA else "specbench gate --record"
        raise ConfigError(f"{path} was recorded by another version of specbench; help: {help_}")
    if not cells:
        raise ConfigError(f"{path} holds no cells; help: specbench gate --record {path} -m METHOD ...")
    for command in commands:
        _require_command(command, path)
    try:
        return Baseline(commands, [_cell_of(each) for each in cells], counters_only)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}: {error}); help: restore it, or --record"
        ) from None


def _require_command(command: Any, path: Path) -> None:
    """Raises ConfigError where a command, which a reviewer may have edited, is none that can be measured."""
    known = {each.name for each in fields(Options)}
    if not isinstance(command, dict) or command.keys() != {"methods", "pair", "tasks", "options"}:
        raise ConfigError(f"{path}: a command has methods, pair, tasks and options, and this is {command}")
    for key in command["options"]:
        if key not in known:
            raise ConfigError(f"{path}: unknown option '{key}'{hint(key, known)}")


def open_(path: Path) -> list[Measured]:
    """The cells of a baseline file, of a run folder, or of a folder of run folders, those of one config pooled."""
    if path.is_file():
        return load(path).cells
    folders = [path] if (path / SAMPLES).exists() else sorted(each.parent for each in path.glob(f"**/{SAMPLES}"))
    if not folders:
        raise ConfigError(f"{path} holds no run and is no baseline file; help: specbench run")
    return pooled(map(of_run, folders))


def of_run(folder: Path) -> Measured:
    """A run folder as one process measured it. Raises ConfigError where it holds no run."""
    config, scores, records = run_config(folder), scores_of(folder), list(read(folder))
    if config.get("semantics") != SEMANTICS:
        raise ConfigError(f"{folder} was written by another version of specbench; measure anew")
    environment = read_json(folder / "env.json")
    wanted = {each["name"] for each in scores["metrics"]}
    values = {
        (row["method"], row["sample"], row["repeat"]): {k: v for k, v in row["values"].items() if k in wanted}
        for row in scores["rows"]
    }
    groups = {row["sample"]: row["group"] for row in scores["rows"] if row["group"]}
    methods = list(config["methods"])
    return Measured(
        config=_compared(config),
        environment=condition(environment),
        metrics=[{key: each[key] for key in ("name", "signature", "combine")} for each in scores["metrics"]],
        groups=groups,
        generations={
            name: [_generation(r, values.get(r.key, {})) for r in m.complete(records, name)] for name in methods
        },
        failed={name: sum(r.method == name and r.error is not None for r in records) for name in methods},
        sessions=[session_of(records, methods, config["clock"] == "end to end")],
    )


def condition(environment: dict[str, Any]) -> dict[str, Any]:
    """What of a fingerprint counters and speeds depend on, and the revision, for whoever reads it."""
    libraries = {name: environment["packages"].get(name, "") for name in LIBRARIES}
    told = {"instructions": environment.get("instructions", ""), "cores": environment["cores"]}
    return machine(environment) | libraries | told | {"revision": environment.get("git", {}).get("revision", "")}


def session_of(records: Sequence[Record], methods: list[str], end_to_end: bool) -> Session:
    """Tokens and seconds of each method by round, over those prompts that every method completed in that round."""
    done = {(r.method, r.sample, r.repeat): r for r in records if r.error is None}
    session: Session = {name: [] for name in methods}
    for repeat in sorted({r.repeat for r in records}):
        samples = {r.sample for r in records if all((name, r.sample, repeat) in done for name in methods)}
        for name in methods if samples else ():
            rows = [done[name, sample, repeat] for sample in samples]
            session[name].append((sum(len(r.tokens) for r in rows), sum(m.seconds(r, end_to_end) for r in rows)))
    return session


def pooled(cells: Iterable[Measured]) -> list[Measured]:
    """Cells of one config and machine as one, with the sessions of all; counters are the first one's, and of failures the
    most that a session had."""
    out: dict[str, Measured] = {}
    for each in cells:
        key = json.dumps([each.config, each.environment], sort_keys=True)
        if key in out:
            failed = {name: max(count, each.failed.get(name, 0)) for name, count in out[key].failed.items()}
            each = replace(out[key], sessions=[*out[key].sessions, *each.sessions], failed=failed)
        out[key] = each
    return list(out.values())


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    """The config without what follows from the rest of it."""
    pair = {key: value for key, value in config["pair"].items() if key not in NOT_COMPARED}
    if "heads" in pair:
        pair["heads"] = {
            name: {key: value for key, value in head.items() if key not in TOLD} for name, head in pair["heads"].items()
        }
    return {**config, "pair": pair}


def _generation(record: Record, values: dict[str, float | list[float]]) -> Generation:
    sums = {key: sum(x[key] for x in record.rounds) for key in ("drafted", "tested", "accepted")}
    return Generation(
        record.sample,
        record.repeat,
        f"{zlib.crc32(json.dumps(record.tokens).encode()):08x}",
        len(record.tokens),
        len(record.rounds) or len(record.tokens),
        **sums,
        forwards={role: calls["forwards"] + bool(calls["prefill_fed"]) for role, calls in record.models.items()},
        values=values,
    )


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _cell_text(cell: Measured) -> str:
    """A cell: a line for its config, one for each method's generations, one for each session."""
    parts = {key: getattr(cell, key) for key in ("config", "environment", "metrics", "groups", "failed")}
    lines = [f'"{key}":{_compact(value)}' for key, value in parts.items()]
    methods = [f'"{name}":{_compact(_packed(rows, cell))}' for name, rows in cell.generations.items()]
    lines.append('"generations":{\n  ' + ",\n  ".join(methods) + "}")
    lines.append('"sessions":[' + ",\n  ".join(_compact(_rounded(each)) for each in cell.sessions) + "]")
    return "{" + ",\n ".join(lines) + "}"


def _packed(rows: list[Generation], cell: Measured) -> dict[str, Any]:
    """Rows of numbers under one list of roles and one of metrics."""
    roles = sorted({role for row in rows for role in row.forwards})
    names = [each["name"] for each in cell.metrics]
    return {"roles": roles, "rows": [
        [row.sample, row.repeat, row.ids, row.tokens, row.rounds, row.drafted, row.tested, row.accepted,
         [row.forwards.get(role) for role in roles], [row.values.get(name) for name in names]]
        for row in rows
    ]}  # fmt: skip


def _rounded(session: Session) -> Session:
    return {name: [(tokens, round(seconds, 6)) for tokens, seconds in rounds] for name, rounds in session.items()}


def _cell_of(told: dict[str, Any]) -> Measured:
    names = [each["name"] for each in told["metrics"]]
    generations = {
        method: [_row_of(row, table["roles"], names) for row in table["rows"]]
        for method, table in told["generations"].items()
    }
    sessions = [{name: [(int(n), s) for n, s in rounds] for name, rounds in each.items()} for each in told["sessions"]]
    return Measured(**{**told, "generations": generations, "sessions": sessions})


def _row_of(row: list[Any], roles: list[str], names: list[str]) -> Generation:
    sample, repeat, ids, tokens, rounds, drafted, tested, accepted, forwards, values = row
    counted = _named(roles, forwards), _named(names, values)
    return Generation(sample, repeat, ids, tokens, rounds, drafted, tested, accepted, *counted)


def _named(names: list[str], values: list[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
