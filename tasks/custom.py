"""Tasks of a user's own data: prompts without scores, and a task from a TOML file and a file of rows.

In a custom task, prompt template, reference, metric and worked examples are keys.

Source: a local file, or a data set of the hub. Example rows: {"prompt": "Once upon a time"} and
{"question": "What is the capital of France?", "answer": "Paris"}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from specbench.data.chats import Unusable, left_out, messages_of, text_of_chat
from specbench.data.rows import HUB_FORM, HUB_ID, Row, Rows, text_of
from specbench.data.task import Message, Sample, Task, reader_of
from specbench.data.task_bases import FewShot
from specbench.data.templates import at_path, filled, placeholders
from specbench.errors import ConfigError, hint
from specbench.math_answers import are_same, boxes, grader_signature, math_verify_score, reference_value, value_of
from specbench.sandbox import Sandbox
from specbench.scoring import NO_ANSWER, Metric, Rouge, Score, Tokenize, Translation, holds, last_number, lines

MATHEMATICAL = ("number", "math")  # metrics that a grader of mathematics can take over
PUNCTUATION = re.compile(r"[^\w\s]|_")


@dataclass(frozen=True, kw_only=True)
class Prompts(Task, name="prompts"):
    """The value under `field` of each row is a prompt, used unchanged."""

    version: ClassVar[str] = "1-A"
    field: str = "prompt"

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        for number, row in enumerate(rows, 1):
            if not isinstance(row.get(self.field), str):
                other = "" if "prompt" in row else reader_of(row)
                suggestion = other or hint(self.field, row, "the row has")
                raise ConfigError(f"{source}:{number}: no text under '{self.field}'{suggestion}")
            if not row[self.field].strip():
                raise ConfigError(f"{source}:{number}: '{self.field}' is empty")
        return [Sample(str(i), row[self.field]) for i, row in enumerate(rows)]


@dataclass(frozen=True, kw_only=True)
class Custom(FewShot, name="custom"):
    """A task of your own rows.

    Args:
        prompt: a template of the keys of a row, such as "Question: {question} Answer:"; a path such as `{turns[0][text]}`
            reaches into a value.
        messages: instead of a prompt, the key of a conversation in ShareGPT's or OpenAI's schema, up to its last question.
        file: the file of the rows, unless --data names another source: JSONL, JSON, CSV, TSV, Parquet or Arrow.
        dataset: instead of a file, a data set of the hub, such as hf:openai/gsm8k:main#test.
        size: the number of rows of the data set, for plans without it; 0 if it is not known.
        reference: the key or path of the correct answer, a text, a number, or a list of accepted ones, such as
            `messages[-1][content]`; empty: nothing is scored.
        answer: the key of the text that a worked example shows as its answer; empty: the reference.
        group: the key of a category, for tables by group.
        metric: exact_match compares whole texts, contains looks for the reference as whole words, number compares the last
            number, math compares answers in LaTeX by value or spelling, rouge and bleu compare the text with the
            reference. Of several accepted ones the best counts; bleu takes one.
        boxed: the part that is scored is the last box with content, as a whole: number compares its value.
        grader: math-verify lets the package Math-Verify find and compare the answers of number and math.
        tokenize: BLEU's tokenizer, as sacreBLEU names it; auto chooses 13a, zh or char by the script of each reference.
        extract: a regular expression; the first group of its last match, or the whole match, is the part that is scored.
        ignore_case: compare without case.
        ignore_punctuation: compare without punctuation, also within numbers: 3.5 equals 35.
    """

    version: ClassVar[str] = "3-A"
    paths: ClassVar[tuple[str, ...]] = ("exemplars", "file")
    omitted: ClassVar[tuple[str, ...]] = ("dataset", "messages", "tokenize", "size", "boxed", "grader")

    messages: str = ""
    file: str = ""
    dataset: str = ""
    size: int = 0
    reference: str = ""
    answer: str = ""
    group: str = ""
    metric: Literal["exact_match", "contains", "number", "math", "rouge", "bleu"] = "exact_match"
    tokenize: Tokenize = "auto"
    extract: str = ""
    boxed: bool = False
    grader: Literal["standard", "math-verify"] = "standard"
    ignore_case: bool = False
    ignore_punctuation: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.prompt and not self.messages:
            raise ValueError("a value for 'prompt' is missing: a template such as \"Question: {question} Answer:\"")
        if self.messages and (self.prompt or self.exemplars):
            other = "prompt" if self.prompt else "exemplars"
            raise ValueError(f"messages = '{self.messages}' and {other} conflict: the conversation is the prompt")
        try:
            re.compile(self.extract)
        except re.error as error:
            raise ValueError(f"extract = {self.extract!r} is not a regular expression: {error}") from None
        if self.boxed and self.extract:
            raise ValueError(f"boxed and extract = {self.extract!r} conflict: give one of them")
        if self.grader == "math-verify" and (self.metric not in MATHEMATICAL or self.boxed or self.extract):
            raise ValueError(
                "grader = 'math-verify' finds the answer itself: it needs metric = 'math' or 'number' alone"
            )
        if self.file and self.dataset:
            raise ValueError(f"file = '{self.file}' and dataset = '{self.dataset}' conflict: give one of them")
        if self.dataset and not HUB_ID.fullmatch(self.dataset):
            raise ValueError(f"dataset = '{self.dataset}' must be {HUB_FORM}")
        if self.exemplars and not (self.answer or self.reference):
            raise ValueError("exemplars: worked examples need an answer; help: reference = KEY, or answer = KEY")

    @property
    def local(self) -> str:
        return self.file or self.dataset

    @property
    def published_rows(self) -> int | None:
        return self.size or None

    def rows(self, source: str, split: str = "test") -> Rows:
        return super().rows(self._named(source), split)

    def _named(self, source: str) -> str:
        """Return the file or data set that the task names itself, unless the user names a source."""
        return self.local if self.local and source in ("hub", "synthetic") else source

    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        before = self.worked
        out = list[Sample]()
        for number, row in enumerate(rows, 1):
            location = f"{self._named(source)}:{number}"
            try:
                chat = self._chat(row, location) if self.messages else ()
            except Unusable as error:
                if number == len(rows) and not out:
                    raise ConfigError(str(error)) from None
                continue
            prompt = text_of_chat(chat, True) if chat else before + self._filled(row, location)
            reference = self._checked(self._value(row, self.reference, location), location) if self.reference else None
            group = str(self._value(row, self.group, location)) if self.group else ""
            out.append(Sample(str(number - 1), prompt, reference, group, chat))
        return out

    def left_out(self, rows: list[Row]) -> Mapping[str, int]:
        return left_out(rows, (self.messages,)) if self.messages else {}

    def _chat(self, row: Row, location: str) -> tuple[Message, ...]:
        """Return the conversation of a row up to its last question. Raises Unusable for one that cannot be a prompt."""
        messages = messages_of(row, location, (self.messages,))
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        return tuple(messages[: last + 1])

    def example(self, row: Row) -> str:
        prompt = self._filled(row, self.exemplars)
        return f"{prompt}{'' if not prompt or prompt[-1].isspace() else ' '}{self._answer(row, self.exemplars)}"

    def continuations(self, rows: list[Row]) -> list[str]:
        key = self.answer or self.reference
        return [f" {self._answer(row, key)}" if key and at_path(key, row) is not None else "" for row in rows]

    def _answer(self, row: Row, location: str) -> str:
        """Return the answer of a row as text, the first one of several."""
        answer = self._value(row, self.answer or self.reference, location)
        return answer[0] if isinstance(answer, list) else answer

    def _checked(self, reference: str | list[str], location: str) -> str | list[str]:
        """Return a reference that a text can fail to match. Raises ConfigError for another one."""
        accepted = reference if isinstance(reference, list) else [reference]
        if self.metric == "bleu" and len(accepted) > 1:
            raise ConfigError(f"{location}: '{self.reference}' has {len(accepted)} texts; metric = \"bleu\" takes one")
        for text in accepted:
            if self.metric == "number" and reference_value(text) is None:
                raise ConfigError(
                    f"{location}: '{self.reference}' = {text!r} has no number, which metric = \"number\" compares"
                )
            if not self._plain(text):
                raise ConfigError(
                    f"{location}: '{self.reference}' = {text!r} is empty; give a text, or leave the row out"
                )
        return reference

    @property
    def metrics(self) -> tuple[Metric, ...]:
        if not self.reference:
            return ()
        if self.metric == "rouge":
            return self._with_form(self._rouge.metrics)
        if self.metric == "bleu":
            return self._with_form(self._translation.metrics)
        if self.grader == "math-verify":
            return self._with_form((Metric(self.metric, f"{self.metric}|{grader_signature()}"),))
        norm = ["strip"] + ["case"] * self.ignore_case + ["punctuation"] * self.ignore_punctuation
        return self._with_form((Metric(self.metric, f"{self.metric}|norm:{','.join(norm)}"),))

    @property
    def headline(self) -> str:
        return "rougeL" if self.metric == "rouge" and self.reference else super().headline

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        if not self.reference:
            return {}
        extracted = self._extracted(text)
        accepted = [
            str(reference)
            for reference in (sample.reference if isinstance(sample.reference, list) else [sample.reference])
        ]
        absent = {NO_ANSWER: float(not extracted)}
        if self.grader == "math-verify":
            right, is_found = math_verify_score(text, accepted)
            return {self.metric: float(right), NO_ANSWER: float(not is_found)}
        if self.metric == "math":
            return {"math": float(bool(extracted) and any(are_same(extracted, each) for each in accepted)), **absent}
        if self.metric == "rouge":
            scores = [self._rouge.score(lines(extracted), lines(reference)) for reference in accepted]
            return {**max(scores, key=lambda score: score["rougeL"]), **absent}
        if self.metric == "bleu":
            return {**self._translation.score(extracted, accepted[0]), **absent}
        if self.metric == "number":
            number = value_of(extracted) if self.boxed else last_number(extracted)
            right = number is not None and any(reference_value(reference) == number for reference in accepted)
            return {"number": float(right), NO_ANSWER: float(number is None)}
        plain, references = self._plain(extracted), [self._plain(reference) for reference in accepted]
        right = (
            any(holds(plain, reference) for reference in references)
            if self.metric == "contains"
            else plain in references
        )
        return {self.metric: float(right), **absent}

    def _with_form(self, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        extract = f"extract:{self.extract}|" if self.extract else "extract:last-box,whole|" if self.boxed else ""
        return tuple(
            Metric(metric.name, f"{metric.signature}|{extract}{self.form}", metric.combine) for metric in metrics
        )

    def _filled(self, row: Row, location: str) -> str:
        """Return the prompt of a row. Raises ConfigError if it is wrong, or if all its fields are empty."""
        try:
            prompt = filled(self.prompt, **row)
        except ConfigError as error:
            raise ConfigError(f"{location}: {error}") from None
        names = placeholders(self.prompt)
        if names and not any(filled(f"{{{name}}}", **row).strip() for name in names):
            fields = " and ".join(f"'{name}'" for name in dict.fromkeys(names))
            raise ConfigError(f"{location}: the prompt's field {fields} is empty")
        return prompt

    def _value(self, row: Row, key: str, location: str) -> str | list[str]:
        """Return a row's text, number or list of texts. Raises ConfigError, naming the row, for another type or no value."""
        value = at_path(key, row)
        if isinstance(value, list) and value and all(isinstance(part, dict) and "text" in part for part in value):
            return "\n".join(str(part["text"]) for part in value)  # parts of a message
        if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
            return [text_of(item) for item in value]
        if isinstance(value, str | int | float):
            return text_of(value)
        raise ConfigError(
            f"{location}: key '{key}' must hold a text, a number, or a list of these{hint(key, row, 'the row has')}"
        )

    def _extracted(self, text: str) -> str:
        if self.boxed:
            return (boxes(text) or [""])[-1]
        if not self.extract:
            return text.strip()
        matches = list(re.finditer(self.extract, text))
        if not matches:
            return ""
        last = matches[-1]
        return ((last[1] if last.re.groups else last[0]) or "").strip()

    def _plain(self, text: str) -> str:
        text = PUNCTUATION.sub("", text) if self.ignore_punctuation else text
        return " ".join((text.lower() if self.ignore_case else text).split())

    @cached_property
    def _rouge(self) -> Rouge:
        return Rouge()

    @cached_property
    def _translation(self) -> Translation:
        return Translation(self.tokenize)
