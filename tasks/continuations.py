"""Continuations of texts from their first 30 %: the two data sets of SPRINTER.

LM1B, sentences of the One Billion Word Benchmark (Chelba et al. 2013). Source: billion-word-benchmark/lm1b, split test.
License: Apache-2.0 (the benchmark's repository).
Example row: {"text": "The minister said on Monday that the talks would go on ."}

Wiki-Summary, Wikipedia articles (Scheepers 2017). Source: jordiclive/wikipedia-summary-dataset. License: CC BY-SA (text of
Wikipedia). Example row: {"title": "Ash", "description": "tree", "summary": "An ash is a tree.", "full_text": "An ash is a
tree. It ..."}
"""

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row
from specbench.data.task import CONVERTED, Hub, Sample
from specbench.data.task_bases import RougeScored

SHARE = 0.3  # of a text's words are the prompt, rounded up
WORDS = re.compile(r"[a-z0-9]+", re.IGNORECASE)  # as ROUGE tokenizes them


def first_words(text: str) -> tuple[str, str]:
    """Return the first 30 % of a text's words, rounded up, and the rest; words are joined by spaces."""
    words = text.split()
    count = math.ceil(SHARE * len(words))
    return " ".join(words[:count]), " ".join(words[count:])


@dataclass(frozen=True, kw_only=True)
class Lm1b(RougeScored, name="lm1b"):
    """ROUGE of the continuation against the rest of the sentence. Sentences whose rest has no word are excluded."""

    version: ClassVar[str] = "1-A"
    continues: ClassVar[bool] = True
    hub: ClassVar[Hub] = Hub("billion-word-benchmark/lm1b", "plain_text/{split}/0000.parquet", CONVERTED)
    fields: ClassVar[dict[str, type]] = {"text": str}

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        split = ((str(i), *first_words(row["text"])) for i, row in enumerate(rows))
        return [Sample(id_, start, rest) for id_, start, rest in split if WORDS.search(rest)]

    def continuations(self, rows: list[Row]) -> list[str]:
        return [f" {sample.reference}" for sample in self.samples(rows, "")]


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
