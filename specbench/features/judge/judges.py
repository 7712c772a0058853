"""Judges that compare two continuations of a text: a local model, or a server with an OpenAI-compatible API.

SPRINTER (Table 1) reports how often GPT-4 prefers its continuations, for accuracy and level of detail. The paper's prompt
is not published. Judges that answer a question compare in both orders, since models favor one position (Zheng et al.
2023).
"""

import asyncio
import json
import re
import time
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from transformers import AutoConfig

from specbench.config.construct import Named
from specbench.config.pair import folder
from specbench.data.prompting import apply_template
from specbench.data.task import Message
from specbench.errors import MissingAsset
from specbench.http_client import FailureKind, HttpClient, RequestFailed, Server
from specbench.models.checkpoints import Checkpoint, load_model, load_tokenizer, unreadable

Letter = Literal["A", "B", "C"]  # the first is better, the second is better, neither is

QUESTION = """Two continuations of the same text follow. Which one is better in accuracy and level of detail?

Text: {text}

Continuation A: {one}

Continuation B: {two}

Answer with one letter only: A, B, or C if neither is better."""
RETRIED = (408, 409, 429, 500, 502, 503, 504)  # HTTP status codes
LONGEST_WAIT = 60.0  # seconds
MOST_BYTES = 2**20  # of an answer, decoded
PASSING = (FailureKind.connection, FailureKind.reset, FailureKind.timeout, FailureKind.incomplete)
Chat = Literal["auto", "off"]
LETTERS = ("A", "B", "C")


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
        """Compare in both orders. A continuation wins if both answers prefer it; otherwise the comparison is a tie."""
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


@dataclass(frozen=True, kw_only=True)
class Endpoint(QuestionJudge, name="endpoint"):
    """Sends each comparison to `url`/chat/completions, greedily decoded.

    The key is read from the environment variable `key_env`, and is not stored. A request that fails for a temporary reason is
    repeated up to `retries` times, after 1, 2, 4, ... seconds or after the time in the server's Retry-After.
    """

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    question: str = QUESTION
    max_tokens: int = 16
    timeout: float = 120.0  # seconds of one request in all
    retries: int = 5
    parallel: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        Server(self.url, self.key_env)  # checks the URL
        if not self.model:
            raise ValueError("the judge's model is missing; help: --judge-model NAME")
        if self.parallel < 1 or self.retries < 0 or self.max_tokens < 1:
            raise ValueError("parallel and max_tokens are at least 1, retries at least 0")

    @property
    def label(self) -> str:
        """The model's name and the server."""
        return f"{self.model} at {Server(self.url).host}"

    def answer(self, prompt: str) -> str:
        """Return the server's answer.

        Raises:
            MissingAsset: The server does not answer, or answers with an error.
        """
        for attempt in range(self.retries + 1):
            try:
                return self._content(asyncio.run(self._post(prompt)))
            except RequestFailed as error:
                if attempt == self.retries or not _may_pass(error):
                    raise MissingAsset(f"the judge at {self.url}: {error}") from None
                time.sleep(min(2.0**attempt if error.retry_after is None else error.retry_after, LONGEST_WAIT))
        raise AssertionError("the last attempt returns or raises")

    async def _post(self, prompt: str) -> bytes:
        """Send a prompt and return the answer, of at most MOST_BYTES. Raises RequestFailed."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        async with HttpClient(Server(self.url, self.key_env, self.timeout)) as client:
            return await client.post("/chat/completions", body, MOST_BYTES)

    def _content(self, answer: bytes) -> str:
        """Return the text of a completion."""
        try:
            content: Any = json.loads(answer)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise MissingAsset(f"the judge at {self.url} does not answer in the OpenAI format") from None
        return Server(self.url, self.key_env).without_key(content) if isinstance(content, str) else ""


def _may_pass(error: RequestFailed) -> bool:
    """Return whether a failure may be temporary."""
    return error.status in RETRIED if error.kind is FailureKind.status else error.kind in PASSING


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
        return (
            load_model(Checkpoint("judge", self._source, config), device=torch.device(self.device))
            .eval()
            .to(self.device)
        )

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
