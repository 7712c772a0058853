"""Floor 0: what a task is. Its classes live in tasks/, one file each; its variants in configs/tasks/."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from specbench.assets import Rows
from specbench.errors import ConfigError
from specbench.registry import Named


@dataclass(frozen=True)
class Sample:
    """One prompt. `reference` is whatever the task's `score` needs of the right answer; None where nothing is scored."""

    id: str
    prompt: str
    reference: Any = None


@dataclass(frozen=True)
class Data:
    """The samples of one source, and what identifies them in a result."""

    samples: list[Sample]
    source: str
    revision: str | None
    sha256: str  # of all rows
    total: int  # samples of the whole source

    @classmethod
    def of(cls, rows: Rows, samples: list[Sample]) -> "Data":
        """Raises ConfigError where there is no sample."""
        if not samples:
            raise ConfigError(f"{rows.source} holds no samples")
        return cls(samples, rows.source, rows.revision, rows.sha256, len(samples))

    def first(self, count: int) -> "Data":
        return replace(self, samples=self.samples[:count])


@dataclass(frozen=True, kw_only=True)
class Task(Named):
    """A data set with its prompts and its scores.

    `version` is a number, bumped when scores may move, and a letter, bumped when only the interface does. A score is a
    dictionary of metrics in [0, 1], one value a sample; the first of `metrics` is the headline. Empty: unscored.
    """

    version: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    description: str = ""
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens = {self.max_new_tokens} must be at least 1")

    @abstractmethod
    def data(self, source: str) -> Data:
        """The samples of `hub`, `synthetic` or a local JSONL file. Raises MissingAsset or ConfigError, saying what to do."""

    def score(self, sample: Sample, text: str) -> dict[str, float]:
        """The metrics of one generated text, each in [0, 1]."""
        return {}

    def signature(self) -> Mapping[str, str]:
        """Metric -> a string that says exactly how it was computed."""
        return {}


def without(texts: Sequence[str], text: str) -> str:
    """`text` up to the first of `texts` in it."""
    return text[: min((i for t in texts if (i := text.find(t)) >= 0), default=len(text))]
