"""Requests as JSON: one schema for snapshots, and for the files by which processes hand requests to one another."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypedDict

from specbench.config.options import Options
from specbench.config.request import Request
from specbench.config.shard import Shard
from specbench.errors import ConfigError, hint
from specbench.files import checked


class RequestTable(TypedDict):
    """A request as JSON: methods, pair and tasks, and the options that differ from their defaults."""

    methods: list[str]
    pair: str
    tasks: list[str]
    options: dict[str, Any]


def table_of(request: Request) -> RequestTable:
    """Return a request as JSON. Plugins are left out: a snapshot does not hold their code."""
    return {
        "methods": list(request.methods),
        "pair": request.pair,
        "tasks": list(request.tasks),
        "options": options_table(request.options.changes()) | {"repeats": request.options.repeats},
    }


def options_table(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by name as JSON, without plugins."""
    return {
        name: asdict(value) if isinstance(value, Shard) else value
        for name, value in options.items()
        if name != "plugins"
    }


def request_from(table: RequestTable, path: Path | str = "options") -> Request:
    """Return what `table_of` was given. Raises ConfigError for an unknown key or option, or a wrong type."""
    if unknown := table.keys() - RequestTable.__annotations__.keys():
        raise ConfigError(
            f"{path}: unknown key '{min(unknown)}' in a request{hint(min(unknown), RequestTable.__annotations__)}"
        )
    return Request(
        methods=tuple(table["methods"]),
        pair=table["pair"],
        tasks=tuple(table["tasks"]),
        options=options_of(table["options"], path),
    )


def options_of(table: Mapping[str, Any], path: Path | str = "options") -> Options:
    """Return options from the fields that differ from their defaults. Raises ConfigError for an unknown or wrong one."""
    names = {option.name for option in fields(Options)}
    for key in table:
        if key not in names:
            raise ConfigError(f"{path}: unknown option '{key}'{hint(key, names)}")
    return checked(dict(table), Options, str(path))
