"""Define a task with rows and a score of your own."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import specbench
from specbench.data.task import Sample, Task
from specbench.scoring import Metric


@dataclass(frozen=True, kw_only=True)
class Spelling(Task, name="spelling"):
    """Spell a word, letter by letter."""

    version: ClassVar[str] = "1-A"
    fields: ClassVar[dict[str, type]] = {"word": str}

    def samples(self, rows, source):
        return [Sample(str(i), f"Spell {row['word']}:", row["word"]) for i, row in enumerate(rows)]

    @property
    def metrics(self):
        return (Metric("spelled", "letters in order, hyphens ignored"),)

    def score(self, sample, text, sandbox=None):
        return {"spelled": float(text.replace("-", "").strip() == sample.reference)}


specbench.register(Spelling)
rows = Path("words.jsonl")
rows.write_text("".join(json.dumps({"word": word}) + "\n" for word in ("apple", "pear", "plum", "cherry")))
result = specbench.run("sd", "tiny", "spelling", data=str(rows), max_new_tokens=16, repeats=1)
print(result.table()[["task", "method", "speedup", "metric", "score"]].to_string(index=False))
