"""Floor 0: the TOML files of configs/, and a user's own. Read without torch, so that `list` and `show` start fast."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, hint
from specbench.files import read_toml

PLAIN = re.compile(r"[\w.+-]+(:[\w.+-]+)*")  # a preset's name: no path
KINDS = {"method": "methods", "pair": "pairs", "task": "tasks", "suite": "suites"}


@dataclass(frozen=True)
class Preset:
    """One TOML file: its name (the file's), its path, and its table. A plugin's has the plugin's path."""

    name: str
    path: Path
    table: dict[str, Any]

    @property
    def text(self) -> str:
        """The TOML as it stands, or as it would stand in a file."""
        if self.path.suffix == ".toml":
            return self.path.read_text(encoding="utf-8")
        import tomli_w  # what `list` need not wait for

        return tomli_w.dumps(self.table)


_ADDED: dict[tuple[str, str], Preset] = {}  # what plugins brought, by kind and name
_UNLISTED: set[tuple[str, str]] = set()


def add(kind: str, found: Preset, listed: bool = True) -> None:
    """A preset that no file of configs/ holds; one that is not listed can be asked for by its name alone."""
    _ADDED[kind, found.name] = found
    (_UNLISTED.discard if listed else _UNLISTED.add)((kind, found.name))


def added(kind: str) -> set[str]:
    """The names of a kind that plugins brought."""
    return {name for each, name in _ADDED if each == kind and (each, name) not in _UNLISTED}


def names(kind: str, variants: bool = True) -> list[str]:
    """The bundled presets of a kind: method, pair, task or suite. NAME/VARIANT.toml is called NAME:VARIANT."""
    found = (path.relative_to(_folder(kind)).with_suffix("") for path in _folder(kind).rglob("*.toml"))
    return sorted([*(":".join(path.parts) for path in found if variants or len(path.parts) == 1), *added(kind)])


def preset(kind: str, name: str) -> Preset:
    """The preset that `name` names: a bundled one, or a path to a TOML file of the user's own.

    `same_as` in a bundled file makes it a second name of another. Raises ConfigError with the nearest right name.
    """
    if not isinstance(name, str):  # of a TOML file
        raise ConfigError(f"{kind} = {name!r} must be a name")
    if (kind, name) in _ADDED:
        return _ADDED[kind, name]
    own = Path(name).expanduser()
    path = own if name.endswith(".toml") else _folder(kind) / f"{name.replace(':', '/')}.toml"
    if not (path is own or PLAIN.fullmatch(name)) or not _is_file(path):
        if path is own:
            raise ConfigError(f"no {kind} file {name}")
        raise ConfigError(
            f"unknown {kind} '{name}'{hint(name, names(kind))}; help: specbench list {KINDS[kind]}; --plugin FILE for"
            " one of your own"
        )
    table = read_toml(path)
    if "same_as" in table and path is not own:
        return preset(kind, table["same_as"])
    return Preset(path.stem if path is own else name, path, table)


def _is_file(path: Path) -> bool:
    """Whether there is a file of this name; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def sweep_of(method: str) -> tuple[str, list[Any]]:
    """The key that a method's curve is swept over, and its values. Raises ConfigError where its preset names none."""
    found = preset("method", method).table.get("sweep")
    if not found:
        raise ConfigError(f"method {method} has no sweep of its own; name one: --over KEY=[VALUES]")
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("key"), str)
        or not isinstance(found.get("values"), list)
    ):
        raise ConfigError(f"method {method}: sweep = {found!r} must be a table of a key and a list of values")
    return found["key"], found["values"]


def _folder(kind: str) -> Path:
    return Path(str(resources.files("specbench.configs"))) / KINDS[kind]


def require_known(methods: Iterable[str], pair: str, tasks: Iterable[str]) -> None:
    """Raise ConfigError for a misspelled name, before torch is imported. Plugins are to be imported first."""
    for kind, names_ in (("method", methods), ("pair", [pair]), ("task", tasks)):
        for name in names_:
            preset(kind, name)
