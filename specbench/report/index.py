"""What became of each cell of a suite: RESULTS/suites/NAME/index.json, written by `run`, read by report and reproduce."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.records import write

SUITES = "suites"
DONE, MISSING, FAILED = "done", "missing", "failed"  # states of a cell


@dataclass
class Index:
    """A suite's cells by key: a run folder's name, or of what could not be resolved its pair, task and methods."""

    path: Path
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, suite: str, results: Path) -> "Index":
        """The index of a suite; empty where it was never run."""
        path = results / SUITES / suite / "index.json"
        known = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
        return cls(path, {cell["key"]: cell for cell in known})

    def note(self, key: str, seconds: float = 0.0, **told: Any) -> None:
        """Note a cell; the seconds that it took add up over resumed runs."""
        spent = self.cells.get(key, {}).get("seconds", 0.0) + seconds
        self.cells[key] = {"key": key, **told, "seconds": round(spent, 1)}

    def keep(self, keys: list[str]) -> None:
        """Write the cells of these keys, in their order; what the suite held before is dropped."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.cells = {key: self.cells[key] for key in keys}
        told = {"suite": self.path.parent.name, "cells": list(self.cells.values())}
        write(self.path, json.dumps(told, indent=1, ensure_ascii=False) + "\n")

    @property
    def done(self) -> list[dict[str, Any]]:
        return [cell for cell in self.cells.values() if cell["state"] == DONE]

    @property
    def complete(self) -> bool:
        """Whether the suite was run, and every cell of it is there."""
        return bool(self.cells) and len(self.done) == len(self.cells)

    @property
    def minutes(self) -> float:
        """What measuring took, over all cells."""
        return sum(float(cell["seconds"]) for cell in self.cells.values()) / 60
