"""Dialogues in ShareGPT's schema, for training heads on all turns and for measuring speed on the questions.

Source: a local file. The EAGLE heads of Polybasic are trained on such dialogues. Unscored.
Example row: {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]}
"""

from dataclasses import dataclass
from typing import ClassVar

from specbench.data.synthetic import Row
from specbench.data.task import Message, Sample, Task, filled
from specbench.errors import ConfigError

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True, kw_only=True)
class Dialogues(Task, name="dialogues"):
    """The questions of dialogues. Each follows the method's own answers to the earlier ones.

    `prompt` is for models without a chat template. Heads are trained on the dialogues as they are, with the answers in the
    data.
    """

    version: ClassVar[str] = "1-A"
    fields: ClassVar[dict[str, type]] = {"conversations": list}

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
            messages = [_message(turn, number) for turn in row["conversations"]]
            first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
            if first is not None:
                found.append(messages[first:])
        return found


def _message(turn: object, number: int) -> Message:
    if not isinstance(turn, dict) or turn.get("from") not in ROLES or not isinstance(turn.get("value"), str):
        raise ConfigError(f"row {number}: a turn needs 'from' ({', '.join(ROLES)}) and a text under 'value'")
    return {"role": ROLES[turn["from"]], "content": turn["value"]}
