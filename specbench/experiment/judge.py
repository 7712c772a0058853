"""Judges that compare two continuations, for SPRINTER's win rate. The paper uses GPT-4; these use local models."""

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from specbench.config.construct import Named, Table
from specbench.config.pair import folder
from specbench.data.task import Data
from specbench.errors import ConfigError
from specbench.files import read_sealed, write_sealed
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer, unreadable
from specbench.runs.run_folder import JUDGED, read
from specbench.runs.scores import Judged, JudgedRow

Verdict = float  # 1: the first is better, 0: the second, 1/2: neither


class Judge(Named):
    """Base class of judges, which compare two continuations of a text."""

    path: str
    device: str

    @abstractmethod
    def prefers(self, text: str, one: str, two: str) -> Verdict:
        """Return which continuation is better."""

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

    def scores(self, text: str, continuation: str) -> torch.Tensor:
        """Return the log-probabilities of the continuation's tokens after the text, (tokens,)."""
        before = self.tokenizer(text)["input_ids"]
        after = self.tokenizer(continuation, add_special_tokens=False)["input_ids"]
        if not after:
            return torch.zeros(1)
        with torch.inference_mode():
            ids = torch.tensor([before + after], device=self.device)
            logits: torch.Tensor = self.model(ids).logits[0, len(before) - 1 : -1].float().cpu()
        return logits.log_softmax(-1).gather(-1, torch.tensor(after)[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Likelihood(Judge, name="likelihood"):
    """Prefers the continuation with the higher mean log-probability per token.

    Favors greedy text, and does not judge accuracy or detail: a substitute if no model can judge.
    """

    path: str
    device: str = "cpu"

    def prefers(self, text: str, one: str, two: str) -> Verdict:
        first, second = (float(self.scores(text, each).mean()) for each in (one, two))
        return 0.5 if first == second else float(first > second)


QUESTION = """Two continuations of the same text follow. Which is better in accuracy and level of detail?

Text: {text}

A: {one}

B: {two}

The better continuation is"""


@dataclass(frozen=True, kw_only=True)
class Prompted(Judge, name="prompted"):
    """Prompts an instruction-tuned model with both orders; a tie if they disagree (SPRINTER, Table 1, with GPT-4)."""

    path: str
    device: str = "cpu"
    question: str = QUESTION

    def prefers(self, text: str, one: str, two: str) -> Verdict:
        votes = [self._first(text, one, two), not self._first(text, two, one)]
        return sum(votes) / 2

    def _first(self, text: str, one: str, two: str) -> bool:
        prompt = self.question.format(text=text, one=one, two=two)
        first, second = (float(self.scores(prompt, answer).sum()) for answer in (" A", " B"))
        return first > second


def comparisons(run: Path, data: Data, judge: Judge, ours: str, theirs: str) -> Iterator[JudgedRow]:
    """Yield the comparisons of two methods' generations on the same prompt and repeat. Equal texts are ties."""
    prompts = {sample.id: sample.prompt for sample in data.samples}
    texts = {record.key: record.text for record in read(run) if record.error is None}
    for (method, sample, repeat), text in texts.items():
        other = texts.get((theirs, sample, repeat))
        if method == ours and other is not None:
            verdict = 0.5 if text == other else judge.prefers(prompts[sample], text, other)
            yield {"sample": sample, "repeat": repeat, "verdict": verdict}


@cache
def _judge(table: str, device: str) -> Judge:
    """Return the judge of a table (as JSON), cached for all runs."""
    return Judge.build({"device": device, **json.loads(table)}, "judge")


def judge_run(run: Path, data: Data, table: Table, device: torch.device) -> None:
    """Judge a run's generations and write judged.json, unless that is done.

    `table` has the judge's keys, and the methods to compare, `of` and `against`. Raises ConfigError if the run lacks one.
    """
    own = {key: value for key, value in table.items() if key not in ("of", "against")}
    ours, theirs = str(table["of"]), str(table["against"])
    request: Table = {"judge": own, "of": ours, "against": theirs}
    records = list(read(run))
    for method in (ours, theirs):
        if method not in {record.method for record in records}:
            raise ConfigError(f"judge: no method '{method}' in {run.name}")
    known = _kept(run)
    if known and known["records"] == len(records) and all(dict(known)[key] == value for key, value in request.items()):
        return
    judge = _judge(json.dumps(own), str(device))
    rows = list(comparisons(run, data, judge, ours, theirs))
    write_sealed(run / JUDGED, {**request, "records": len(records), "rows": rows})


def _kept(run: Path) -> Judged | None:
    """Return the stored verdicts; None if they are missing or damaged, since they can be repeated."""
    try:
        return read_sealed(run / JUDGED, Judged) if (run / JUDGED).exists() else None
    except ConfigError:
        return None
