"""Judges that are models on this machine."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig

from specbench.config.pair import folder
from specbench.data.prompting import apply_template
from specbench.data.task import Message
from specbench.judges.judge import QUESTION, Judge, Judgment, QuestionJudge
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer, unreadable

Chat = Literal["auto", "off"]
LETTERS = ("A", "B", "C")


class _LocalModel(Judge):
    """Base class of judges with a local model."""

    path: str
    device: str

    @property
    def label(self) -> str:
        """The kind of judge and the model's path."""
        return f"{self.name}, {self.path}"

    @cached_property
    def model(self) -> Any:
        """The judge's model. Raises MissingAsset if it cannot be loaded."""
        try:
            config = AutoConfig.from_pretrained(self._source, trust_remote_code=False)
        except Exception as error:  # of any type, for damaged files
            raise unreadable("judge", self._source, error) from None
        return load_model(Checkpoint("judge", self._source, config)).eval().to(self.device)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the judge's model."""
        return load_tokenizer("judge", self._source)

    @property
    def _source(self) -> str:
        return str(folder(self.path, Path()) or self.path)

    def log_probabilities(self, before: list[int], continuation: str) -> torch.Tensor:
        """Return the log-probabilities of the continuation's tokens after these ids, (tokens,)."""
        after = self.tokenizer(continuation, add_special_tokens=False)["input_ids"]
        if not after:
            return torch.zeros(1)
        with torch.inference_mode():
            ids = torch.tensor([before + after], device=self.device)
            logits: torch.Tensor = self.model(ids).logits[0, len(before) - 1 : -1].float().cpu()
        return logits.log_softmax(-1).gather(-1, torch.tensor(after)[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Likelihood(_LocalModel, name="likelihood"):
    """Prefers the continuation with the higher mean log-probability per token.

    It favors greedy text and judges neither accuracy nor detail. Use it only where no model can judge.
    """

    path: str
    device: str = "cpu"

    def compare(self, text: str, one: str, two: str) -> Judgment:
        """Compare the mean log-probabilities of the continuations' tokens."""
        before = self.tokenizer(text)["input_ids"]
        first, second = (float(self.log_probabilities(before, continuation).mean()) for continuation in (one, two))
        return Judgment(0.5 if first == second else float(first > second))


@dataclass(frozen=True, kw_only=True)
class Prompted(_LocalModel, QuestionJudge, name="prompted"):
    """Prompts an instruction-tuned model, with its chat template if it has one (SPRINTER, Table 1, with GPT-4).

    The answer is the letter with the highest probability after the prompt.
    """

    path: str
    device: str = "cpu"
    chat: Chat = "auto"
    question: str = QUESTION

    def answer(self, prompt: str) -> str:
        """Return the most probable letter."""
        if self.chat == "auto" and self.tokenizer.chat_template:
            message: Message = {"role": "user", "content": prompt}
            before, blank = apply_template(self.tokenizer, [message], True, 'chat = "off" in the judge, or '), ""
        else:
            before, blank = self.tokenizer(f"{prompt}\nAnswer:")["input_ids"], " "
        return max(LETTERS, key=lambda letter: float(self.log_probabilities(before, f"{blank}{letter}").sum()))
