"""Presets, the TOML files of configs/ and of the user; files that pairs name for models; overrides of keys.

A model's files are architectures by hub id, and chat templates. Reading them imports no torch.

An override of `--set`, `--data`, `--gamma` or `--head` applies to a task, method or pair by its scope:

    task.shots=0                        every task that has the key
    task.mmlu.exemplars=FILE            one task, and its variants
    method.bonus=paper                  every method that has the key and takes the value
    method.cascade-opt.bonus=paper      one method
    pair.gpt2.acceptance=0.7            one pair

The second word is a scope if it is the name of a preset, or the stem of a file named in the request.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from specbench.config.construct import Table, convert
from specbench.config.pair import ModelSpec, folder
from specbench.errors import ConfigError, MissingAsset, hint, nearest, suggestion
from specbench.files import read_json, read_toml

PLAIN = re.compile(r"[\w.+-]+(:[\w.+-]+)*")  # the name of a preset, not a path
KINDS = {"method": "methods", "pair": "pairs", "task": "tasks", "suite": "suites", "machine": "machines"}
UNMEASURED = (
    "description",
    "style",
    "advise",
    "default_for",
    "reference",
)  # keys of a method that no result depends on

ALL, LOSSLESS = "all", "lossless"
WORDS = (ALL, LOSSLESS)  # in place of methods: all that a pair allows
TEMPLATE_SUFFIX = ".jinja"
T = TypeVar("T")
SCOPED_KINDS = ("method", "pair", "task")
OVERRIDE_EXAMPLES = {"--set": "method.target.mu=0.2", "--over": "method.target.alpha=[0.1, 0.3], or gamma=[1, 3, 5]"}


@dataclass(frozen=True)
class Preset:
    """A preset: its name, its table, and its TOML file, or the file of the plugin that defines it."""

    name: str
    path: Path
    table: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of the TOML file, or the table of a plugin's preset as TOML."""
        if self.path.suffix == ".toml":
            return self.path.read_text(encoding="utf-8")
        import tomli_w  # imported here to keep `list` fast

        return tomli_w.dumps(self.table)


_ADDED: dict[tuple[str, str], Preset] = {}  # presets of plugins, by kind and name
_UNLISTED: set[tuple[str, str]] = set()


def add(kind: str, new: Preset, listed: bool = True) -> None:
    """Register a preset that is not in configs/. With `listed=False` it is found by name only."""
    _ADDED[kind, new.name] = new
    (_UNLISTED.discard if listed else _UNLISTED.add)((kind, new.name))


def added(kind: str) -> set[str]:
    """Return the names of a kind that plugins registered."""
    return {name for added_kind, name in _ADDED if added_kind == kind and (added_kind, name) not in _UNLISTED}


def names(kind: str, variants: bool = True) -> list[str]:
    """Return the names of all presets of a kind: method, pair, task, suite or machine. NAME/VARIANT.toml is NAME:VARIANT."""
    return sorted([*(name for name in _bundled(kind) if variants or ":" not in name), *added(kind)])


@cache
def _bundled(kind: str) -> tuple[str, ...]:
    """Return the names of the files of a kind in configs/."""
    paths = (path.relative_to(_folder(kind)).with_suffix("") for path in _folder(kind).rglob("*.toml"))
    return tuple(":".join(path.parts) for path in paths)


