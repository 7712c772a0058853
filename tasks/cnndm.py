"""CNN/DailyMail: highlights of news articles (Hermann et al. 2015, See et al. 2017).

Source: abisee/cnn_dailymail, config 3.0.0, split test, 11,490 rows. License: Apache-2.0; article text (c) CNN and Daily Mail.
Synthetic: specbench/data/synthetic/news.py.
Example row: {"article": "A fire closed the station. Nobody was hurt.", "highlights": "Fire closes station", "id": "0a1"}
"""

from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.task import Hub, Sample
from specbench.data.task_bases import FewShot, RougeScored
from specbench.data.templates import filled
from specbench.scoring import Metric

# Our own one-shot example.
ARTICLE = (
    "The ferry between Oldhaven and the northern islands stopped on Tuesday after divers found a crack in its hull. The"
    " company said that the 41-year-old ship would stay in the dock for three weeks. Two fishing boats now carry mail and"
    " medicine. Islanders have asked for a new ferry since 2011."
)
HIGHLIGHTS = (
    "Ferry to northern islands stops after crack found in hull\nShip to stay in dock for three weeks\n"
    "Fishing boats carry mail and medicine"
)


@dataclass(frozen=True, kw_only=True)
class CnnDm(RougeScored, FewShot, name="cnndm"):
    """ROUGE against the highlights. What papers call ROUGE-L on this data is ROUGE-Lsum."""

    version: ClassVar[str] = "1-A"
    hub: ClassVar[Hub] = Hub("abisee/cnn_dailymail", "3.0.0/{split}-00000-of-00001.parquet")
    published: ClassVar[int | None] = 11490
    omitted: ClassVar[tuple[str, ...]] = ("exemplars",)
    bundled: ClassVar[int] = 1
    fields: ClassVar[dict[str, type]] = {"article": str, "highlights": str}
    synthetic = SYNTHETIC_TASKS["cnndm"]

    prompt: str = "Summarize the following article:\n\n{article}\n\nSummary:"

    def example(self, row: Row) -> str:
        return f"{filled(self.prompt, article=row['article'])} {row['highlights']}"

    def bundled_examples(self) -> list[str]:
        return [self.example({"article": ARTICLE, "highlights": HIGHLIGHTS})]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.signed(super().metrics)

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        shown = self.worked
        return [
            Sample(str(i), shown + filled(self.prompt, article=row["article"]), row["highlights"])
            for i, row in enumerate(rows)
        ]
