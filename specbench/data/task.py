"""Floor 0: what a task is. Its classes live in tasks/, one file each; its variants in configs/tasks/."""

import hashlib
import itertools
import json
import random
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from specbench.config.construct import Named
from specbench.data.hub import Rows, fetch_parquet, read_jsonl
from specbench.data.synthetic import Row, SyntheticTask
from specbench.data.synthetic.generator import Split
from specbench.errors import ConfigError, NotOnHub, hint
from specbench.sandbox import Sandbox
from specbench.scoring.metric import Metric, Score

SYNTHETIC_ROWS = 1000
DRAW_SEED = 42  # as the authors of Speculative Ensemble shuffle
Overflow = Literal["error", "truncate-left", "truncate-right", "truncate-middle"]
Chat = Literal["off", "auto", "required"]


@dataclass(frozen=True)
class Sample:
    """One prompt. `reference` is whatever the task's `score` needs of the right answer; None where nothing is scored.

    `turn` is what a chat template gets in its place; empty: the prompt. `after` names an earlier sample whose conversation
    this one goes on with: its prompt, and what was answered to it.
    """

    id: str
    prompt: str
    reference: Any = None
    group: str = ""  # a subject or a category
    turn: str = ""
    after: str = ""


@dataclass(frozen=True)
class Data:
    """The samples of one source, and what identifies them in a result."""

    samples: list[Sample]
    source: str
    revision: str | None
    sha256: str  # of all rows
    total: int  # samples of the whole source

    @property
    def prompts_sha256(self) -> str:
        """Over the samples as they are asked, worked examples and all."""
        asked = ((s.id, s.prompt, s.turn, s.after) for s in self.samples)
        return hashlib.sha256(json.dumps(list(asked), ensure_ascii=False).encode()).hexdigest()

    def first(self, count: int) -> "Data":
        """The first `count` prompts, each with those that go on with it."""
        kept: list[Sample] = []
        for sample in self.samples:
            if sample.after:
                kept += [sample] if any(sample.after == other.id for other in kept) else []
            elif count:
                kept, count = [*kept, sample], count - 1
        return replace(self, samples=kept)

    def drawn(self, count: int) -> "Data":
        """`count` prompts at random, the same ones every time, in the source's order, each with those that go on with it."""
        heads = [sample.id for sample in self.samples if not sample.after]
        chosen = set(random.Random(DRAW_SEED).sample(heads, min(count, len(heads))))
        kept: list[Sample] = []
        for sample in self.samples:
            if sample.id in chosen or any(sample.after == other.id for other in kept):
                kept.append(sample)
        return replace(self, samples=kept)


class Hub(NamedTuple):
    """Where a task's rows lie on the hub: a parquet file with `{split}` in its name, of a data set, at a revision.

    `CONVERTED` is the hub's own conversion of data sets that come as scripts.
    """

    repo: str
    file: str
    revision: str = ""


CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True, kw_only=True)
class Task(Named):
    """A data set with its prompts and its scores.

    `version` is a number, bumped when scores may move, and a letter, bumped when only the interface does. `prompt` is a
    template of a row's fields. `overflow` says what becomes of a
    prompt beyond `max_prompt_tokens` (0: the models' window): an error, or a cut, which records count. `chat`: whether the
    models' chat template is put around the prompt; `auto` where they have one.
    """

    version: ClassVar[str]
    hub: ClassVar[Hub | None] = None
    splits: ClassVar[tuple[str, ...]] = ("test",)  # whose rows its prompts are made of
    fields: ClassVar[dict[str, type]] = {}  # what a row must hold
    synthetic: ClassVar[SyntheticTask | None] = None
    executes_code: ClassVar[bool] = False  # scoring runs what models wrote
    continues: ClassVar[bool] = False  # outputs have no end of their own: being cut by length is no fault

    description: str = ""
    prompt: str = ""
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    max_prompt_tokens: int = 0
    overflow: Overflow = "error"
    chat: Chat = "off"
    revision: str = ""  # of the hub's data set; open: the newest, whose commit a run records

    def __post_init__(self) -> None:
        for key, least in (("max_new_tokens", 1), ("max_prompt_tokens", 0)):
            if getattr(self, key) < least:
                raise ValueError(f"{key} = {getattr(self, key)} must be at least {least}")
        if "" in self.stop:
            raise ValueError("stop: an empty string would end every answer at once")

    @abstractmethod
    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        """The prompts of checked rows. `source` is where they came from, for what belongs beside them."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return ()

    @property
    def headline(self) -> str:
        """The metric that stands beside a speed; empty where nothing is scored."""
        return self.metrics[0].name if self.metrics else ""

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        """The value of each metric for one generated text. `sandbox` is for tasks that run it."""
        return {}

    def data(self, source: str) -> Data:
        """The samples of `hub`, `synthetic` or a local JSONL file. Raises MissingAsset or ConfigError, saying what to do."""
        rows = self.rows(source)
        samples = self.samples(rows.rows, source)
        if not samples:
            raise ConfigError(f"{rows.source} holds no samples")
        if len({sample.id for sample in samples}) < len(samples):
            twice = next(s.id for i, s in enumerate(samples) if any(s.id == other.id for other in samples[:i]))
            raise ConfigError(f"{rows.source} holds two samples called '{twice}'")
        return Data(samples, rows.source, rows.revision, rows.sha256, len(samples))

    def going_on(self, rows: list[Row]) -> list[str]:
        """What the rows' own text has behind the prompt of each of their `samples`; empty where a row has none."""
        told = []
        for row in rows:
            try:
                told.append(self.synthetic.answer(row) if self.synthetic else "")
            except KeyError:  # the twin's rows say more than the real ones
                told.append("")
        return told

    def texts(self, source: str) -> tuple[Rows, list[tuple[Sample, str]]]:
        """Training rows, and their prompts with what follows: of `hub` or `synthetic` the training split, else the file."""
        rows = self.rows(source, "train" if source in ("hub", "synthetic") else "test")
        samples, after = self.samples(rows.rows, rows.source), self.going_on(rows.rows)
        if len(after) != len(samples):  # a row may be several turns
            after = [""] * len(samples)
        return rows, [each for each in zip(samples, after, strict=True) if not each[0].after]

    def rows(self, source: str, split: str = "test") -> Rows:
        """Checked rows of a split; of a local file, the file that was named, or for another split its neighbour."""
        if source == "hub":
            if self.hub is None:
                raise NotOnHub(f"task {self.name} is not on the hub; help: --data {self.name}=FILE.jsonl")
            repo, file, revision = self.hub
            rows = fetch_parquet(repo, file.format(split=split), self.revision or revision or None)
        elif source == "synthetic":
            if self.synthetic is None:
                raise ConfigError(f"task {self.name} has no synthetic synthetic: pass --data FILE.jsonl, or --data hub")
            rows = Rows(_synthetic(self.synthetic, "test" if split == "test" else "train"), "synthetic", None)
        else:
            rows = read_jsonl(Path(source) if split == "test" else Path(source).with_name(f"{split}.jsonl"))
        for number, row in enumerate(rows.rows, 1):
            for key, kind in self.fields.items():
                if not isinstance(row.get(key), kind):
                    what = "text" if kind is str else kind.__name__
                    if key in row:
                        wrong = f"'{key}' is of type {type(row[key]).__name__}, task {self.name} needs a {what}"
                        raise ConfigError(f"{rows.source}:{number}: {wrong}")
                    raise ConfigError(
                        f"{rows.source}:{number}: no {what} under '{key}'{hint(key, row)} (task {self.name})"
                    )
        return rows


@cache
def _synthetic(synthetic: SyntheticTask, split: Split) -> list[Row]:
    """A twin's first rows, made once per process: a suite asks for them again and again."""
    return list(itertools.islice(synthetic.rows(split), SYNTHETIC_ROWS))


def filled(template: str, **fields: str) -> str:
    """The template with each `{field}` replaced, once; `{{` and `}}` are braces. Raises ConfigError for an unknown field."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        if match[1] not in fields:
            raise ConfigError(f"prompt: no field '{match[1]}'{hint(match[1], fields)}")
        return fields[match[1]]

    return re.sub(r"\{\{|\}\}|\{(\w+)\}", value, template)


def without(texts: Sequence[str], text: str) -> str:
    """`text` up to the first of `texts` in it."""
    return text[: min((i for t in texts if (i := text.find(t)) >= 0), default=len(text))]
