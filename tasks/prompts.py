"""Prompts from a local file, without scores.

Source: a local JSONL file. Example row: {"prompt": "Once upon a time"}
"""

from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row
from specbench.data.task import Sample, Task, reader_of
from specbench.errors import ConfigError, hint


@dataclass(frozen=True, kw_only=True)
class Prompts(Task, name="prompts"):
    """The value under `field` of each row is a prompt, used unchanged."""

    version: ClassVar[str] = "1-A"
    field: str = "prompt"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        for number, row in enumerate(rows, 1):
            if not isinstance(row.get(self.field), str):
                other = "" if "prompt" in row else reader_of(row)
                suggestion = other or hint(self.field, row, "the row has")
                raise ConfigError(f"{source}:{number}: no text under '{self.field}'{suggestion}")
        return [Sample(str(i), row[self.field]) for i, row in enumerate(rows)]
