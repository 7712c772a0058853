"""LM1B: continuations of sentences of the One Billion Word Benchmark (Chelba et al. 2013; SPRINTER's second data set).

Source: billion-word-benchmark/lm1b, split test. License: Apache-2.0 (the benchmark's repository).
Example row: {"text": "The minister said on Monday that the talks would go on ."}
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row
from specbench.data.task import CONVERTED, Hub, Sample
from specbench.data.task_bases import RougeScored
from specbench.tasks.wiki_summary import first_words

WORDS = re.compile(r"[a-z0-9]+", re.IGNORECASE)  # as ROUGE tokenizes them


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
