"""Two unscored tasks for measuring speed: dialogues, on which heads are also trained, and Spec-Bench.

Dialogues are in ShareGPT's or OpenAI's schema. Source: a local file. The EAGLE heads of Polybasic are trained on such
dialogues. A text may also be a list of parts of type text, as in OpenAI's schema; they are joined by line breaks.
Example rows:
{"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]}
{"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]}

Spec-Bench has 480 questions of six kinds, some with two turns (Xia et al. 2024).
Source: github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl, at a fixed commit. License: Apache-2.0. MT-Bench's
question file has the same schema.
Example row: {"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now one about rain."]}
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row, WebFile
from specbench.data.task import Message, Sample, Task, filled, reader_of
from specbench.errors import ConfigError, short_repr

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
SCHEMAS = {"conversations": ("from", "value"), "messages": ("role", "content")}  # key of a row -> keys of a turn
COMMIT = "66230f10cb0a02aced5ef3ce1e85163c16160454"
# The benchmark's six kinds; MT-Bench's eight categories are one of them.
MULTI_TURN = "writing roleplay reasoning math coding extraction stem humanities".split()
KINDS = dict.fromkeys(MULTI_TURN, "multi-turn")


def turns_of(questions: Sequence[str], first: str) -> Iterator[tuple[str, str, str]]:
    """Yield each question of a dialogue, its sample's id, and that of the sample before; `first` is the first one's id."""
    ids = [f"{first}.{turn}" if turn > 1 else first for turn in range(1, len(questions) + 1)]
    yield from zip(questions, ids, ["", *ids], strict=False)


@dataclass(frozen=True, kw_only=True)
class Dialogues(Task, name="dialogues"):
    """The questions of dialogues. Each follows the method's own answers to the earlier ones.

    `prompt` is for models without a chat template. Heads are trained on the dialogues as they are, with the answers in the
    data. Messages before the first question, such as a system prompt, are left out. So are system prompts after it, except in
    training texts. The notes of a run count them.
    """

    version: ClassVar[str] = "1-A"

    prompt: str = "USER: {turn}\nASSISTANT:"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        out: list[Sample] = []
        for number, (dialogue, has_system) in enumerate(_dialogues(rows, source), 1):
            questions = [message["content"] for message in dialogue if message["role"] == "user"]
            for text, sample_id, after in turns_of(questions, str(number)):
                prompt = filled(self.prompt, turn=text)
                out.append(Sample(sample_id, prompt, turn=text, after=after, without_system=has_system and not after))
        return out

    def dialogues(self, rows: list[Row]) -> list[list[Message]]:
        """Return dialogues from the first question on. Rows without a question are left out."""
        return [dialogue for dialogue, _ in _dialogues(rows, "rows")]


def _dialogues(rows: list[Row], source: str) -> list[tuple[list[Message], bool]]:
    """Return dialogues from the first question on, and whether each has a system prompt anywhere."""
    out = []
    for number, row in enumerate(rows, 1):
        messages = _messages(row, f"{source}:{number}")
        roles = [message["role"] for message in messages]
        if "user" in roles:
            out.append((messages[roles.index("user") :], "system" in roles))
    return out


def _messages(row: Row, location: str) -> list[Message]:
    """Return the turns of a row in either schema. Raises ConfigError, naming the row, for a turn that is wrong."""
    key = next((name for name in SCHEMAS if isinstance(row.get(name), list)), None)
    if key is None:
        suggestion = reader_of(row) or f"; the row has: {', '.join(row)}"
        raise ConfigError(f"{location}: no list under 'messages' or 'conversations'{suggestion}")
    role, text = SCHEMAS[key]
    out: list[Message] = []
    for number, turn in enumerate(row[key], 1):
        where = f"{location}: turn {number} of '{key}'"
        if not isinstance(turn, dict):
            raise ConfigError(f"{where} is not an object with '{role}' and '{text}'")
        if not isinstance(turn.get(role), str) or turn[role] not in ROLES:
            raise ConfigError(f"{where}: '{role}' is {short_repr(turn.get(role))}; known: {', '.join(ROLES)}")
        content = _text(turn.get(text))
        if content is None:
            raise ConfigError(
                f"{where}: '{text}' is {short_repr(turn.get(text))}; needed: a text, or a list of parts of type text"
            )
        out.append({"role": ROLES[turn[role]], "content": content})
    return out


def _text(content: object) -> str | None:
    """Return a text, or the texts of OpenAI's content parts joined by line breaks; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [
        part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text" and "text" in part
    ]
    return "\n".join(texts) if len(texts) == len(content) and all(isinstance(text, str) for text in texts) else None


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
        out: list[Sample] = []
        for number, row in enumerate(rows, 1):
            if not row["turns"] or not all(isinstance(turn, str) for turn in row["turns"]):
                raise ConfigError(f"{source}:{number}: 'turns' must be a list of texts")
            first, group = str(row.get("question_id", number)), str(KINDS.get(row["category"], row["category"]))
            for text, sample_id, after in turns_of(row["turns"], first):
                out.append(Sample(sample_id, filled(self.prompt, turn=text), group=group, turn=text, after=after))
        return out
