"""Requests as JSON, for snapshots and for files that child processes read."""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict

from specbench.config.options import Options
from specbench.config.request import Request
from specbench.errors import ConfigError, hint
from specbench.files import checked


class Command(TypedDict):
    """A request as JSON: methods, pair and tasks, and the options that differ from their defaults."""

    methods: list[str]
    pair: str
    tasks: list[str]
    options: dict[str, Any]


def command_of(request: Request) -> Command:
    """Return a request as JSON. Plugins are left out: a snapshot does not hold their code."""
    options = {name: value for name, value in request.options.changes().items() if name != "plugins"}
    return {
        "methods": list(request.methods),
        "pair": request.pair,
        "tasks": list(request.tasks),
        "options": options | {"repeats": request.options.repeats},
    }


def request_of(command: Command, path: Path | str = "options") -> Request:
    """Return what `command_of` was given. Raises ConfigError for an unknown key or option, or a wrong type."""
    if unknown := command.keys() - Command.__annotations__.keys():
        raise ConfigError(
            f"{path}: unknown key '{min(unknown)}' in a command{hint(min(unknown), Command.__annotations__)}"
        )
    names = {option.name for option in fields(Options)}
    for key in command["options"]:
        if key not in names:
            raise ConfigError(f"{path}: unknown option '{key}'{hint(key, names)}")
    return Request(
        methods=tuple(command["methods"]),
        pair=command["pair"],
        tasks=tuple(command["tasks"]),
        options=checked(command["options"], Options, str(path)),
    )
