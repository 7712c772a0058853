"""Spec-Bench: 480 questions of six kinds, some with two turns, for measuring speed (Xia et al. 2024).

Source: github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl, at a fixed commit. License: Apache-2.0. MT-Bench's
question file has the same schema. Unscored: it has no reference answers.
Example row: {"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now one about rain."]}
"""

from dataclasses import dataclass
from typing import ClassVar

from specbench.data.rows import Row, WebFile
from specbench.data.task import Sample, Task, filled
from specbench.errors import ConfigError

COMMIT = "66230f10cb0a02aced5ef3ce1e85163c16160454"
# The benchmark's six kinds; MT-Bench's eight categories are one of them.
MULTI_TURN = "writing roleplay reasoning math coding extraction stem humanities".split()
KINDS = dict.fromkeys(MULTI_TURN, "multi-turn")


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
            for turn, text in enumerate(row["turns"], 1):
                sample_id, before = (f"{first}.{n}" if n > 1 else first for n in (turn, turn - 1))
                after = before if turn > 1 else ""
                out.append(Sample(sample_id, filled(self.prompt, turn=text), group=group, turn=text, after=after))
        return out
