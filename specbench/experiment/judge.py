"""Floor 4: which of two continuations a judge prefers: SPRINTER's win rate, with a model that is here in GPT-4's place."""

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from specbench.config.construct import Named
from specbench.config.pair import folder
from specbench.data.task import Data
from specbench.errors import ConfigError
from specbench.files import read_sealed, write_sealed
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer, unreadable
from specbench.runs.run_folder import JUDGED, read
from specbench.runs.scores import Judged

Verdict = float  # 1: the first is better, 0: the second, 1/2: neither


class Judge(Named):
    """Prefers one of two continuations of a text."""

    path: str
    device: str

    @abstractmethod
    def prefers(self, text: str, one: str, two: str) -> Verdict:
        """Which of the two is the better continuation."""

    @cached_property
    def model(self) -> Any:
        """The judge's model. Raises MissingAsset where it is not here and cannot be fetched."""
        try:
            config = AutoConfig.from_pretrained(self._source, trust_remote_code=False)
        except Exception as error:  # whatever a library makes of a damaged file
            raise unreadable("judge", self._source, error) from None
        return load_model(Checkpoint("judge", self._source, config)).eval().to(self.device)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer("judge", self._source)

    @property
    def _source(self) -> str:
        return str(folder(self.path, Path()) or self.path)

    def scores(self, text: str, continuation: str) -> torch.Tensor:
        """Log-probabilities of the continuation's tokens behind the text, (tokens,)."""
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
    """Prefers what a model of its own finds likelier, by the mean log-probability of a token.

    No judge of accuracy or detail: a stand-in for where no model can judge. It favours greedy text.
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
    """Asks an instruction-tuned model, in both orders; a tie where the orders disagree (SPRINTER, Table 1: GPT-4's place)."""

    path: str
    device: str = "cpu"
    question: str = QUESTION

    def prefers(self, text: str, one: str, two: str) -> Verdict:
        votes = [self._first(text, one, two), not self._first(text, two, one)]
        return sum(votes) / 2

    def _first(self, text: str, one: str, two: str) -> bool:
        asked = self.question.format(text=text, one=one, two=two)
        first, second = (float(self.scores(asked, answer).sum()) for answer in (" A", " B"))
        return first > second


def comparisons(run: Path, data: Data, judge: Judge, ours: str, theirs: str) -> Iterator[dict[str, Any]]:
    """Every generation of one method against that of another on the same prompt and repeat; equal texts are ties."""
    prompts = {sample.id: sample.prompt for sample in data.samples}
    texts = {record.key: record.text for record in read(run) if record.error is None}
    for (method, sample, repeat), text in texts.items():
        other = texts.get((theirs, sample, repeat))
        if method == ours and other is not None:
            verdict = 0.5 if text == other else judge.prefers(prompts[sample], text, other)
            yield {"sample": sample, "repeat": repeat, "verdict": verdict}


@cache
def _judge(told: str, device: str) -> Judge:
    """The judge of a table (as JSON), loaded once for all runs that it judges."""
    return Judge.build({"device": device, **json.loads(told)}, "judge")


def judge_run(run: Path, data: Data, table: dict[str, Any], device: torch.device) -> None:
    """Judge a run's generations, unless that is done, and write judged.json.

    `table`: the judge, and the methods compared, `of` and `against`. Raises ConfigError where the run has not both.
    """
    own = {key: value for key, value in table.items() if key not in ("of", "against")}
    told = {"judge": own, "of": table["of"], "against": table["against"]}
    records = list(read(run))
    for method in (told["of"], told["against"]):
        if method not in {record.method for record in records}:
            raise ConfigError(f"judge: no method '{method}' in {run.name}")
    known = _kept(run)
    if known.get("records") == len(records) and all(known.get(key) == value for key, value in told.items()):
        return
    judge = _judge(json.dumps(own), str(device))
    rows = list(comparisons(run, data, judge, told["of"], told["against"]))
    write_sealed(run / JUDGED, {**told, "records": len(records), "rows": rows})


def _kept(run: Path) -> dict[str, Any]:
    """The verdicts that are there; none where they are damaged, since they can be given again."""
    try:
        return dict(read_sealed(run / JUDGED, Judged)) if (run / JUDGED).exists() else {}
    except ConfigError:
        return {}
