"""The interface of judges, and the question that a language model answers as a judge.

SPRINTER (Table 1) reports how often GPT-4 prefers its continuations, for accuracy and level of detail. The paper's prompt is
not published. A comparison is asked in both orders, since language models favor one position (Zheng et al. 2023).
"""

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specbench.config.construct import Named

Letter = Literal["A", "B", "C"]  # the first is better, the second is better, neither is

QUESTION = """Two continuations of the same text follow. Which one is better in accuracy and level of detail?

Text: {text}

Continuation A: {one}

Continuation B: {two}

Answer with one letter only: A, B, or C if neither is better."""


class Exchange(NamedTuple):
    """A prompt that a judge received, and its answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Judgment:
    """The result of a comparison: 1 if the first continuation is better, 0 if the second is, 1/2 for a tie.

    `unclear` counts the answers that name no letter. They count as ties.
    """

    verdict: float
    exchanges: tuple[Exchange, ...] = ()
    unclear: int = 0


class Judge(Named):
    """Base class of judges."""

    parallel: int = 1  # comparisons that may run at the same time

    @property
    @abstractmethod
    def label(self) -> str:
        """The judge's name in reports."""

    @abstractmethod
    def compare(self, text: str, one: str, two: str) -> Judgment:
        """Return which continuation of a text is better.

        Raises:
            MissingAsset: The judge's model cannot be loaded, or its server does not answer.
        """


class QuestionJudge(Judge):
    """Base class of judges that answer a question about each comparison, once in each order."""

    question: str

    def __post_init__(self) -> None:
        for key in ("{text}", "{one}", "{two}"):
            if key not in self.question:
                raise ValueError(f"question: {key} is missing")

    @abstractmethod
    def answer(self, prompt: str) -> str:
        """Return the judge's answer to a prompt."""

    def compare(self, text: str, one: str, two: str) -> Judgment:
        """Ask in both orders. A continuation wins if both answers prefer it; otherwise the comparison is a tie."""
        exchanges = []
        for first, second in ((one, two), (two, one)):
            prompt = self._filled(text, first, second)
            exchanges.append(Exchange(prompt, self.answer(prompt)))
        letters = [letter_of(exchange.answer) for exchange in exchanges]
        verdict = 1.0 if letters == ["A", "B"] else 0.0 if letters == ["B", "A"] else 0.5
        return Judgment(verdict, tuple(exchanges), unclear=letters.count(None))

    def _filled(self, text: str, one: str, two: str) -> str:
        """Return the question about a comparison. All fields are filled at once, since a text may contain `{one}`."""
        values = {"text": text, "one": one, "two": two}
        return re.sub(r"\{(text|one|two)\}", lambda match: values[match[1]], self.question)


def letter_of(answer: str) -> Letter | None:
    """Return the letter that an answer consists of, or ends with after `answer:`; None for other answers."""
    match = re.fullmatch(r"\W*([ABC])\W*", answer) or re.search(r"(?i:answer|choice)\W+(?:is\W+)?([ABC])\W*$", answer)
    letters: dict[str, Letter] = {"A": "A", "B": "B", "C": "C"}
    return letters[match[1]] if match else None
