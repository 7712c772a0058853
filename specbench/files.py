"""Floor 0: text files in and out. A file that cannot be read is one line that names it; one that is written is whole."""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from specbench.errors import ConfigError

T = TypeVar("T")
SEAL = "sha256"


def read_text(path: Path) -> str:
    """A file's text. Raises ConfigError for bytes that are not UTF-8, and OSError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's table. Raises ConfigError, with the line, where it is damaged."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {in_one_line(error)}") from None


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file's value. Raises ConfigError where it is damaged or does not have the shape of `kind`."""
    return parse_json(path.read_bytes(), kind, str(path))


def parse_json(text: bytes | str, kind: type[T], where: str) -> T:
    """JSON as a `kind`: built-in containers, dataclasses, TypedDicts. Raises ConfigError, naming `where` and the key."""
    import msgspec  # which `--help` need not wait for

    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: damaged: {in_one_line(error)}") from None


def checked(value: Any, kind: type[T], where: str) -> T:
    """A value of built-in containers as a `kind`. Raises ConfigError, naming the key, where its shape is another."""
    import msgspec  # as above

    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: damaged: {in_one_line(error)}") from None


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises OSError, naming the file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # two processes may write one file
    try:
        with named(path):
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_sealed(path: Path, table: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a table as JSON, with a checksum of itself under "sha256". Raises OSError, naming the file."""
    plain = json.loads(json.dumps(table))  # as it will be read: keys are text, tuples are lists
    write(path, json.dumps({**plain, SEAL: _seal(plain)}, ensure_ascii=False, indent=indent) + "\n")


def read_sealed(path: Path, kind: type[T], remedy: str = "restore it, or measure again with --fresh") -> T:
    """Read what `write_sealed` wrote. Raises ConfigError, with the remedy, if the file is damaged or was changed since.

    A file without a checksum, which an earlier version wrote, is taken as it is.
    """
    try:
        table = read_json(path, dict[str, Any])
        known = table.pop(SEAL, None)
        if known is not None and known != _seal(table):
            raise ConfigError(f"{path}: damaged: it was changed after it was written")
        return checked(table, kind, str(path))
    except ConfigError as error:
        raise ConfigError(f"{error}; help: {remedy}") from None


def _seal(table: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Give an OSError of a write the file's name, which the system call does not know."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def in_one_line(error: BaseException) -> str:
    """An exception's message on one line, cut after 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
