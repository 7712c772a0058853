"""Dialogues in ShareGPT's or OpenAI's schema, for training heads on all turns and for measuring speed on the questions.

Source: a local file. The EAGLE heads of Polybasic are trained on such dialogues. Unscored.
Example rows:
{"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]}
{"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]}
"""

from dataclasses import dataclass
from typing import ClassVar

from specbench.data.synthetic import Row
from specbench.data.task import Message, Sample, Task, filled
from specbench.errors import ConfigError

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
SCHEMAS = {"conversations": ("from", "value"), "messages": ("role", "content")}  # key of a row -> keys of a turn


@dataclass(frozen=True, kw_only=True)
class Dialogues(Task, name="dialogues"):
    """The questions of dialogues. Each follows the method's own answers to the earlier ones.

    `prompt` is for models without a chat template. Heads are trained on the dialogues as they are, with the answers in the
    data. Messages before the first question, such as a system prompt, are left out.
    """

    version: ClassVar[str] = "1-A"

    prompt: str = "USER: {turn}\nASSISTANT:"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        out: list[Sample] = []
        for number, dialogue in enumerate(self.dialogues(rows), 1):
            questions = [message["content"] for message in dialogue if message["role"] == "user"]
            for turn, text in enumerate(questions, 1):
                own, before = (f"{number}.{n}" if n > 1 else str(number) for n in (turn, turn - 1))
                out.append(Sample(own, filled(self.prompt, turn=text), turn=text, after=before if turn > 1 else ""))
        return out

    def dialogues(self, rows: list[Row]) -> list[list[Message]]:
        """Return dialogues from the first question on. Rows without a question are left out."""
        found = []
        for number, row in enumerate(rows, 1):
            messages = _messages(row, number)
            first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
            if first is not None:
                found.append(messages[first:])
        return found


def _messages(row: Row, number: int) -> list[Message]:
    """Return the turns of a row in either schema. Raises ConfigError, naming the row, if it has neither."""
    key = next((each for each in SCHEMAS if isinstance(row.get(each), list)), None)
    if key is None:
        raise ConfigError(f"row {number}: no list under 'messages' or 'conversations'")
    role, text = SCHEMAS[key]
    for turn in row[key]:
        if not isinstance(turn, dict) or turn.get(role) not in ROLES or not isinstance(turn.get(text), str):
            raise ConfigError(f"row {number}: a turn needs '{role}' ({', '.join(ROLES)}) and a text under '{text}'")
    return [{"role": ROLES[turn[role]], "content": turn[text]} for turn in row[key]]
