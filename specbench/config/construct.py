"""Construction of frozen dataclasses from TOML tables: `Family.build(table)`.

    class Target(Named): ...                       # a family
    class Mixture(Target, name="mixture"): ...     # a member, found by the table's `name`

A table has `name` and the fields of the member: `Target.build({"name": "mixture", "weights": [0.5, 0.5]}, "se.toml")`.
Errors are one line with the location, the value and the nearest word.
"""

import dataclasses
import hashlib
import inspect
import math
import os
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from enum import StrEnum
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

from specbench.errors import ConfigError, hint, short_repr

Table = dict[str, object]  # a TOML table whose keys its reader checks
T = TypeVar("T")
PLUGIN = "specbench_plugin_"  # the beginning of the names of modules imported from files
OURS = "specbench."  # the beginning of the names of this package's modules


class Named:
    """Base class of families of configurable classes. Members are keyword-only frozen dataclasses.

    A direct subclass is a family. Each further subclass with a `name` is a member; a later one replaces an earlier one of
    its name. Only a class of this package cannot be replaced from outside, which raises ConfigError.
    """

    name: ClassVar[str]
    members: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, name: str | None = None) -> None:
        if Named in cls.__bases__:
            cls.members = {}
        if name is not None:
            earlier = cls.members.get(name)
            if earlier and earlier.__module__.startswith(OURS) and not cls.__module__.startswith(OURS):
                raise ConfigError(f"the name '{name}' already exists: {earlier.__module__}.{earlier.__name__}")
            cls.name = name
            cls.members[name] = cls

    @classmethod
    def build(cls, table: dict[str, Any], where: str) -> Self:
        """Construct the member with the name `table["name"]` from the other keys.

        `where` is the file, or the file and the key, that the table came from. Raises ConfigError for an unknown name or
        key, a missing key, a wrong type, or a value that the member's `__post_init__` rejects.
        """
        word = table.get("name")
        if not isinstance(word, str) or word not in cls.members:
            raise ConfigError(f"{where}: unknown name {word!r}{hint(str(word), cls.members)}")
        member: type[Self] = cls.members[word]
        if not dataclasses.is_dataclass(member):  # a plugin's class, without fields or without the decorator
            if len(table) > 1 or inspect.get_annotations(member):
                raise ConfigError(
                    f"{where}: {member.__name__} has keys: make it a @dataclass(frozen=True, kw_only=True)"
                )
            return member()
        return construct(member, {k: v for k, v in table.items() if k != "name"}, where)


