"""How a field of Options is written: as a flag of the command line, and in a table of a suite or of Python."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from os import PathLike
from typing import Any

from specbench.config.construct import convert
from specbench.config.pair import place_overrides
from specbench.config.presets import (
    parse_override,
    scoped,
)
from specbench.config.shard import Shard
from specbench.errors import ConfigError


class Panel(StrEnum):
    """The panels of `--help`, in their order."""

    what = "What"
    data = "Data and prompts"
    decoding = "Decoding"
    measurement = "Measurement"
    machine = "Machine"
    overrides = "Overrides and plugins"
    suites = "Suites and jobs"
    output = "Output"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How an option is given on the command line, and in the tables of suites and Python.

    Args:
        help: Its line in `--help`.
        panel: Its panel there.
        word: Its name; empty for the field's. The flag is `--WORD`, with hyphens.
        short: Its short flag.
        choices: The words that it takes.
        entry: For an option that is given several times: returns one entry of the field's tuple, or a list of them, from
            its text. Raises ConfigError.
        parse: For an option that is given once: returns the field's value from its text. None: Typer converts the text.
        read: Returns the field's value from one in a table, given its location. None converts it to the field's type.
        is_unset: Whether the default is no value on the command line, so that a command knows whether it was given.
        shows_default: Whether `--help` shows the default.
        also: Another flag whose entries are added to this field, by its word.
    """

    help: str
    panel: Panel
    word: str = ""
    short: str = ""
    choices: type[StrEnum] | None = None
    entry: Callable[[str], Any] | None = None
    parse: Callable[[str], Any] | None = None
    read: "Callable[[object, str], Any] | None" = None
    is_unset: bool = False
    shows_default: bool = True
    also: "Flag | None" = None


def option(default: Any, panel: Panel, help: str, **flag: Any) -> Any:
    """Return a field of `Options` with its flag."""
    return field(default=default, metadata={"flag": Flag(help=help, panel=panel, **flag)})


def data_entry(text: str) -> tuple[str, str]:
    return scoped(text, "task", "--data")


def lengths_entry(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse draft lengths, `N` or `N,N,...`, perhaps after `METHOD=`. Returns the method (empty: all) and the lengths."""
    method, value = scoped(text, "method", "--gamma")
    try:
        numbers = tuple(int(word) for word in value.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--gamma {text}: write it as N, N,N or METHOD=N") from None
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--gamma {text}: a draft length is at least 1")
    return method, numbers


def sweep_entry(text: str) -> tuple[str, Any]:
    return parse_override(text, "--over")


def place_entries(text: str) -> list[tuple[str, Any]]:
    return place_overrides([text])


def read_data(value: object, location: str) -> tuple[tuple[str, str], ...]:
    kind = "a path, or the name of a source"
    return tuple((scope, path_value(item, location, kind)) for scope, item in scoped_entries(value, location))


def read_lengths(value: object, location: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((scope, lengths_value(item, location)) for scope, item in scoped_entries(value, location))


def read_entries(value: object, location: str) -> tuple[tuple[str, Any], ...]:
    return tuple(entries_of(value, location))


def read_heads(value: object, location: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, path_value(path, location)) for name, path in entries_of(value, location))


def read_shard(value: object, location: str) -> Shard | None:
    """Return the shard of a text in a table; None for an empty one."""
    text = convert(value, str, location)
    return Shard.of(text, f"{location}:") if text else None


def entries_of(value: object, location: str) -> Iterable[tuple[str, Any]]:
    """Return the keys and values of a table."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{location} = {value!r} must be a table")
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise ConfigError(f"{location}: key {wrong[0]!r} must be a text")
    return value.items()


def scoped_entries(value: object, location: str) -> Iterable[tuple[str, Any]]:
    """Return an option as values by scope, from one value for all or a table of values by name."""
    if isinstance(value, Mapping):
        return ((str(key), value) for key, value in value.items())
    if isinstance(value, str | int | PathLike) or (isinstance(value, Sequence) and value):
        return (("", value),)
    if value == ():
        return ()
    raise ConfigError(f"{location} = {value!r} must be one value, or a table of values by name")


def path_value(value: object, location: str, kind: str = "a path") -> str:
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"{location}: {value!r} must be {kind}")
    return str(value)


def lengths_value(value: object, location: str) -> tuple[int, ...]:
    """Return draft lengths from an integer or a list of integers."""
    lengths = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if not lengths or not all(isinstance(length, int) and not isinstance(length, bool) for length in lengths):
        raise ConfigError(f"{location} = {value!r} must be an integer, or a list of one integer per model")
    return lengths
