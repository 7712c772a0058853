"""A baseline: one JSON file, written compactly, of what was measured, which also says how to measure the same again."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from specbench.config.options import Options
from specbench.errors import ConfigError, hint
from specbench.files import checked, read_json, write
from specbench.regression.measurement import Generation, Measured, Session, of_run, pooled
from specbench.runs.record import SAMPLES, SEMANTICS, ConfigTable, MetricTable

SCHEMA = 1


Row = tuple[str, int, str, int, int, int, int, int, list[int | None], list[float | list[float] | None]]


class Command(TypedDict):
    """What measures cells of a baseline: the arguments and the options of a run that are not the default."""

    methods: list[str]
    pair: str
    tasks: list[str]
    options: dict[str, Any]


class _Models(TypedDict):
    name: str
    models: dict[str, dict[str, Any]]


class _Config(ConfigTable):
    pair: _Models


class _Environment(TypedDict):
    threads: int


class _Generations(TypedDict):
    roles: list[str]
    rows: list[Row]


class _Cell(TypedDict):
    config: _Config
    environment: _Environment
    metrics: list[MetricTable]
    groups: dict[str, str]
    failed: dict[str, int]
    generations: dict[str, _Generations]
    sessions: list[dict[str, list[tuple[int, float]]]]


class _File(TypedDict):
    schema: int
    semantics: int
    counters_only: bool
    commands: list[Command]
    cells: list[_Cell]


@dataclass(frozen=True)
class Baseline:
    """Cells, and the commands that measure them: methods, pair, tasks and options each."""

    commands: list[Command]
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
    recording = f"help: specbench gate --record {path} -m METHOD ..."
    try:
        table = read_json(path, dict[str, Any])
        schema, semantics = table["schema"], table["semantics"]
    except (ConfigError, KeyError):
        raise ConfigError(f"{path} is no baseline; {recording}") from None
    if schema != SCHEMA or (semantics != SEMANTICS and not outdated):
        help_ = f"specbench gate --baseline {path} --update" if schema == SCHEMA else "specbench gate --record"
        raise ConfigError(f"{path} was recorded by another version of specbench; help: {help_}")
    checked(table, _File, str(path))
    if not table["cells"]:
        raise ConfigError(f"{path} holds no cells; {recording}")
    for command in table["commands"]:
        _require_command(command, path)
    for cell in table["cells"]:
        methods = cell["config"]["methods"].keys()
        if (
            not methods == cell["generations"].keys() == cell["failed"].keys()
            or cell["config"]["baseline"] not in methods
        ):
            raise ConfigError(f"{path}: damaged: a cell's methods, generations and failures do not match")
    try:
        return Baseline(table["commands"], [_cell_of(each) for each in table["cells"]], table["counters_only"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}: {error}); help: restore it, or --record"
        ) from None


def options_of(command: Command, path: Path | str = "options") -> Options:
    """The options of a command as JSON gives them back. Raises ConfigError for an unknown one, or one of another type."""
    known = {each.name for each in fields(Options)}
    for key in command["options"]:
        if key not in known:
            raise ConfigError(f"{path}: unknown option '{key}'{hint(key, known)}")
    return checked(command["options"], Options, str(path))


def _require_command(command: Command, path: Path) -> None:
    """Raise ConfigError where a command, which a reviewer may have edited, cannot be measured."""
    if unknown := command.keys() - Command.__annotations__.keys():
        raise ConfigError(
            f"{path}: unknown key '{min(unknown)}' in a command{hint(min(unknown), Command.__annotations__)}"
        )
    options_of(command, path)


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


def _cell_of(stored: dict[str, Any]) -> Measured:
    names = [each["name"] for each in stored["metrics"]]
    generations = {
        method: [_row_of(row, table["roles"], names) for row in table["rows"]]
        for method, table in stored["generations"].items()
    }
    sessions = [
        {name: [(int(n), s) for n, s in rounds] for name, rounds in each.items()} for each in stored["sessions"]
    ]
    return Measured(**{**stored, "generations": generations, "sessions": sessions})


def _row_of(row: list[Any], roles: list[str], names: list[str]) -> Generation:
    sample, repeat, ids, tokens, rounds, drafted, tested, accepted, forwards, values = row
    counted = _named(roles, forwards), _named(names, values)
    return Generation(sample, repeat, ids, tokens, rounds, drafted, tested, accepted, *counted)


def _named(names: list[str], values: list[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
