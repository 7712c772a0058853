"""`specbench schema`: JSON Schemas of the TOML files, for editors and other programs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specbench.cli.params import Plugins, complete_kinds, import_plugins
from specbench.config.pair import Pair
from specbench.config.schema import Rules, family_schema, object_schema, suite_schema
from specbench.errors import ConfigError, hint
from specbench.machine.accelerator import Accelerator
from specbench.runs.run_spec import RunSpec

NAMES = tuple[str, ...] | str  # a list of roles, or a role or `ensemble`
SECOND_NAME = {
    "description": "A second name of another preset. Only in bundled presets.",
    "type": "object",
    "properties": {"same_as": {"type": "string"}},
    "required": ["same_as"],
    "additionalProperties": False,
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The key that `specbench curve --over auto` sweeps, and its values."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class MethodFile:
    """What the file of a method holds besides the constructor's keys."""

    description: str = ""
    baseline: str = ""
    temperature: float = 0.0
    clock: Literal["decoding", "end to end"] = "decoding"
    sweep: Sweep


def method_schema() -> dict[str, Any]:
    """Return the schema of a method. Imports torch, as the classes of the methods need it."""
    import specbench.methods  # noqa: F401  (registers the methods, proposers, stop rules and targets)
    from specbench.decoding.method import Method

    rules = Rules(
        extra=MethodFile,
        optional=frozenset({"gamma", "head"}),  # resolved from the models' sizes and the pair's heads
        types={"scorers": NAMES, "models": NAMES},
    )
    return family_schema(Method, "specbench method", rules, others=[SECOND_NAME])


def task_schema() -> dict[str, Any]:
    """Return the schema of a task."""
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench.data.task import Task

    return family_schema(Task, "specbench task")


def pair_schema() -> dict[str, Any]:
    """Return the schema of a pair."""
    return object_schema(Pair, "specbench pair")


def run_schema() -> dict[str, Any]:
    """Return the schema of a run folder's run.toml."""
    return object_schema(RunSpec, "specbench run")


def machine_schema() -> dict[str, Any]:
    """Return the schema of a machine to plan for."""
    return object_schema(Accelerator, "specbench machine")


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "method": method_schema,
    "pair": pair_schema,
    "task": task_schema,
    "suite": suite_schema,
    "machine": machine_schema,
    "run": run_schema,
}


def schema(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="method, pair, task, suite, machine or run. [all]", metavar="[KIND]", autocompletion=complete_kinds
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write KIND.schema.json files into this folder.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write JSON Schemas of the TOML files, for editors and checks.

    Without --out, the schema of KIND is printed. Without KIND, the output is one object with the schema of every kind.
    """
    if kind is not None and kind not in SCHEMAS:
        raise ConfigError(f"unknown kind '{kind}'{hint(kind, SCHEMAS)}")
    import_plugins(plugin)
    made = {kind_: SCHEMAS[kind_]() for kind_ in ([kind] if kind else SCHEMAS)}
    if out is None:
        print(_text(made[kind] if kind else made), end="")
        return
    out.mkdir(parents=True, exist_ok=True)
    for kind_name, node in made.items():
        path = out / f"{kind_name}.schema.json"
        path.write_text(_text(node), encoding="utf-8")
        print(path)


def _text(node: dict[str, Any]) -> str:
    return json.dumps(node, indent=2, ensure_ascii=False) + "\n"
