"""GSM8K: grade-school word problems (Cobbe et al. 2021).

Source: openai/gsm8k, config main, split test, 1,319 rows. Licence: MIT. Synthetic: specbench/tiny/problems.py, test split.
Example row: {"question": "Ben has 3 bags with 4 shells each. How many shells does Ben have now?",
              "answer": "The bags hold 3*4=<<3*4=12>>12 shells.\\n#### 12"}
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specbench.assets import Rows, fetch_parquet, read_jsonl
from specbench.errors import ConfigError, hint
from specbench.task import Data, Sample, Task
from specbench.tiny.problems import problems

REPO, FILE = "openai/gsm8k", "main/test-00000-of-00001.parquet"
SYNTHETIC_ROWS = 1000

# Worked examples, our own, in the data set's answer format without its calculator marks.
EXAMPLES = (
    (
        "A baker fills 6 trays with 8 rolls each. He sells 29 rolls before noon. How many rolls are left?",
        "The baker makes 6 * 8 = 48 rolls.\nAfter selling 29 there are 48 - 29 = 19 rolls left.\n#### 19",
    ),
    (
        "Lena reads 15 pages every weekday and twice as many on each day of the weekend. How many pages does she read in"
        " a week?",
        "On 5 weekdays Lena reads 5 * 15 = 75 pages.\nOn a weekend day she reads 2 * 15 = 30 pages.\n"
        "On 2 weekend days that is 2 * 30 = 60 pages.\nIn a week she reads 75 + 60 = 135 pages.\n#### 135",
    ),
    (
        "A ticket costs $12, and children pay half. How much do 2 adults and 3 children pay?",
        "Two adults pay 2 * 12 = 24 dollars.\nA child pays 12 / 2 = 6 dollars.\n"
        "Three children pay 3 * 6 = 18 dollars.\nTogether they pay 24 + 18 = 42 dollars.\n#### 42",
    ),
    (
        "Omar saves $40 a month. After 9 months he buys a bicycle for $285. How many dollars does he have left?",
        "Omar saves 40 * 9 = 360 dollars.\nAfter buying the bicycle he has 360 - 285 = 75 dollars left.\n#### 75",
    ),
)

STRICT = re.compile(r"#### (-?[0-9.,]+)")
FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Gsm8k(Task, name="gsm8k"):
    """Chain of thought from 0 to 4 worked examples; the number behind `####` (strict) or the last number (flexible)."""

    version: ClassVar[str] = "1-A"
    metrics: ClassVar[tuple[str, ...]] = ("strict", "flexible", "answered")
    shots: int = 4
    revision: str = ""  # of the hub's data set; open: the newest, whose commit a run records

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.shots <= len(EXAMPLES):
            raise ValueError(f"shots = {self.shots} must be from 0 to {len(EXAMPLES)}")

    def data(self, source: str) -> Data:
        if source == "hub":
            rows = fetch_parquet(REPO, FILE, self.revision or None)
        elif source == "synthetic":
            rows = Rows(list(itertools.islice(problems("test"), SYNTHETIC_ROWS)), "synthetic", None)
        else:
            rows = read_jsonl(Path(source))
        for number, row in enumerate(rows.rows, 1):
            for key in ("question", "answer"):
                if not isinstance(row.get(key), str):
                    raise ConfigError(f"{source}:{number}: no text under '{key}'{hint(key, row)}")
        samples = [
            Sample(str(i), self.prompt(row["question"]), reference=number_of(row["answer"].rsplit("####", 1)[-1]))
            for i, row in enumerate(rows.rows)
        ]
        return Data.of(rows, samples)

    def prompt(self, question: str) -> str:
        shots = (f"Question: {asked}\nAnswer: {worked}\n\n" for asked, worked in EXAMPLES[: self.shots])
        return "".join(shots) + f"Question: {question}\nAnswer:"

    def score(self, sample: Sample, text: str) -> dict[str, float]:
        """Strict takes the first `#### N`, flexible the last number; `answered` says whether strict found one."""
        strict, flexible = STRICT.search(text), FLEXIBLE.findall(text)
        return {
            "strict": float(strict is not None and number_of(strict[1]) == sample.reference),
            "flexible": float(bool(flexible) and number_of(flexible[-1]) == sample.reference),
            "answered": float(strict is not None),
        }

    def signature(self) -> dict[str, str]:
        form = f"shots:{self.shots}|cot:yes|norm:commas,$,final-dot|v:{self.version}"
        return {
            "strict": f"exact_match|extract:first-####|{form}",
            "flexible": f"exact_match|extract:last-number|{form}",
            "answered": f"share|extract:first-####|{form}",
        }


def number_of(text: str) -> str:
    """The number as the field compares it: without blanks, commas, dollar signs and a final dot."""
    return re.sub(r"[\s,$]", "", text).removesuffix(".")
