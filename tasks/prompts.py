"""A user's own prompts, unscored.

Source: a local JSONL file. Example row: {"prompt": "Once upon a time"}
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specbench.assets import read_jsonl
from specbench.errors import ConfigError, hint
from specbench.task import Data, Sample, Task


@dataclass(frozen=True, kw_only=True)
class Prompts(Task, name="prompts"):
    """Every row's `field` is a prompt as it stands."""

    version: ClassVar[str] = "1-A"
    field: str = "prompt"

    def data(self, source: str) -> Data:
        if source in {"hub", "synthetic"}:
            raise ConfigError("task prompts needs a file of yours: --data FILE.jsonl")
        rows = read_jsonl(Path(source))
        for number, row in enumerate(rows.rows, 1):
            if not isinstance(row.get(self.field), str):
                raise ConfigError(f"{source}:{number}: no text under '{self.field}'{hint(self.field, row)}")
        return Data.of(rows, [Sample(str(i), row[self.field]) for i, row in enumerate(rows.rows)])
