"""MMLU: multiple choice over 57 subjects, with generated answers (Hendrycks et al. 2021).

Source: cais/mmlu, config all, splits test (14,042 rows) and dev (5 per subject). License: MIT.
Synthetic: specbench/data/synthetic/multiple_choice.py.
Example row: {"question": "Which is a fruit?", "subject": "botany", "choices": ["oak", "pear", "fern", "moss"], "answer": 1}
"""

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from specbench.data.rows import Row
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.task import Hub, Sample, Task
from specbench.data.task_bases import CHECKSUM
from specbench.data.templates import filled, up_to
from specbench.errors import ConfigError, MissingAsset
from specbench.files import read_json
from specbench.sandbox import Sandbox
from specbench.scoring import NO_ANSWER, Metric, Score

LETTERS = "ABCD"
# "the answer is" or "answer:", then a letter that is in brackets or marks or ends the phrase: the article in "the answer is A
# fruit" does not match.
STATED_ANSWER = re.compile(
    r"(?i:answer\s*(?:is:?|:))[\s*_$]*(?:\\boxed\{|\\text\{|\()*([A-D])(?:[)}*]|(?=\s*(?:[.,:;)]|$))|(?=\s+(?:because|since)\b))",
    re.MULTILINE,
)
_OPEN = r"""(?:\\boxed\{|\\text(?:bf)?\{|\\mathrm\{|[\s*_$"'`\u201c\u2018\[(])*"""
_CLOSE = (
    r"""(?:[)}\]*"'`\u201d\u2019]|(?=\s*(?:[.,:;!?]|$))|(?=\s+[-\u2013\u2014]\s)|(?=\s+(?:because|since|as|for)\b))"""
)
# Other forms of an answer, each with its letter in a group: "the choice is option B", \boxed{B}, <answer>B, "B is
# correct", "so it is B", "Option B"
OTHER_ANSWERS = re.compile(
    rf"(?i:(?:answer|choice|option|letter)\s*(?:(?:is|must be|would be|should be)\b:?|:))"
    rf"(?i:\s*(?:therefore|thus|hence|clearly|then|option|choice|letter)[,:]?)*{_OPEN}([A-D]){_CLOSE}"
    r"|\\(?:boxed|fbox|framebox)(?:\s*\{\s*(?:\\(?:text(?:bf|rm)?|math(?:rm|bf))\s*\{\s*)?\(?([A-D])(?=\s*(?:[.:)}]|$))|\s*([A-D])\b)"
    r"|(?i:<answer>)\s*\(?([A-D])\b"
    r"|\b([A-D])\)?[*_]*\s+(?i:is\s+(?:the\s+)?(?:correct|right|true|best)\b)"
    rf"|(?i:\b(?:it\s+(?:is|must\s+be)|it's|i\s+(?:choose|pick|select)|go\s+with)\s)(?i:\s*option\s)?{_OPEN}([A-D])\b(?!\s+[a-z])"
    r"|^[^\w\n]*(?i:option|choice|answer)\s+\(?([A-D])\b(?!\s+[a-z])",
    re.MULTILINE,
)
NEGATED = re.compile(r"\bnot\s+\(?[A-D]\b\)?")
DENIED = re.compile(
    r"\bnot\s+\(?[A-D]\b\)?"
    r"|\(?\b[A-D]\b\)?[*_]*\s+(?:is|are|was|can|does|seems)\s+(?:also\s+)?"
    r"(?:wrong|incorrect|false|ruled out|eliminated)\b"
    r"|\(?\b[A-D]\b\)?[*_]*\s+(?:is|was|can|does)(?:\s+not\b|n't\b)(?!\s+(?:wrong|incorrect|false)\b)"
    r"|(?i:\b(?:rule|ruling)\s+out|\beliminate|\bexclude|\bdiscard)\s+\(?[A-D]\b\)?"
    r"(?:(?:,\s*and|,|\s+and)\s+\(?[A-D]\b\)?)*"
)
NEXT_QUESTION = ("\nQuestion:",)
BRACKETED = re.compile(r"\(([A-D])\)")
BARE_LETTER = re.compile(r"^[^\S\n]*\(?([A-D])(?:[.):]|\s*$)", re.MULTILINE)
SE_PAPER_CUT = ("\n\nQ:", "\nQ:")
SE_PAPER_LETTER = re.compile(r"\b([A-D])\b")
SE_PAPER_INSTRUCTION = "The following are multiple choice questions (with answers) about {subject}.\n\n"
EXAMPLES: tuple[tuple[Row, str], ...] = (  # questions of general knowledge, for all subjects
    (
        {
            "question": "Which of these numbers is a prime number?",
            "choices": ["21", "27", "31", "33"],
            "answer": 2,
        },
        "21, 27 and 33 are multiples of 3. 31 is divisible by 1 and by itself only. The answer is (C).",
    ),
    (
        {
            "question": "A plane flies from Rome straight to the North Pole. In which direction does it fly?",
            "choices": ["east", "north", "south", "west"],
            "answer": 1,
        },
        "The North Pole lies to the north of every other place on Earth, and so also of Rome. The answer is (B).",
    ),
    (
        {
            "question": "Water boils in an open pot at sea level. What happens to its temperature while it keeps boiling?",
            "choices": ["It stays the same", "It rises", "It falls", "It rises and falls in turn"],
            "answer": 0,
        },
        "At its boiling point, the heat turns water into steam and does not make it hotter. So the temperature stays at about"
        " 100 degrees Celsius. The answer is (A).",
    ),
    (
        {
            "question": "A cost of 80 dollars is reduced by 25 percent. What is the new cost in dollars?",
            "choices": ["20", "55", "65", "60"],
            "answer": 3,
        },
        "25 percent of 80 is 20. 80 - 20 = 60. The answer is (D).",
    ),
    (
        {
            "question": "All violinists are musicians, and some musicians teach. Which statement must be true?",
            "choices": [
                "Every violinist teaches",
                "Every violinist is a musician",
                "No violinist teaches",
                "Every teacher is a violinist",
            ],
            "answer": 1,
        },
        "The first premise says that every violinist is a musician. The musicians who teach may or may not be violinists, so"
        " the other statements need not be true. The answer is (B).",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Mmlu(Task, name="mmlu"):
    r"""Generative MMLU: `shots` answered questions of the subject's dev split, then the question and `cue`.

    `accuracy` is the mean over questions, `macro` the mean over subjects. Text from a next question on is ignored. The answer
    is the last stated letter ("the answer is B", and forms such as \boxed{B} or "so B is correct"), else the last letter in
    brackets, else a letter alone on its line, each without letters that the text denies ("(A) is wrong"). `strict` accepts
    "the answer is" with a letter only. The `se-paper` grader takes the first separate capital letter from A to D, even if
    it is an article. Its examples are EXAMPLES for all subjects, or come from `exemplars`, a JSON file with a text for
    each subject. With the `standard` grader, `exemplars` is a JSONL file of rows that replace the dev split.
    """

    version: ClassVar[str] = "3-A"
    hub: ClassVar[Hub] = Hub("cais/mmlu", "all/{split}-00000-of-00001.parquet")
    splits: ClassVar[tuple[str, ...]] = ("test", "dev")
    published: ClassVar[int | None] = 14042
    paths: ClassVar[tuple[str, ...]] = ("exemplars",)
    fields: ClassVar[dict[str, type]] = {"question": str, "subject": str, "choices": list, "answer": int}
    synthetic = SYNTHETIC_TASKS["mmlu"]

    prompt: str = "Question: {question}\n{choices}\nAnswer:"
    choice: str = "{letter}. {text}"
    between: str = "\n"  # separator of the choices
    instruction: str = ""
    cue: str = " Let's think step by step."
    shots: int = 5
    exemplars: str = ""
    grader: Literal["standard", "se-paper"] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        has_rows = self.exemplars and self.grader == "standard"
        if self.shots < 0 or (self.shots > 5 and not has_rows):
            raise ValueError(
                f"shots = {self.shots} must be from 0 to 5, unless exemplars = FILE.jsonl gives more examples"
            )
        if has_rows and not self.shots:
            raise ValueError(f"exemplars = '{self.exemplars}' has no effect with shots = 0; help: shots = N")
        if has_rows and self.exemplars.endswith(".json"):
            raise ValueError(
                "exemplars: a JSON file of texts by subject needs grader = 'se-paper'; else give a JSONL file"
            )

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        before = self._before(sorted({row["subject"] for row in rows}), source)
        return [
            Sample(
                str(i),
                before[row["subject"]] + self.question(row) + self.cue,
                reference=LETTERS[row["answer"]],
                group=row["subject"],
            )
            for i, row in enumerate(rows)
        ]

    def question(self, row: Row) -> str:
        """Return a question with its choices."""
        if len(row["choices"]) != len(LETTERS) or not 0 <= row["answer"] < len(LETTERS):
            raise ConfigError(f"{row['question'][:40]!r}: requires four choices and an answer from 0 to 3")
        choices = (filled(self.choice, letter=a, text=str(b)) for a, b in zip(LETTERS, row["choices"], strict=True))
        return filled(self.prompt, question=row["question"], choices=self.between.join(choices))

    def _before(self, subjects: list[str], source: str) -> dict[str, str]:
        """Return the text before a question, by subject."""
        if self.grader == "se-paper":
            return self._custom_exemplars(subjects)
        instructions = {s: filled(self.instruction, subject=s.replace("_", " ")) for s in subjects}
        if not self.shots:
            return instructions
        answered: dict[str, list[str]] = defaultdict(list)
        for row in (self.rows(self.exemplars) if self.exemplars else self.rows(source, "dev")).rows:
            answered[row["subject"]].append(f"{self.question(row)} The answer is ({LETTERS[row['answer']]}).\n\n")
        for subject in subjects if self.exemplars else ():
            if (count := len(answered[subject])) < self.shots:
                raise ConfigError(f"{self.exemplars}: {count} rows of '{subject}'; shots = {self.shots} needs as many")
        return {s: instructions[s] + "".join(answered[s][: self.shots]) for s in subjects}

    def _custom_exemplars(self, subjects: list[str]) -> dict[str, str]:
        if not self.exemplars:
            worked = "".join(f"{self.question(row)}{self.cue} {text}\n\n" for row, text in EXAMPLES[: self.shots])
            return {s: SE_PAPER_INSTRUCTION.format(subject=s.replace("_", " ")) + worked for s in subjects}
        path = Path(self.exemplars).expanduser()
        if not path.is_file():
            raise MissingAsset(
                f"there is no file '{self.exemplars}'"
                "\n  help: --set task.exemplars=FILE.json, an object with a text for each subject"
            )
        texts = read_json(path, dict[str, Any])
        missing = [s for s in subjects if not isinstance(texts.get(s), str)]
        if missing:
            raise ConfigError(
                f"{path}: no text under '{missing[0]}' ({len(missing)} of {len(subjects)} subjects lack one)"
            )
        return {s: texts[s] for s in subjects}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        form = f"generative|grader:{self.grader}|shots:{self.shots}|cot:{bool(self.cue)}"
        if self.grader == "se-paper" and not self.exemplars:
            form += "|exemplars:specbench"
        if self.exemplars:
            form += (
                f"|exemplars:{hashlib.sha256(Path(self.exemplars).expanduser().read_bytes()).hexdigest()[:CHECKSUM]}"
            )
        found = "" if self.grader == "se-paper" else "|extract:stated,other-forms,brackets,line"
        micro = Metric("accuracy", f"exact_match|avg:micro{found}|{form}")
        macro = Metric("macro", f"exact_match|avg:macro-subjects{found}|{form}", "macro")
        return (
            micro,
            macro,
            *(() if self.grader == "se-paper" else (Metric("strict", f"exact_match|stated-only|{form}"),)),
        )

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        if self.grader == "se-paper":
            match = SE_PAPER_LETTER.search(up_to(SE_PAPER_CUT, text))
            letter = match[1] if match else None
            right = float(letter == sample.reference)
            return {"accuracy": right, "macro": right, NO_ANSWER: float(letter is None)}
        text = up_to(NEXT_QUESTION, text)
        strict, text = stated_letter(NEGATED.sub("", text)), DENIED.sub("", text)
        letter = answered_letter(text) or bracketed_letter(text)
        right = float(letter == sample.reference)
        return {
            "accuracy": right,
            "macro": right,
            "strict": float(strict == sample.reference),
            NO_ANSWER: float(letter is None),
        }


def stated_letter(text: str) -> str | None:
    """Return the letter of the last phrase such as "the answer is (B)", or None."""
    letters = STATED_ANSWER.findall(text)
    return str(letters[-1]) if letters else None


def answered_letter(text: str) -> str | None:
    """Return the letter of the last phrase such as "the answer is (B)", else of the last other form, or None."""
    others = [next(filter(None, match.groups())) for match in OTHER_ANSWERS.finditer(text)]
    return stated_letter(text) or (others[-1] if others else None)


def bracketed_letter(text: str) -> str | None:
    """Return the last letter in brackets, else the last one alone at the start of a line, or None."""
    letters = BRACKETED.findall(text) or BARE_LETTER.findall(text)
    return str(letters[-1]) if letters else None
