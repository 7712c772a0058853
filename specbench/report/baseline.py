"""A baseline: one JSON file, written compactly, of what was measured, which also says how to measure the same again."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, hint
from specbench.files import write
from specbench.options import Options
from specbench.records import SAMPLES, SEMANTICS
from specbench.report.measured import Generation, Measured, Session, of_run, pooled

SCHEMA = 1


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