class Spelled(ABC):
    """A value that TOML holds as one text: `parse(str(value)) == value`. Subclasses are frozen dataclasses.

    `pattern` is a regular expression of its texts, for schemas.
    """

    pattern: ClassVar[str]

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Return the value of a text. Raises ValueError with the end of a message that begins with `KEY = 'TEXT'`."""

    @abstractmethod
    def __str__(self) -> str: ...


def construct(kind: type[T], table: dict[str, Any], where: str) -> T:
    """Construct a dataclass from a table of its fields. Raises ConfigError as `Named.build` does."""
    assert dataclasses.is_dataclass(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    types_ = typing.get_type_hints(kind)
    for key in table:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key '{key}'{hint(key, fields)}")
    for key, field in fields.items():
        if key not in table and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}: a value for '{key}' is missing")
    values = {key: convert(value, types_[key], f"{where}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def convert(value: Any, kind: Any, where: str) -> Any:
    """Convert a TOML value to a `kind`: a scalar, Literal, StrEnum, tuple, dict, union, dataclass, Spelled or Named family.

    In a union, the first kind with the outer type of the value is used: for `str | tuple[str, ...]`, a list becomes a tuple.
    If none fits, the error is about the first kind. Raises ConfigError, naming `where`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where} = {value!r}{hint(str(value), map(str, arguments))}")
    if origin in (types.UnionType, typing.Union):
        kinds = [a for a in arguments if a is not type(None)]
        fitting = [a for a in kinds if _fits(value, a)]
        return convert(value, [*fitting, *kinds][0], where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} must be a list")
        return tuple(convert(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(value)
        raise ConfigError(f"{where} = {value!r}{hint(str(value), kind)}")
    if isinstance(kind, type) and issubclass(kind, Named):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} = {value!r} must be a table with a name")
        return kind.build(value, where)
    if isinstance(kind, type) and issubclass(kind, Spelled):
        if not isinstance(value, str):
            raise ConfigError(f"{where} = {value!r} must be a text")
        try:
            return kind.parse(value)
        except ValueError as error:
            raise ConfigError(f"{where} = {value!r}{error}") from None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} = {value!r} must be a table")
        return construct(kind, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} = {value!r} must be a table")
        return {key: convert(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if kind in (Any, object):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} = {value!r} must be a finite number")
    if type(value) is not kind:
        raise ConfigError(f"{where} = {value!r} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def require_plain(value: object, where: str) -> None:
    """Raise ConfigError unless a value consists of TOML's types, paths and None.

    TOML has texts, numbers, Booleans, dates, lists and tables. NumPy scalars, tensors and other objects are rejected, as is a
    text with a NUL character.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            require_plain(key, where)
            require_plain(item, f"{where}: {short_repr(key)}")
    elif isinstance(value, list | tuple):
        for item in value:
            require_plain(item, where)
    elif isinstance(value, str | os.PathLike):
        if "\0" in str(value):
            raise ConfigError(f"{where} = {short_repr(value)}: a text cannot have a NUL character")
    elif value is not None and type(value) not in (bool, int, float, datetime, date, time):
        kind = type(value)
        raise ConfigError(
            f"{where} = {short_repr(value)} has the type {kind.__module__}.{kind.__qualname__}; help: a Python number,"
            " text, list or dictionary"
        )


def to_table(thing: object) -> Table:
    """Return the TOML table of a frozen dataclass: its fields without None, nested dataclasses as tables.

    A member of a `Named` family has its name under `name`, so that `Family.build(to_table(member), ...)` equals the member.
    """
    assert dataclasses.is_dataclass(thing) or isinstance(thing, Named)
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    values = {field.name: getattr(thing, field.name) for field in fields if field.init}
    name = {"name": type(thing).name} if isinstance(thing, Named) else {}
    return {**name, **{key: plain(value) for key, value in values.items() if value is not None}}


def plain(value: object) -> object:
    """Return a value as one that TOML can represent: a table for a dataclass, a list for a tuple, a text for a Spelled."""
    if isinstance(value, Spelled):
        return str(value)
    if dataclasses.is_dataclass(value) or isinstance(value, Named):
        return to_table(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has the outer type of a member of a union. A list fits a tuple, since TOML has no tuples."""
    plain = typing.get_origin(kind) or kind
    return isinstance(value, list | tuple) if plain is tuple else isinstance(plain, type) and isinstance(value, plain)


def within(key: str, value: float, low: float, high: float) -> None:
    """Raise ValueError if a parameter is out of its range."""
    if not low <= value <= high:
        raise ValueError(
            f"{key} = {value} must be " + (f"at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]")
        )


def at_least(thing: object, **least: float) -> None:
    """Raise ValueError if a field that is not None is below its least value."""
    for key, low in least.items():
        if (value := getattr(thing, key)) is not None:
            within(key, value, low, math.inf)


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import all modules of a package, in alphabetical order, so that the classes in them register themselves."""
    for module in sorted(iter_modules(path)):
        import_module(f"{package}.{module.name}")


def import_file(path: Path) -> ModuleType:
    """Import a Python file once per process, and return its module. Raises ConfigError if there is no such file.

    The module's name contains a hash of the path, so that two files of one name are two modules.
    """
    if not os.path.isfile(path):
        raise ConfigError("no such file")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"{PLUGIN}{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
