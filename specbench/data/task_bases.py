"""Base classes of tasks: prompts with worked examples, and scores by ROUGE."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from specbench.data.rows import Row, Rows
from specbench.data.task import Sample, Task
from specbench.data.templates import up_to
from specbench.errors import ConfigError
from specbench.sandbox import Sandbox
from specbench.scoring import NO_ANSWER, ROUGE_KINDS, Evaluate, Metric, Rouge, Score, lines

CHECKSUM = 8  # hex digits of a file's checksum in a signature


@dataclass(frozen=True, kw_only=True)
class FewShot(Task):
    """A task whose prompts begin with `shots` worked examples.

    `exemplars` is a file with rows like the task's own. Each becomes its prompt and its answer. They replace the task's
    examples.
    """

    paths: ClassVar[tuple[str, ...]] = ("exemplars",)
    omitted: ClassVar[tuple[str, ...]] = ("exemplars", "shots")
    bundled: ClassVar[int] = 0  # examples that the task has without a file

    shots: int = 0
    exemplars: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shots < 0:
            raise ValueError(f"shots = {self.shots} must be at least 0")
        if self.exemplars and not self.shots:
            raise ValueError(f"exemplars = '{self.exemplars}' has no effect with shots = 0; help: shots = N")
        if not self.exemplars and self.shots > self.bundled:
            allowed = f"from 0 to {self.bundled}" if self.bundled else "0"
            raise ValueError(
                f"shots = {self.shots} must be {allowed}, unless exemplars = FILE.jsonl gives more examples"
            )

    @abstractmethod
    def example(self, row: Row) -> str:
        """Return a row as a worked example: its prompt, followed by its answer."""

    def bundled_examples(self) -> list[str]:
        """Return the task's own worked examples."""
        return []

    @property
    def worked(self) -> str:
        """The worked examples before every prompt. Raises MissingAsset or ConfigError for a wrong file."""
        examples = [self.example(row) for row in self._rows.rows] if self.exemplars else self.bundled_examples()
        if len(examples) < self.shots:
            raise ConfigError(f"{self.exemplars} has {len(examples)} rows; shots = {self.shots} needs as many")
        return "".join(f"{example}\n\n" for example in examples[: self.shots])

    @property
    def form(self) -> str:
        """The number of worked examples, and the checksum of the user's file, for a metric's signature."""
        return f"shots:{self.shots}" + (f"|exemplars:{self._rows.sha256[:CHECKSUM]}" if self.exemplars else "")

    def signed(self, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
        """Return metrics with the user's worked examples in their signatures."""
        if not self.exemplars:
            return tuple(metrics)
        return tuple(replace(metric, signature=f"{metric.signature}|{self.form}") for metric in metrics)

    @cached_property
    def _rows(self) -> Rows:
        return self.rows(self.exemplars)


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
        return Evaluate(self.evaluate, ROUGE_KINDS, use_stemmer=True) if self.evaluate else Rouge()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.rouge.metrics

    @property
    def headline(self) -> str:
        return "rouge2"

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        text = up_to(self.cut, text).strip()
        return {**self.rouge.score(lines(text), lines(sample.reference)), NO_ANSWER: float(not text)}
