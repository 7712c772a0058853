"""WMT14 English-German in both directions (Bojar et al. 2014).

Source: wmt/wmt14, config de-en, split test, newstest2014, 3,003 rows. License: none stated.
Synthetic: specbench/data/synthetic/translations.py.
Example row: {"translation": {"de": "Das Haus ist alt.", "en": "The house is old."}}
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from specbench.data.rows import Row
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.task import Hub, Sample
from specbench.data.task_bases import FewShot
from specbench.data.templates import filled
from specbench.errors import ConfigError
from specbench.sandbox import Sandbox
from specbench.scoring import NO_ANSWER, Metric, Score, Translation

LANGUAGES = {"en": "English", "de": "German"}


@dataclass(frozen=True, kw_only=True)
class Wmt(FewShot, name="wmt"):
    """Corpus-level sacreBLEU and chrF++, with their signatures. The prompt may contain {source}, {from} and {to}."""

    version: ClassVar[str] = "1-A"
    hub: ClassVar[Hub] = Hub("wmt/wmt14", "de-en/{split}-00000-of-00001.parquet")
    published: ClassVar[int | None] = 3003
    fields: ClassVar[dict[str, type]] = {"translation": dict}
    synthetic = SYNTHETIC_TASKS["wmt"]
    scorer: ClassVar[Translation] = Translation()

    prompt: str = "{from} phrase: {source}\n\n{to} phrase:"
    direction: Literal["en-de", "de-en"] = "en-de"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        before, out = self.worked, []
        for i, row in enumerate(rows):
            prompt, reference = self._parts(row, f"{source}:{i + 1}")
            out.append(Sample(str(i), before + prompt, reference))
        return out

    def example(self, row: Row) -> str:
        return " ".join(self._parts(row, self.exemplars))

    def _parts(self, row: Row, location: str) -> tuple[str, str]:
        """Return the prompt of a row and its translation. Raises ConfigError if a language is missing."""
        start, end = self.direction.split("-")
        pair = row["translation"]
        if not all(isinstance(pair.get(language), str) for language in LANGUAGES):
            raise ConfigError(f"{location}: 'translation' must have a text under 'de' and under 'en'")
        words = {"source": pair[start], "from": LANGUAGES[start], "to": LANGUAGES[end]}
        return filled(self.prompt, **words), pair[end]

    def continuations(self, rows: list[Row]) -> list[str]:
        return [" " + row["translation"][self.direction.split("-")[1]] for row in rows]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.signed(self.scorer.metrics)

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        return {**self.scorer.score(text.strip(), sample.reference), NO_ANSWER: float(not text.strip())}
