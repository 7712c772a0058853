"""Plugins: targets, stop and rejection rules, methods, proposers, tasks and engines in a Python file or module of the user.

A plugin defines subclasses of Target, Stop, Rejection, Method, Proposer, Task or Engine with a `name`, and importing it
registers them. Each also gets a preset with its name, except rejection rules, engines, and proposers that have parameters
without a default. A TOML file can configure it further.
"""

import dataclasses
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench.config import presets
from specbench.config.construct import Named, import_file
from specbench.data.task import Task
from specbench.decoding.method import Method, Proposer
from specbench.decoding.rejection import Rejection
from specbench.decoding.targets import Target
from specbench.errors import ConfigError, PluginError, Terminated
from specbench.methods.autoregressive import PRESET
from specbench.methods.stopping import Stop

DRAFT = {"name": "model", "model": "draft"}
ENGINES = "specbench.models.engines"


def plugin_classes() -> tuple[type[Named], ...]:
    """Return the classes that plugins define subclasses of: Engine only if it was imported, which takes seconds."""
    engines: tuple[type[Named], ...] = (sys.modules[ENGINES].Engine,) if ENGINES in sys.modules else ()
    return (Target, Stop, Rejection, Method, Proposer, Task, *engines)


def load(where: str) -> tuple[str, str]:
    """Import a plugin and add presets for what it defines; returns its file's name and the SHA-256 of its source.

    `where` is a path to a .py file, or the name of an importable module. Raises ConfigError if it cannot be imported,
    defines nothing, or uses an existing name.
    """
    before = {family: dict(family.members) for family in plugin_classes()}
    bundled = {kind: set(presets.names(kind)) - presets.added(kind) for kind in ("method", "task")}
    module = _imported(where)
    source = Path(str(module.__file__))
    _SOURCES.add(str(source))
    count = 0
    for family in plugin_classes():
        earlier_members = before.get(family, {})
        for name, member in [*family.members.items()]:
            is_ours = member.__module__.startswith("specbench.")  # the plugin only imports it
            if earlier_members.get(name) is member or is_ours:
                continue
            kind, table = _preset(family, name, member)
            earlier = earlier_members.get(name)
            if (earlier and earlier.__module__ not in _LOADED) or name in bundled.get(kind, ()):
                family.members.update(earlier_members)
                kinds = " or a ".join(word for word in (family.__name__.lower(), kind) if word)
                raise ConfigError(f"plugin {where}: the name '{name}' of a {kinds} already exists")
            lacking = [key for key in dir(member) if getattr(getattr(member, key), "__isabstractmethod__", False)]
            if lacking:
                del family.members[name]
                raise ConfigError(f"plugin {where}: {member.__name__} lacks {', '.join(lacking)}")
            count += 1
            if table:
                presets.add(kind, presets.Preset(name, source, {"description": _summary_of(member), **table}))
    if not count and module.__name__ not in _LOADED:
        raise ConfigError(f"plugin {where} defines no {', '.join(f.__name__ for f in plugin_classes())} with a name")
    _LOADED.add(module.__name__)
    return source.name, hashlib.sha256(source.read_bytes()).hexdigest()


def _imported(where: str) -> ModuleType:
    """Import a plugin. Raises ConfigError or PluginError if that fails, or if its module has no file."""
    path = Path(where).expanduser()
    try:
        module = import_file(path) if where.endswith(".py") else importlib.import_module(where)
    except ConfigError as error:
        raise ConfigError(f"plugin {where}: {error}") from None
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        _SOURCES.add(str(path.resolve()))
        raise PluginError(f"plugin {location_of(error) or where}: {type(error).__name__}: {error}") from None
    if not getattr(module, "__file__", None):
        raise ConfigError(f"plugin {where}: a module without a file")
    return module


def register(member: type[Named]) -> tuple[str, str]:
    """Add a preset for a class that the running program defines; returns its file's name and the SHA-256 of its source.

    Raises ConfigError for a class that is none of `plugin_classes` or has no name, and for a preset that there is already.
    """
    family = next((family for family in plugin_classes() if issubclass(member, family)), None)
    name = member.__dict__.get("name")
    if family is None or name is None:
        families = ", ".join(family.__name__ for family in plugin_classes())
        raise ConfigError(f"{member.__name__}: register takes a subclass of {families} with a name")
    kind, table = _preset(family, name, member)
    if kind in ("method", "task") and name in set(presets.names(kind)) - presets.added(kind):
        raise ConfigError(f"{member.__name__}: a {kind} '{name}' already exists")
    try:
        source, text = Path(inspect.getfile(member)), inspect.getsource(sys.modules[member.__module__])
    except (OSError, TypeError):  # defined in an interactive session
        source, text = Path(member.__module__), repr(member)
    if table:
        presets.add(kind, presets.Preset(name, source, {"description": _summary_of(member), **table}))
    return source.name, hashlib.sha256(text.encode()).hexdigest()


_LOADED: set[str] = set()  # modules that were found to be plugins: importing one again registers nothing new
_SOURCES: set[str] = set()  # their files


def location_of(error: BaseException) -> str | None:
    """Return the innermost line of a plugin in an error's traceback as FILE:LINE, or None."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in _SOURCES]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None


def _preset(family: type[Named], name: str, member: type[Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the table of a class's preset. The table is empty for a class without a preset.

    The preset of a target, stop rule or proposer is speculative decoding with it. Methods and tasks keep their defaults. A
    rejection rule, an engine, and a proposer with parameters without a default have no preset.
    """
    speculative = {"name": "speculative", "baseline": PRESET}
    named = {"name": name, **_defaults(member)}
    if family is Target:
        both = {"scorers": ["draft", "target"], "target": named, "proposer": DRAFT}
        return "method", {**speculative, **both, "clock": "end to end", "temperature": 1.0}
    if family is Stop:
        stopped = {"proposer": {**DRAFT, "stop": named}, "scorers": "target", "target": {"name": "last"}}
        return "method", {**speculative, **stopped}
    if family is Method:
        return "method", {**named, "baseline": PRESET}
    if family is Task:
        return "task", {"name": name}
    if family is not Proposer:
        return "", {}
    required = (
        [field for field in dataclasses.fields(member) if _is_required(field)]
        if dataclasses.is_dataclass(member)
        else []
    )
    if required:
        return "proposer", {}
    return "method", {**speculative, "proposer": named, "scorers": "target", "target": {"name": "last"}}


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _defaults(member: type[Any]) -> dict[str, Any]:
    """Return the fields whose defaults have a TOML type, so that `show` prints them and a sweep can change them."""
    fields = dataclasses.fields(member) if dataclasses.is_dataclass(member) else ()
    return {field.name: field.default for field in fields if isinstance(field.default, bool | int | float | str)}


def _summary_of(member: type[Any]) -> str:
    """Return the first line of a class's docstring, unless `dataclass` generated it."""
    text = (member.__doc__ or "").strip().partition("\n")[0]
    return "a plugin" if not text or text.startswith(f"{member.__name__}(") else text


def load_all(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Import plugins; returns their names and checksums."""
    return tuple(map(load, names))