def preset(kind: str, name: str) -> Preset:
    """Return the preset of a name, or of a path to a TOML file. A pair may also be models: `draft=PATH,target=PATH`.

    A bundled file with `same_as` is a second name of another preset. The keys of a file with `extends = NAME` replace those
    of a bundled preset, key by key in tables. Raises ConfigError with the nearest known name.
    """
    if not isinstance(name, str):  # from a TOML file
        raise ConfigError(f"{kind} = {name!r} must be a name")
    if (kind, name) in _ADDED:
        return _ADDED[kind, name]
    if kind == "pair" and "=" in name:
        return _of_models(name)
    file = Path(name).expanduser()
    path = file if name.endswith(".toml") or _is_like_a_path(file) else _folder(kind) / f"{name.replace(':', '/')}.toml"
    if not (path is file or PLAIN.fullmatch(name)) or not _is_file(path):
        if path is file:
            near = get_close_matches(path.name, [other.name for other in path.parent.glob("*.toml")], n=1)
            suggestion = f" (did you mean '{path.with_name(near[0])}'?)" if near else ""
            raise ConfigError(f"no {kind} file {name}{suggestion}")
        alternative = {"method": "--plugin FILE", "task": "--plugin FILE", "pair": "--target DIR --draft DIR"}.get(kind)
        alternative = f"a TOML file, or {alternative}" if alternative else "a TOML file"
        raise ConfigError(
            f"unknown {kind} '{name}'{hint(name, names(kind))}; help: specbench list {KINDS[kind]}, or {alternative}"
        )
    table = read_toml(path)
    if "same_as" in table and path is not file:
        return preset(kind, table["same_as"])
    if kind == "pair" and "extends" in table:
        parent = table.pop("extends")
        if not isinstance(parent, str) or parent not in names(kind) or parent == name:
            raise ConfigError(
                f"{path}: extends = {parent!r} is no other {kind} of configs/{hint(str(parent), names(kind))}"
            )
        table = _merged(preset(kind, parent).table, table)
    return Preset(path.stem if path is file else name, path, table)


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changed keys. The keys of tables in it are replaced one by one, but a cost as a whole."""
    return {**table} | {
        key: _merged(table[key], value)
        if key != "cost" and isinstance(value, dict) and isinstance(table.get(key), dict)
        else value
        for key, value in changes.items()
    }


def _of_models(text: str) -> Preset:
    """Return the pair of `ROLE=PATH,ROLE=PATH`, the target last. Paths are local folders or hub ids.

    A comma within a path is written as `\\,`, as `escaped_path` does.
    """
    words = [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]
    parts = [[word.strip() for word in part.partition("=")[::2]] for part in words]
    roles = [role for role, _ in parts]
    if not all(role.isidentifier() and path for role, path in parts) or len({*roles}) < len(roles):
        raise ConfigError(
            f"--pair {text}: write it as draft=PATH,target=PATH, or use a TOML file; help: specbench init pair"
        )
    if "target" not in roles:
        raise ConfigError(f"--pair {text}: no target; help: draft=PATH,target=PATH")
    ordered = sorted(parts, key=lambda part: part[0] == "target")
    named = [Path(path).name for _, path in reversed(ordered)]
    models = {role: {"path": str(Path(path).expanduser()) if path.startswith("~") else path} for role, path in ordered}
    return Preset("-".join(re.sub(r"[^\w.+-]", "-", part) for part in named), Path("pair"), {"models": models})


def escaped_path(path: str) -> str:
    """Return a path as it is written in `ROLE=PATH,ROLE=PATH`."""
    return path.replace(",", "\\,")


def _is_like_a_path(path: Path) -> bool:
    """Return whether a name must be a path: it has a folder, or an ending that is nearly `.toml`."""
    return len(path.parts) > 1 or bool(get_close_matches(path.suffix, [".toml"], cutoff=0.7))


def _is_file(path: Path) -> bool:
    """Return whether the path is a file; False for an impossible file name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


AUTO, AUTO_LENGTH = "auto", "gamma=auto"  # values of `--over` that stand for grids


def sweep_of(method: str) -> tuple[str, list[Any]]:
    """Return the key that `--over auto` sweeps, and its values. Raises ConfigError if the preset has none."""
    sweep = preset("method", method).table.get("sweep")
    if not sweep:
        raise ConfigError(f"method {method} has no default sweep; help: --over KEY=[VALUES]")
    if (
        not isinstance(sweep, dict)
        or not isinstance(sweep.get("key"), str)
        or not isinstance(sweep.get("values"), list)
    ):
        raise ConfigError(f"method {method}: sweep = {sweep!r} must be a table of a key and a list of values")
    return sweep["key"], sweep["values"]


