"""Wiki-Summary: continuations of Wikipedia articles from their first 30 % (Scheepers 2017; SPRINTER's first data set).

Source: jordiclive/wikipedia-summary-dataset. License: CC BY-SA (text of Wikipedia).
Example row: {"title": "Ash", "description": "tree", "summary": "An ash is a tree.", "full_text": "An ash is a tree. It ..."}
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row
from specbench.data.task import CONVERTED, Hub, Sample
from specbench.data.task_bases import RougeScored

SHARE = 0.3  # of a text's words are the prompt, rounded up


@dataclass(frozen=True, kw_only=True)
class WikiSummary(RougeScored, name="wiki-summary"):
    """ROUGE of the continuation against the article's summary."""

    version: ClassVar[str] = "1-A"
    continues: ClassVar[bool] = True
    hub: ClassVar[Hub] = Hub("jordiclive/wikipedia-summary-dataset", "default/train/0000.parquet", CONVERTED)
    fields: ClassVar[dict[str, type]] = {"summary": str, "full_text": str}

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        return [Sample(str(i), first_words(row["full_text"])[0], row["summary"]) for i, row in enumerate(rows)]

    def continuations(self, rows: list[Row]) -> list[str]:
        return [" " + first_words(row["full_text"])[1] for row in rows]


def first_words(text: str) -> tuple[str, str]:
    """Return the first 30 % of a text's words, rounded up, and the rest; words are joined by spaces."""
    words = text.split()
    count = math.ceil(SHARE * len(words))
    return " ".join(words[:count]), " ".join(words[count:])
