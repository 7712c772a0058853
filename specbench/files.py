"""Reading and writing of text files, with one-line errors that name the file, and atomic writes."""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from specbench.errors import ConfigError

T = TypeVar("T")
CHECKSUM = "sha256"


def read_text(path: Path) -> str:
    """Return a file's text. Raises ConfigError for bytes that are not UTF-8, and OSError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's table. Raises ConfigError, with the line, if it is not valid TOML."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {in_one_line(error)}") from None


def read_json(path: Path, kind: type[T]) -> T:
    """Return a JSON file's value. Raises ConfigError if it is damaged or is not of type `kind`."""
    return parse_json(path.read_bytes(), kind, str(path))


def parse_json(text: bytes | str, kind: type[T], where: str) -> T:
    """Parse JSON as a `kind`: a container, dataclass or TypedDict. Raises ConfigError, naming `where` and the key."""
    import msgspec  # imported here to keep `--help` fast

    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: damaged: {in_one_line(error)}") from None


def checked(value: Any, kind: type[T], where: str) -> T:
    """Convert built-in containers to a `kind`. Raises ConfigError, naming the key, if the types do not match."""
    import msgspec  # imported here to keep `--help` fast

    try:
        return msgspec.convert(value, kind, str_keys=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: damaged: {in_one_line(error)}") from None


def write(path: Path, text: str) -> None:
    """Write a file of text as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; a device or pipe such as /dev/stdout directly. Raises OSError, naming the file."""
    if path.exists() and not path.is_file():
        with add_path_to_errors(path):
            path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))  # write the file that a link names, and keep the link
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # two processes may write the same file
    try:
        with add_path_to_errors(path):
            part.write_bytes(content)
            os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_with_checksum(path: Path, table: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a table as JSON, with its checksum under "sha256". Raises OSError, naming the file."""
    write(path, json_with_checksum(table, indent))


def json_with_checksum(table: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a table as JSON, with its checksum under "sha256". Dataclasses in it become tables."""
    plain = json.loads(json.dumps(table, default=asdict))  # as it is read back: keys are strings, tuples are lists
    return json.dumps({**plain, CHECKSUM: checksum_of(plain)}, ensure_ascii=False, indent=indent) + "\n"


def read_with_checksum(path: Path, kind: type[T], remedy: str = "restore it, or measure again with --fresh") -> T:
    """Read a file of `write_with_checksum`.

    Raises ConfigError, with the remedy, if the file was damaged or changed, or if it has no checksum.
    """
    try:
        table = read_json(path, dict[str, Any])
        stored_checksum = table.pop(CHECKSUM, None)
        if stored_checksum is None:
            raise ConfigError(f"{path}: damaged: it has no checksum")
        if stored_checksum != checksum_of(table):
            raise ConfigError(f"{path}: damaged: changed after it was written")
        return checked(table, kind, str(path))
    except ConfigError as error:
        raise ConfigError(f"{error}; help: {remedy}") from None


def checksum_of(table: dict[str, Any]) -> str:
    """Return the checksum of a table as it is read from JSON, without its key CHECKSUM."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError, since errors of writes lack it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def in_one_line(error: BaseException) -> str:
    """Return an exception's message on one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