@cache
def _folder(kind: str) -> Path:
    return Path(str(resources.files("specbench.configs"))) / KINDS[kind]


def require_presets(methods: Iterable[str], pair: str, tasks: Iterable[str]) -> None:
    """Raise ConfigError for an unknown name. Call after plugins are imported, and before torch is."""
    for kind, names_ in (("method", methods), ("pair", [pair]), ("task", tasks)):
        for name in names_:
            preset(kind, name)


def bundled_architecture(path: str) -> Table:
    """Return the configuration of a hub id. Raises MissingAsset if its architecture is not known."""
    table = _by_id().get(path)
    if table is None:
        near = nearest(path, _by_id())
        suggestion = f" (did you mean '{near}'?)" if near else ""
        raise MissingAsset(
            f"no architecture for {path} in configs/architectures/{suggestion}; help: add a file there, or use a local folder"
        )
    return table


def architecture_of(spec: ModelSpec, base: Path) -> Table:
    """Return a model's configuration, a local folder's or the one known for its hub id, with the keys that the pair changes.

    Raises MissingAsset if there is none.
    """
    local = folder(spec.path, base)
    if local and not (local / "config.json").is_file():
        raise MissingAsset(f"{local} holds no model (no config.json)")
    table = read_json(local / "config.json", Table) if local else bundled_architecture(spec.path)
    return {**table, **spec.config}


def architecture_named(name: str) -> Table:
    """Return the configuration of a file of configs/architectures/, such as `llama-2-7b`, or of a hub id in one.

    Raises ConfigError, with the nearest name, if there is none.
    """
    tables = {path.stem: _config_in(path) for path in _architectures()} | _by_id()
    if name not in tables:
        raise ConfigError(f"no architecture '{name}' in configs/architectures/{suggestion(name, tables)}")
    return tables[name]


@cache
def _architectures() -> list[Path]:
    return sorted((Path(str(resources.files("specbench.configs"))) / "architectures").glob("*.toml"))


@cache
def _config_in(path: Path) -> Table:
    config: Table = convert(read_toml(path)["config"], Table, f"{path}: config")
    return config


@cache
def _by_id() -> dict[str, Table]:
    """Return hub id -> its configuration's keys."""
    return {name: _config_in(path) for path in _architectures() for name in read_toml(path)["ids"]}


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template as transformers applies it. `label` is its name with the beginning of its SHA-256."""

    label: str
    text: str


def chat_template(name: str, base: Path) -> ChatTemplate:
    """Return a bundled template by name, or the one in a file, relative to the folder `base`. Raises ConfigError."""
    if name.endswith(TEMPLATE_SUFFIX):
        path = base / Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"no chat template {path}")
        text, stem = path.read_text(encoding="utf-8"), path.name
    else:
        bundled = {
            file.name.removesuffix(TEMPLATE_SUFFIX): file
            for file in _templates().iterdir()
            if file.name.endswith(TEMPLATE_SUFFIX)
        }
        if name not in bundled:
            raise ConfigError(
                f"unknown chat template '{name}'{hint(name, bundled)}; help: a path that ends in {TEMPLATE_SUFFIX}"
            )
        text, stem = bundled[name].read_text(encoding="utf-8"), name
    return ChatTemplate(f"{stem}:{hashlib.sha256(text.encode()).hexdigest()[:12]}", text)


def _templates() -> Path:
    return Path(str(resources.files("specbench.configs"))) / "chat_templates"


@dataclass(frozen=True)
class Override:
    """One `--set`: the kind of table, the preset that it is for (empty: all), the path of the key, and the value."""

    kind: str
    scope: str
    path: tuple[str, ...]
    value: object

    @property
    def key(self) -> str:
        """The key as it was written."""
        return ".".join([self.kind, *([self.scope] if self.scope else []), *self.path])


def override(key: str, value: object, extra: Iterable[str] = ()) -> Override:
    """Parse a dotted key. `extra` are names of presets that are not bundled. Raises ConfigError for a wrong first word."""
    kind, *path = key.split(".")
    if kind not in SCOPED_KINDS or not path:
        raise ConfigError(f"--set {key}: must start with method., pair. or task.")
    scope, rest = _scope(kind, path, extra)
    return Override(kind, scope, tuple(rest), value)


def _scope(kind: str, path: Sequence[str], extra: Iterable[str]) -> tuple[str, Sequence[str]]:
    """Split a path into the preset's name at its beginning, which may contain dots, and the rest."""
    preset_names = {*names(kind), *extra}
    for count in range(len(path) - 1, 0, -1):
        if (name := ".".join(path[:count])) in preset_names:
            return name, path[count:]
    return "", path


