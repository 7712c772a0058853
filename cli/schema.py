"""`specbench schema`: JSON Schemas (draft 2020-12) of the TOML files, for editors and other programs.

`object_schema` and `family_schema` follow `specbench.config.construct`: they describe what `construct` and `Named.build`
accept. JSON Schema cannot express every check of `__post_init__`, such as ranges, so a valid file can still be rejected.
"""

import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specbench.cli.params import Plugins, complete_kinds, import_plugins
from specbench.config.construct import Named, Spelled
from specbench.config.options import FLAGS, Options
from specbench.config.pair import Pair
from specbench.errors import ConfigError, hint
from specbench.features.suites.suite import GridLine, Suite
from specbench.machine.accelerator import Accelerator
from specbench.runs.run_spec import RunSpec
from specbench.vocabulary import Advised, DefaultFor

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number"}
Node = dict[str, Any]  # a JSON Schema
LENGTH: Node = {"type": "integer", "minimum": 1}
LENGTHS: Node = {"anyOf": [LENGTH, {"type": "array", "items": LENGTH, "minItems": 1}]}
NAMES = tuple[str, ...] | str  # a list of roles, or a role or `ensemble`
SECOND_NAME = {
    "description": "A second name of another preset. Only in bundled presets.",
    "type": "object",
    "properties": {"same_as": {"type": "string"}},
    "required": ["same_as"],
    "additionalProperties": False,
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a TOML file differs from the constructor's parameters.

    `extra` is a dataclass of keys that the file holds in addition. `optional` are keys that the file may leave out because
    they are resolved later. `types` replaces the type of a key. `hidden` are fields that no file sets.
    """

    extra: type | None = None
    optional: frozenset[str] = frozenset()
    types: dict[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()


def object_schema(kind: type, title: str, rules: Rules | None = None) -> Node:
    """Return the schema of a file that describes one dataclass. Raises TypeError for a field type that no TOML value has."""
    builder = _Builder(rules or Rules())
    root = builder.table(kind, top=True)
    return {"$schema": DRAFT, "title": title, **root, "$defs": builder.definitions}


def family_schema(
    family: type[Named], title: str, rules: Rules | None = None, *, others: typing.Sequence[Node] = ()
) -> Node:
    """Return the schema of a file that describes a member of a family, selected by the key `name`.

    `others` are schemas of files that are accepted as well.
    """
    builder = _Builder(rules or Rules())
    members = [builder.table(member, top=True, name=name) for name, member in sorted(family.members.items())]
    root = {"description": _description(family), "type": "object", "oneOf": [*members, *others]}
    return {"$schema": DRAFT, "title": title, **root, "$defs": builder.definitions}


def suite_schema() -> Node:
    """Return the schema of a suite: the fields of `Suite`, with `options` and `grid` as `read_suite` reads them."""
    builder = _Builder(Rules(hidden=frozenset({"name", "requested"})))
    suite, line = builder.table(Suite, top=True), builder.table(GridLine)
    keys = builder.fields(Options, skip={name for name, flag in FLAGS.items() if flag.word})
    for name, flag in FLAGS.items():
        if flag.choices and name != "device":  # which may have a number
            keys[name] = {**keys[name], "enum": [choice.value for choice in flag.choices]}
    keys |= {
        "data": _scoped({"type": "string"}, "FILE, hub or synthetic: for all tasks, or by task."),
        "gamma": _scoped(LENGTHS, "A draft length, or one per model: for all methods, or by method."),
        "set": _mapping({}, "Overrides: `task.shots = 0`, `method.target.mu = 0.2`."),
        "over": _mapping(
            {"anyOf": [{"type": "array", "minItems": 1}, {"const": "auto"}]}, "Swept keys and their values."
        ),
        "head": _mapping({"type": "string"}, "Folders of heads, by name, kind or KIND@BASE."),
    }
    options = _object("Options of `specbench run`.", keys, [])
    lists = {key: {**line["properties"][key], "minItems": 1} for key in ("methods", "pairs", "tasks")}
    row = _object(_description(GridLine), lists | keys, sorted(lists))
    suite["properties"] |= {"options": options, "grid": {"type": "array", "items": row, "minItems": 1}}
    return {"$schema": DRAFT, "title": "specbench suite", **suite, "$defs": builder.definitions}


class _Builder:
    """Collects the definitions that one schema refers to."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.definitions: dict[str, Node] = {}

    def node(self, kind: Any) -> Node:
        """Return the schema of a field's type."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in (Any, object):
            return {}
        if kind in SCALARS:
            return {"type": SCALARS[kind]}
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in (types.UnionType, typing.Union):
            nodes = [self.node(argument) for argument in arguments if argument is not type(None)]
            return nodes[0] if len(nodes) == 1 else {"anyOf": nodes}
        if origin in (tuple, list):
            return {"type": "array", "items": self.node(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.node(arguments[1])}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and issubclass(kind, Named):
            return self._family(kind)
        if isinstance(kind, type) and issubclass(kind, Spelled):
            return {"type": "string", "pattern": kind.pattern}
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._reference(kind.__name__, lambda: self.table(kind))
        raise TypeError(f"no JSON Schema for {kind!r}")

    def table(self, kind: type, top: bool = False, name: str = "") -> Node:
        """Return the schema of a table of a dataclass's fields, with the key `name` for a member of a family."""
        keys: dict[str, Node] = {"name": {"const": name}} if name else {}
        required = ["name"] if name else []
        if dataclasses.is_dataclass(kind):  # a plugin's class without fields need not be one
            keys |= self.fields(kind, skip=self.rules.hidden)
            required += [key for key in _required(kind) if key in keys and key not in self.rules.optional]
        if top and self.rules.extra:
            keys |= self.fields(self.rules.extra)
        return _object(_description(kind), keys, required)

    def fields(self, kind: type, skip: typing.Collection[str] = ()) -> dict[str, Node]:
        """Return the schemas of a dataclass's fields by key, with simple defaults."""
        nodes: dict[str, Node] = {}
        hints = typing.get_type_hints(kind)
        for field_ in dataclasses.fields(kind):
            if field_.init and field_.name not in skip:
                node = self.node(self.rules.types.get(field_.name, hints[field_.name]))
                default = str(field_.default) if isinstance(field_.default, Spelled) else field_.default
                simple = isinstance(default, str | bool | int | float)
                nodes[field_.name] = {**node, "default": default} if simple else node
        return nodes

    def _family(self, kind: type[Named]) -> Node:
        family = _family_of(kind)

        def member(name: str) -> Node:
            return self._reference(f"{family.__name__}.{name}", lambda: self.table(family.members[name], name=name))

        def build() -> Node:
            members = [member(name) for name in sorted(family.members)]
            return {"description": _description(family), "type": "object", "oneOf": members}

        return self._reference(family.__name__, build)

    def _reference(self, name: str, build: typing.Callable[[], Node]) -> Node:
        if name not in self.definitions:
            self.definitions[name] = {}  # families contain themselves: a chain has a proposer
            self.definitions[name] = build()
        return {"$ref": f"#/$defs/{name}"}


def _family_of(kind: type) -> type[Named]:
    """Return the base of a member's family: the class directly below `Named`."""
    return next(class_ for class_ in kind.__mro__ if Named in class_.__bases__)


def _required(kind: Any) -> list[str]:
    missing = dataclasses.MISSING
    return [
        field_.name
        for field_ in dataclasses.fields(kind)
        if field_.default is field_.default_factory is missing and field_.init
    ]


def _object(description: str, properties: dict[str, Node], required: list[str]) -> Node:
    node: Node = {"description": description, "type": "object", "properties": properties, "additionalProperties": False}
    return {**node, "required": required} if required else node


def _scoped(value: Node, description: str) -> Node:
    """Return the schema of an option with one value for everything, or a table of values by scope."""
    return {"description": description, "anyOf": [value, {"type": "object", "additionalProperties": value}]}


def _mapping(values: Node, description: str) -> Node:
    return {"description": description, "type": "object", "additionalProperties": values}


def _description(kind: type) -> str:
    """Return the docstring of a class; empty for the signature that `dataclass` generates."""
    text = kind.__doc__ or ""
    return "" if text.startswith(f"{kind.__name__}(") else inspect.cleandoc(text)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The key that `specbench run --over auto` sweeps, and its values."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class MethodStyle:
    """How plots draw a method: a color by name, and a marker of Matplotlib."""

    color: Literal["blue", "sky", "green", "orange", "red", "purple", "olive", "gray"]
    marker: str


@dataclass(frozen=True, kw_only=True)
class MethodFile:
    """What the file of a method holds besides the constructor's keys."""

    description: str = ""
    baseline: str = ""
    temperature: float = 0.0
    clock: Literal["decoding", "end to end"] = "decoding"
    sweep: Sweep
    style: MethodStyle
    advise: Advised = Advised.lookup
    default_for: DefaultFor = DefaultFor.target
    reference: bool = False


@dataclass(frozen=True, kw_only=True)
class PairFile:
    """What the file of a pair holds besides the constructor's keys: the name of the bundled pair that it extends."""

    extends: str = ""


def method_schema() -> dict[str, Any]:
    """Return the schema of a method. Imports torch, as the classes of the methods need it."""
    import specbench.resolution.partial_method  # noqa: F401  (registers the methods, proposers, stop rules and targets)
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
    rules = Rules(extra=PairFile, optional=frozenset({"models", "path", "base"}))  # an extended pair may have them
    return {
        **object_schema(Pair, "specbench pair", rules),
        "anyOf": [{"required": ["models"]}, {"required": ["extends"]}],
    }


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
