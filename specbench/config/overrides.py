"""Overrides and their scopes: which task, method or pair a `--set`, `--data`, `--gamma` or `--head` applies to.

    task.shots=0                        every task that has the key
    task.mmlu.exemplars=FILE            one task, and its variants
    method.bonus=paper                  every method that has the key and takes the value
    method.cascade-opt.bonus=paper      one method
    pair.gpt2.acceptance=0.7            one pair

The second word is a scope if it is the name of a preset, or the stem of a file named in the request.
"""

import tomllib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specbench.config.construct import Table
from specbench.config.presets import names, preset
from specbench.errors import ConfigError, hint

T = TypeVar("T")
KINDS = ("method", "pair", "task")
EXAMPLES = {"--set": "method.target.mu=0.2", "--over": "method.target.alpha=[0.1, 0.3], or gamma=[1, 3, 5]"}


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
    if kind not in KINDS or not path:
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


def in_scope(scope: str, name: str) -> bool:
    """Return whether a scope covers a preset: one of its names, a variant of it, or a file of its name."""
    if scope in ("", name, name.partition(":")[0], Path(name).stem):
        return True
    return scope in names("method") and canonical_name(scope) == canonical_name(name)


def scoped(text: str, kind: str, flag: str) -> tuple[str, str]:
    """Split `NAME=VALUE` into the two; ("", text) if there is no name. Raises ConfigError for an unknown name."""
    name, equals, value = text.partition("=")
    if not equals or Path(text).exists():
        return "", text
    if name not in names(kind) and not name.endswith(".toml"):
        raise ConfigError(f"{flag} {text}: unknown {kind} '{name}'{hint(name, names(kind))}")
    return Path(name).stem if name.endswith(".toml") else name, value


def canonical_name(method: str) -> str:
    """Return the method that an alias stands for; other names are returned unchanged."""
    return preset("method", method).name if method in names("method") else method


def latest(values: Sequence[tuple[str, T]], name: str, default: T) -> T:
    """Return the value for a name: that of the name's own scope, otherwise its family's, otherwise the unscoped one."""
    by_scope = dict(values)
    for scope in (name, Path(name).stem, name.partition(":")[0], ""):
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
        raise ConfigError(f"{flag} {text}: expected table.key=value; help: {flag} {EXAMPLES[flag]}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def parse_head(text: str) -> tuple[str, str]:
    """Parse `NAME=FOLDER` or `PAIR:NAME=FOLDER`. NAME is a head of the pair, a kind, or KIND@BASE."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(f"--head {text}: expected NAME=FOLDER; help: --head sprinter=heads/tiny/sprinter")
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