def stem(name: str) -> str:
    """Return the name of a preset, and of a preset's file the file's name without `.toml`."""
    return Path(name).stem if name.endswith(".toml") else name


def in_scope(scope: str, name: str) -> bool:
    """Return whether a scope covers a preset: one of its names, a variant of it, or a file of its name."""
    if scope in ("", name, name.partition(":")[0], stem(name)):
        return True
    return scope in names("method") and canonical_name(scope) == canonical_name(name)


def scoped(text: str, kind: str, flag: str) -> tuple[str, str]:
    """Split `NAME=VALUE` into the two; ("", text) if there is no name. Raises ConfigError for an unknown name."""
    name, equals, value = text.partition("=")
    if not equals or os.path.exists(text):
        return "", text
    if name not in names(kind) and not name.endswith(".toml"):
        raise ConfigError(f"{flag} {text}: unknown {kind} '{name}'{hint(name, names(kind))}")
    return stem(name), value


def canonical_name(method: str) -> str:
    """Return the method that an alias stands for; other names are returned unchanged."""
    return preset("method", method).name if method in names("method") else method


def latest(values: Sequence[tuple[str, T]], name: str, default: T) -> T:
    """Return the value for a name: with its own scope, else with its family's (`mmlu` for `mmlu:x`), else without a scope."""
    by_scope = dict(values)
    for scope in (name, stem(name), name.partition(":")[0], ""):
        if scope in by_scope:
            return by_scope[scope]
        if same := next(
            (scope_name for scope_name in by_scope if scope and scope_name and in_scope(scope_name, scope)), None
        ):
            return by_scope[same]
    return default


def parse_override(text: str, flag: str = "--set") -> tuple[str, object]:
    """Parse `a.b=VALUE`, where VALUE is a TOML literal or a bare word. Raises ConfigError, naming the flag."""
    key, equals, value = text.partition("=")
    from specbench.config.options import RunOptions  # imports this module

    if equals and flag == "--set" and key.replace("-", "_") in {*RunOptions.__annotations__, "place"}:
        raise ConfigError(f"{flag} {text}: {key} is an option of its own; help: --{key.replace('_', '-')} {value}")
    if not equals or ("." not in key and (flag, key) != ("--over", "gamma")):
        raise ConfigError(f"{flag} {text}: expected table.key=value; help: {flag} {OVERRIDE_EXAMPLES[flag]}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def parse_head(text: str) -> tuple[str, str]:
    """Parse `NAME=FOLDER` or `PAIR:NAME=FOLDER`. NAME is a head of the pair, a kind, or KIND@BASE."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(f"--head {text}: expected NAME=FOLDER; help: --head eagle3=FOLDER")
    return name.strip(), path.strip()


def changed(table: Table, changes: Iterable[tuple[Sequence[str], object]], where: str) -> Table:
    """Return a copy of a table with values set at paths. Raises ConfigError if a path passes through a value."""
    table = deepcopy(table)
    for path, value in changes:
        table_at_path = table
        for key in path[:-1]:
            inner = table_at_path.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set: '{key}' of {where} is not a table")
            table_at_path = inner
        table_at_path[path[-1]] = value
    return table
