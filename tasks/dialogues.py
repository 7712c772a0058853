"""Unscored tasks for measuring speed: dialogues, on which heads are also trained, Spec-Bench and SPEED-Bench.

Dialogues are in ShareGPT's or OpenAI's schema (`specbench.data.chats`). Source: a local file. The EAGLE heads of
Polybasic are trained on such dialogues.

Spec-Bench has 480 questions of six kinds, some with two turns (Xia et al. 2024).
Source: github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl, at a fixed commit. License: Apache-2.0. MT-Bench's
question file has the same schema.
Example row: {"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now one about rain."]}

SPEED-Bench is NVIDIA's (arXiv 2604.09557). Source: a local file. Resolved rows must not be
redistributed. Example row: {"category": "low_entropy", "sub_category": "code", "turns": ["Sort these lines."]}
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from specbench.data.chats import conversations, left_out, text_of_chat
from specbench.data.remote_rows import WebFile
from specbench.data.rows import Row
from specbench.data.task import Message, Sample, Task
from specbench.data.templates import filled
from specbench.errors import ConfigError

T = TypeVar("T")

COMMIT = "66230f10cb0a02aced5ef3ce1e85163c16160454"
# The benchmark's six kinds; MT-Bench's eight categories are one of them.
MULTI_TURN = "writing roleplay reasoning math coding extraction stem humanities".split()
KINDS = dict.fromkeys(MULTI_TURN, "multi-turn")
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"  # in rows of the published files of SPEED-Bench


def turns_of(questions: Sequence[T], first: str) -> Iterator[tuple[T, str, str]]:
    """Yield each question of a dialogue, its sample's id, and the previous sample's id; `first` is the first id."""
    ids = [f"{first}.{turn}" if turn > 1 else first for turn in range(1, len(questions) + 1)]
    yield from zip(questions, ids, ["", *ids], strict=False)


@dataclass(frozen=True, kw_only=True)
class Dialogues(Task, name="dialogues"):
    """The questions of dialogues. Each follows the method's own answers to the earlier ones.

    `prompt` is for models without a chat template. System prompts are messages of the chat template, and a line before the
    question without one. Heads are trained on the dialogues as they are, with the answers in the data. Answers before the
    first question are left out, and so are dialogues with tool calls or pictures; the notes of a run count these.
    """

    version: ClassVar[str] = "2-A"

    prompt: str = "USER: {turn}\nASSISTANT:"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        out: list[Sample] = []
        for number, (_, messages) in enumerate(conversations(rows, source), 1):
            for question, sample_id, after in turns_of(_questions(messages), str(number)):
                system = f"{text_of_chat(question[:-1], False)}\n" if len(question) > 1 else ""
                prompt = system + filled(self.prompt, turn=question[-1]["content"])
                out.append(Sample(sample_id, prompt, messages=question, after=after))
        return out

    def left_out(self, rows: list[Row]) -> Mapping[str, int]:
        return left_out(rows)

    def dialogues(self, rows: list[Row]) -> list[list[Message]]:
        """Return dialogues without the answers before the first question. Rows without a question are left out."""
        found = []
        for _, messages in conversations(rows, "rows"):
            first = next(i for i, message in enumerate(messages) if message["role"] == "user")
            found.append([message for message in messages[:first] if message["role"] == "system"] + messages[first:])
        return found


def _questions(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Return each question, after the system prompts between it and the question before."""
    found, system = list[tuple[Message, ...]](), list[Message]()
    for message in messages:
        if message["role"] == "system":
            system.append(message)
        elif message["role"] == "user":
            found.append((*system, message))
            system = []
    return found


@dataclass(frozen=True, kw_only=True)
class SpecBench(Task, name="spec-bench"):
    """Conversations of one or two turns. A second turn follows the method's own answer to the first.

    `prompt` is for models without a chat template. A chat template gets the turn itself.
    """

    version: ClassVar[str] = "1-A"
    web: ClassVar[WebFile | None] = WebFile(
        f"https://raw.githubusercontent.com/hemingkx/Spec-Bench/{COMMIT}/data/spec_bench/question.jsonl",
        "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    )
    published: ClassVar[int | None] = 560  # 80 of the 480 questions have a second turn
    fields: ClassVar[dict[str, type]] = {"category": str, "turns": list}

    prompt: str = "USER: {turn}\nASSISTANT:"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        return questions_of(rows, source, self.prompt, lambda row: str(KINDS.get(row["category"], row["category"])))


@dataclass(frozen=True, kw_only=True)
class SpeedBench(Task, name="speed-bench"):
    """Prompts of NVIDIA's SPEED-Bench, from your own resolved copy of one of its splits.

    Later turns follow the method's own answers. `group` chooses the key of the groups in tables: 11 categories of the
    qualitative split; tiers of entropy, and their kinds as sub_category, of the throughput splits. The published files have
    placeholders, which the benchmark's own loader fills from other data sets.
    """

    version: ClassVar[str] = "1-A"
    prompt: str = "USER: {turn}\nASSISTANT:"
    group: Literal["category", "sub_category"] = "category"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        whole = []
        for number, row in enumerate(rows, 1):
            turns = row.get("turns")
            whole.append({**row, "turns": [turns] if isinstance(turns, str) else turns})
            if PLACEHOLDER in str(turns):
                raise ConfigError(
                    f"{source}:{number}: the row is an unresolved placeholder; help: resolve the file with SPEED-Bench's own"
                    " loader"
                )
        return questions_of(whole, source, self.prompt, lambda row: str(row.get(self.group) or ""))


def questions_of(rows: list[Row], source: str, prompt: str, group_of: Callable[[Row], str]) -> list[Sample]:
    """Return the samples of rows with a list of `turns`. Raises ConfigError, naming the row, for other rows.

    `prompt` is for models without a chat template.
    """
    out: list[Sample] = []
    for number, row in enumerate(rows, 1):
        turns = row["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise ConfigError(f"{source}:{number}: 'turns' must be a list of texts")
        first = str(row.get("question_id", number))
        for text, sample_id, after in turns_of(row["turns"], first):
            question: Message = {"role": "user", "content": text}
            sample = Sample(
                sample_id, filled(prompt, turn=text), group=group_of(row), messages=(question,), after=after
            )
            out.append(sample)
    return out
