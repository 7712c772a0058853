"""XSum: one-sentence summaries of BBC articles (Narayan et al. 2018).

Source: EdinburghNLP/xsum, split test, 11,334 rows. License: MIT (data set's repository); article text (c) BBC.
Synthetic: specbench/data/synthetic/news.py.
Example row: {"document": "The bridge shut. It opened on Friday.", "summary": "A bridge has opened again.", "id": "0a1"}
"""

from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.task import CONVERTED, Hub, Sample
from specbench.data.task_bases import FewShot, RougeScored
from specbench.data.templates import filled
from specbench.scoring import Metric


@dataclass(frozen=True, kw_only=True)
class XSum(RougeScored, FewShot, name="xsum"):
    """ROUGE against the summary."""

    version: ClassVar[str] = "1-A"
    hub: ClassVar[Hub] = Hub("EdinburghNLP/xsum", "default/{split}/0000.parquet", CONVERTED)
    published: ClassVar[int | None] = 11334
    fields: ClassVar[dict[str, type]] = {"document": str, "summary": str}
    synthetic = SYNTHETIC_TASKS["xsum"]

    prompt: str = "Document: {document}\n\nA one-sentence summary of the above document is:"

    def example(self, row: Row) -> str:
        return f"{filled(self.prompt, document=row['document'])} {row['summary']}"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.signed(super().metrics)

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        before = self.worked
        return [
            Sample(str(i), before + filled(self.prompt, document=row["document"]), row["summary"])
            for i, row in enumerate(rows)
        ]
