"""What became of each cell of a suite: RESULTS/suites/NAME/index.json, written by `run`, read by report and reproduce.

A run whose options overruled the suite's keeps its own index beside it, changed.json, so that a trial erases no measurement.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from specbench.files import read_sealed, write_sealed

SUITES = "suites"
DONE, MISSING, FAILED, BEGUN = "done", "missing", "failed", "begun"  # states of a cell
OWN, CHANGED = "index.json", "changed.json"


class CellTable(TypedDict):
    """One cell of index.json."""

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
    cells: list[CellTable]


@dataclass
class Index:
    """A suite's cells by key: a run folder's name, or of what could not be resolved its pair, task and methods."""

    path: Path
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)  # options that were overruled

    @classmethod
    def of(cls, suite: str, results: Path, changed: bool = False) -> "Index":
        """The index of a suite, or of its runs with other options; empty where there was none."""
        path = results / SUITES / suite / (CHANGED if changed else OWN)
        told = (
            read_sealed(path, IndexTable, "restore or delete it; the suite's runs are kept")
            if path.exists()
            else IndexTable(cells=[])
        )
        blank = {"pair": "", "task": "", "why": "", "seconds": 0.0}
        return cls(path, {cell["key"]: blank | cell for cell in told["cells"]}, told.get("changes", []))

    @classmethod
    def any_of(cls, suite: str, results: Path) -> "Index":
        """The suite's own index; where it was only run with other options, that one."""
        own = cls.of(suite, results)
        return own if own.cells else cls.of(suite, results, changed=True)

    def note(self, key: str, seconds: float = 0.0, **told: Any) -> None:
        """Note a cell; the seconds that it took add up over resumed runs."""
        spent = self.cells.get(key, {}).get("seconds", 0.0) + seconds
        self.cells[key] = {"key": key, **told, "seconds": round(spent, 1)}

    def keep(self, keys: list[str]) -> None:
        """Write the cells of these keys, in their order; what the suite held before is dropped."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.cells = {key: self.cells[key] for key in keys}
        table = {"suite": self.path.parent.name, "changes": self.changes, "cells": list(self.cells.values())}
        write_sealed(self.path, table, indent=1)

    @property
    def swaps(self) -> bool:
        """Whether the changes put other models, heads, data or settings in the place of the suite's."""
        return any(change.partition(" = ")[0] in ("data", "heads", "overrides") for change in self.changes)

    @property
    def done(self) -> list[dict[str, Any]]:
        return [cell for cell in self.cells.values() if cell["state"] == DONE]

    @property
    def complete(self) -> bool:
        """Whether the suite was run, and every generation of every cell is there."""
        return bool(self.cells) and len(self.done) == len(self.cells) and not self.failures

    @property
    def failures(self) -> int:
        """Generations that failed in cells that are done."""
        return sum(cell.get("failed", 0) for cell in self.done)

    @property
    def minutes(self) -> float:
        """What measuring took, over all cells."""
        return sum(float(cell["seconds"]) for cell in self.cells.values()) / 60
