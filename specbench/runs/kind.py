"""Kinds of run folders: what a spec and a record are. The recorder, locks, manifests and reports work for every kind.

`specbench/runs/run_folder.py` registers the kind of today's runs, generations of one sequence at a time.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from specbench.config.construct import Table
from specbench.errors import ConfigError, hint
from specbench.files import read_toml

CONFIG = "run.toml"
DEFAULT = "generations"  # the kind of a run.toml that names none


@dataclass(frozen=True)
class Manifest:
    """The expected content of a run folder: the SHA-256 of its spec, and the ids of its samples."""

    config_sha256: str
    samples: list[str]


class StoredRecord(Protocol):
    """What readers, recorder and scoring need of a record. `key` identifies it within its run."""

    @property
    def key(self) -> Hashable: ...

    @property
    def text(self) -> str: ...

    @property
    def error(self) -> str | None:
        """Why it failed; None if it did not."""


class StoredSpec(Protocol):
    """What readers need of a spec."""

    @property
    def checksum(self) -> str:
        """The SHA-256 that the manifest holds."""


S = TypeVar("S", bound=StoredSpec)
R = TypeVar("R", bound=StoredRecord)
R_contra = TypeVar("R_contra", bound=StoredRecord, contravariant=True)


class Expectation(Protocol[R_contra]):
    """The records of a complete run."""

    @property
    def generations(self) -> int:
        """Their number."""

    def why_unexpected(self, record: R_contra, /) -> str:
        """Return why a record does not belong to the run; empty if it does."""


class TextTable(NamedTuple):
    """A title, column headings, and rows of text, for a report."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def _unchanged(record: Any) -> Any:
    return record


def _no_tables(folder: Path) -> Sequence[TextTable]:
    return ()


@dataclass(frozen=True, kw_only=True)
class RunKind(Generic[S, R]):
    """A kind of run folder.

    `read_spec` takes the table of run.toml and its path, `expected` a spec, the manifest (None without one) and the folder.
    `line` returns a record as a line of samples.jsonl, and `parse` the record of a line; it raises ConfigError if the line is
    damaged. `recordable` returns what is written for a record: the record itself, or a failed one. `tables` returns what
    `specbench report` prints for a folder; none for generations, whose tables it makes itself.
    """

    name: str
    read_spec: Callable[[Table, str], S]
    expected: Callable[[S, Manifest | None, Path], Expectation[R]]
    line: Callable[[R], bytes]
    parse: Callable[[bytes], R]
    recordable: Callable[[R], R] = _unchanged
    tables: Callable[[Path], Sequence[TextTable]] = _no_tables


_KINDS: dict[str, RunKind[Any, Any]] = {}


def register(kind: RunKind[S, R]) -> RunKind[S, R]:
    """Add a kind and return it. Its run.toml files have its name under `kind`. Raises ValueError for a name in use."""
    if kind.name in _KINDS:
        raise ValueError(f"a kind of run '{kind.name}' already exists")
    _KINDS[kind.name] = kind
    return kind


def kind_in(table: Table, path: Path) -> RunKind[Any, Any]:
    """Return the kind that the table of a run.toml names. Raises ConfigError for an unknown one."""
    name = str(table.get("kind", DEFAULT))
    if name not in _KINDS:
        raise ConfigError(f"{path}: unknown kind '{name}'{hint(name, _KINDS)}")
    return _KINDS[name]


def kind_of(folder: Path) -> RunKind[Any, Any]:
    """Return the kind of a run folder. Raises ConfigError if it contains no run, or one of an unknown kind."""
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} contains no run; help: specbench run")
    return kind_in(read_toml(path), path)
