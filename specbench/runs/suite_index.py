"""The states of a suite's runs: RESULTS/suites/NAME/index.json, written by `run`, read by report and reproduce.

A suite run with other options has its own index, changed.json, so that a trial does not overwrite measurements.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from specbench.files import read_sealed, write_sealed

SUITES = "suites"
DONE, MISSING, FAILED, BEGUN = "done", "missing", "failed", "begun"  # states of a run
OWN, CHANGED = "index.json", "changed.json"


class IndexEntry(TypedDict):
    """One run in index.json, or one part of a suite that could not be resolved."""

    key: str
    state: Literal["done", "missing", "failed", "begun"]
    pair: NotRequired[str]
    task: NotRequired[str]
    why: NotRequired[str]
    seconds: NotRequired[float]
    folder: NotRequired[str]
    generations: NotRequired[int]
    failed: NotRequired[int]
    simulated: NotRequired[str]
    levels: NotRequired[list[str]]


class IndexTable(TypedDict):
    """A suite's index.json."""

    suite: NotRequired[str]
    changes: NotRequired[list[str]]
    cells: list[IndexEntry]


@dataclass
class Index:
    """A suite's runs by key: the run folder's name, or the pair, task and methods of a part that could not be resolved."""

    path: Path
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)  # options that replaced the suite's

    @classmethod
    def of(cls, suite: str, results: Path, changed: bool = False) -> "Index":
        """Return the index of a suite, or of its runs with other options; empty if there is none."""
        path = results / SUITES / suite / (CHANGED if changed else OWN)
        stored = (
            read_sealed(path, IndexTable, "restore or delete it; the suite's runs are kept")
            if path.exists()
            else IndexTable(cells=[])
        )
        blank = {"pair": "", "task": "", "why": "", "seconds": 0.0}
        return cls(path, {cell["key"]: blank | cell for cell in stored["cells"]}, stored.get("changes", []))

    @classmethod
    def any_of(cls, suite: str, results: Path) -> "Index":
        """Return the suite's own index, or, if it was only run with other options, that one."""
        own = cls.of(suite, results)
        return own if own.cells else cls.of(suite, results, changed=True)

    def note(self, key: str, seconds: float = 0.0, **entry: Any) -> None:
        """Record the state of a run. Its seconds add up over resumed runs."""
        spent = self.cells.get(key, {}).get("seconds", 0.0) + seconds
        self.cells[key] = {"key": key, **entry, "seconds": round(spent, 1)}

    def keep(self, keys: list[str]) -> None:
        """Write the runs of these keys in this order. Others are removed from the index."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.cells = {key: self.cells[key] for key in keys}
        table = {"suite": self.path.parent.name, "changes": self.changes, "cells": list(self.cells.values())}
        write_sealed(self.path, table, indent=1)

    @property
    def swaps(self) -> bool:
        """Whether the changes replaced the suite's models, heads, data or settings."""
        return any(change.partition(" = ")[0] in ("data", "heads", "overrides") for change in self.changes)

    @property
    def done(self) -> list[dict[str, Any]]:
        """The runs that are done."""
        return [cell for cell in self.cells.values() if cell["state"] == DONE]

    @property
    def complete(self) -> bool:
        """Whether all runs are done, without failed generations."""
        return bool(self.cells) and len(self.done) == len(self.cells) and not self.failures

    @property
    def failures(self) -> int:
        """The number of failed generations in runs that are done."""
        return sum(cell.get("failed", 0) for cell in self.done)

    @property
    def minutes(self) -> float:
        """The measuring time of all runs."""
        return sum(float(cell["seconds"]) for cell in self.cells.values()) / 60
