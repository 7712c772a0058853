"""GSM8K: grade-school word problems (Cobbe et al. 2021).

Source: openai/gsm8k, config main, split test, 1,319 rows. License: MIT. Synthetic: specbench/data/synthetic/word_problems.py.
Example row: {"question": "Ben has 3 bags with 4 shells each. How many shells does Ben have now?",
              "answer": "The bags hold 3*4=<<3*4=12>>12 shells.\\n#### 12"}
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal

from specbench.data.rows import Row
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.task import Hub, Sample
from specbench.data.task_bases import FewShot
from specbench.data.templates import filled, up_to
from specbench.errors import ConfigError
from specbench.sandbox import Sandbox
from specbench.scoring import NO_ANSWER, Metric, Score, last_number, number_in

# Our own worked examples in the data set's answer format, without its calculator annotations.
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

STRICT = re.compile(r"#### (-?[0-9.,{}\\!]+)")
NEXT_QUESTION = ("\nQuestion:",)
SE_PAPER_CUT = ("\n\nQuestion:",)
SE_PAPER_MARKED = re.compile(r"###\s*(-?\d+)")
SE_PAPER_LAST = re.compile(r"(?<!\d)-?\d+(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Gsm8k(FewShot, name="gsm8k"):
    """Chain of thought with worked examples in the form of `prompt`, four of its own; exact match of a number.

    Text from a next question on is ignored. The answer of a row is the first number after `####`, or the last number of a row
    without this mark. The `standard` grader takes the number after the first `####` (`strict`) and the last number
    (`flexible`), by their values: 18, 18.00 and 18... are equal. `se-paper` follows the authors of Speculative
    Ensemble: the number after `###`, else the last number, rounded.
    """

    version: ClassVar[str] = "3-A"
    hub: ClassVar[Hub] = Hub("openai/gsm8k", "main/{split}-00000-of-00001.parquet")
    published: ClassVar[int | None] = 1319
    omitted: ClassVar[tuple[str, ...]] = ("exemplars",)
    bundled: ClassVar[int] = len(EXAMPLES)
    fields: ClassVar[dict[str, type]] = {"question": str, "answer": str}
    synthetic = SYNTHETIC_TASKS["gsm8k"]

    prompt: str = "Question: {question}\nAnswer:"
    shots: int = 4
    grader: Literal["standard", "se-paper"] = "standard"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        before = self.worked
        return [
            Sample(
                str(i),
                before + filled(self.prompt, question=row["question"]),
                reference=reference_of(row["answer"], f"{source}:{i + 1}"),
            )
            for i, row in enumerate(rows)
        ]

    def example(self, row: Row) -> str:
        return f"{filled(self.prompt, question=row['question'])} {row['answer']}"

    def bundled_examples(self) -> list[str]:
        return [self.example({"question": question, "answer": answer}) for question, answer in EXAMPLES]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        if self.grader == "se-paper":
            return (Metric("accuracy", f"exact_match|extract:###-else-last|norm:commas,round|{self.form}"),)
        return (
            Metric("strict", f"exact_match|extract:first-####|by:value|{self.form}"),
            Metric("flexible", f"exact_match|extract:last-number|by:value|{self.form}"),
        )

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        if self.grader == "se-paper":
            number = se_paper_number(text)
            right = se_paper_number(f"### {sample.reference}")
            return {"accuracy": float(number is not None and number == right), NO_ANSWER: float(number is None)}
        text = up_to(NEXT_QUESTION, text)
        marked, reference, flexible = STRICT.search(text), number_in(sample.reference), last_number(text)
        strict = number_in(marked[1]) if marked else None
        return {
            "strict": float(strict is not None and strict == reference),
            "flexible": float(flexible is not None and flexible == reference),
            NO_ANSWER: float(strict is None),
        }


def reference_of(answer: str, location: str) -> str:
    """Return the number of an answer: the first one after `####`, or the last one. Raises ConfigError if there is none."""
    _, mark, after = answer.rpartition("####")
    marked = number_of(after)
    if mark and re.fullmatch(r"-?\d+(\.\d+)?", marked):
        return marked
    number = number_in(after) if mark else last_number(answer)
    if number is None:
        raise ConfigError(f"{location}: 'answer' has no number{' after ####' if '####' in answer else ''}")
    return format(number, "f")


def number_of(text: str) -> str:
    """Return a number without spaces, commas, dollar signs and a final dot, as is usual for GSM8K."""
    return re.sub(r"[\s,$]", "", text).removesuffix(".")


def se_paper_number(text: str) -> int | None:
    """Return the number that the authors of Speculative Ensemble grade, or None."""
    text = up_to(SE_PAPER_CUT, text).replace(",", "")
    marked, last = SE_PAPER_MARKED.search(text), SE_PAPER_LAST.findall(text)
    number = marked[1] if marked else last[-1] if last else None
    return None if number is None else round(Decimal(number))
