"""Base class of tasks that compare a text with one reference by ROUGE."""

from dataclasses import dataclass
from functools import cached_property

from specbench.data.task import Sample, Task, without
from specbench.sandbox import Sandbox
from specbench.scoring.hf_evaluate import Evaluate
from specbench.scoring.metric import NO_ANSWER, Metric, Score
from specbench.scoring.rouge import KINDS, Rouge, lines


@dataclass(frozen=True, kw_only=True)
class RougeScored(Task):
    """A task scored by ROUGE.

    Args:
        cut: strings; a text is truncated at the first of them before it is scored.
        evaluate: a ROUGE script for Hugging Face evaluate, which replaces rouge-score. Both score the same lines.
    """

    cut: tuple[str, ...] = ()
    evaluate: str = ""

    @cached_property
    def rouge(self) -> Rouge | Evaluate:
        return Evaluate(self.evaluate, KINDS, use_stemmer=True) if self.evaluate else Rouge()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.rouge.metrics

    @property
    def headline(self) -> str:
        return "rouge2"

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        text = without(self.cut, text).strip()
        return {**self.rouge.score(lines(text), lines(sample.reference)), NO_ANSWER: float(not text)}
