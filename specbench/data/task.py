"""The base class of tasks, and their samples. Tasks are in tasks/, one file each, their variants in configs/tasks/."""

import hashlib
import itertools
import json
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypedDict

from specbench.config.construct import Named
from specbench.config.shard import Shard
from specbench.data.remote_rows import HubData, WebFile, read_hub, read_hub_file, read_web
from specbench.data.rows import HUB, Row, Rows, Split, SyntheticTask, read_file, split_file
from specbench.data.templates import up_to
from specbench.errors import ConfigError, NotOnHub, hint
from specbench.sandbox import Sandbox
from specbench.scoring import Metric, Score
from specbench.vocabulary import Chat, Overflow

SYNTHETIC_ROWS = 1000
DRAW_SEED = 42  # as the authors of Speculative Ensemble shuffle


class Message(TypedDict):
    """A turn of a dialogue. `role` is user, assistant or system."""

    role: str
    content: str


@dataclass(frozen=True)
class Sample:
    """One prompt. `reference` is the part of the correct answer that `score` uses; None if nothing is scored.

    `messages` replace the prompt in a chat template: a question, perhaps after a system prompt and earlier turns. Without
    any, the prompt is the question. `after` is the id of the sample whose conversation this sample continues.
    """

    id: str
    prompt: str
    reference: Any = None
    group: str = ""  # a subject or a category
    messages: tuple["Message", ...] = ()
    after: str = ""

    @property
    def chat(self) -> tuple["Message", ...]:
        """The messages that a chat template gets; the last one is the question."""
        return self.messages or ({"role": "user", "content": self.prompt},)

    @property
    def question(self) -> str:
        """The text of the question alone."""
        return self.chat[-1]["content"]

    @property
    def turn(self) -> str:
        """The messages as a text that identifies them: the question if it is alone, and JSON otherwise."""
        if len(self.messages) > 1:
            return json.dumps(self.messages, ensure_ascii=False)
        return self.messages[0]["content"] if self.messages else ""


@dataclass(frozen=True)
class Data:
    """The samples of one source, and what identifies them in a result."""

    samples: list[Sample]
    source: str
    revision: str | None
    sha256: str  # of all rows
    total: int  # samples of the whole source
    left_out: Mapping[str, int] = field(default_factory=dict)  # rows that no sample was made of, by reason
    shard: Shard | None = None  # a part of a run's samples, which are `whole`
    whole: tuple[Sample, ...] = ()
    is_random_sample: bool = False  # random samples instead of the first ones

    @property
    def all_samples(self) -> Sequence[Sample]:
        """The samples of the whole run, also for a shard."""
        return self.whole or self.samples

    @property
    def prompts_sha256(self) -> str:
        """SHA-256 of the prompts as the models read them, including worked examples."""
        prompts = ((s.id, s.prompt, s.turn, s.after) for s in self.samples)
        return hashlib.sha256(json.dumps(list(prompts), ensure_ascii=False).encode()).hexdigest()

    def first(self, count: int) -> "Data":
        """Return the first `count` conversations, with all of their turns."""
        samples: list[Sample] = []
        for sample in self.samples:
            if sample.after:
                samples += [sample] if any(sample.after == other.id for other in samples) else []
            elif count:
                samples, count = [*samples, sample], count - 1
        return replace(self, samples=samples)

    def part(self, shard: Shard) -> "Data":
        """Return the conversations of a shard, with all of their turns."""
        ids, number = set[str](), 0
        for sample in self.samples:
            if not sample.after:
                number += 1
            if sample.after in ids if sample.after else shard.holds(number):
                ids.add(sample.id)
        samples = [sample for sample in self.samples if sample.id in ids]
        return replace(self, samples=samples, shard=shard, whole=tuple(self.samples))

    def random_sample(self, count: int) -> "Data":
        """Return `count` random conversations, always the same ones, in the source's order, with all of their turns."""
        heads = [sample.id for sample in self.samples if not sample.after]
        chosen = set(random.Random(DRAW_SEED).sample(heads, min(count, len(heads))))
        samples: list[Sample] = []
        for sample in self.samples:
            if sample.id in chosen or any(sample.after == other.id for other in samples):
                samples.append(sample)
        return replace(self, samples=samples, is_random_sample=True)


class Hub(NamedTuple):
    """The file of a task's rows on the hub, with `{split}` in its name, and the revision of the data set.

    `CONVERTED` is the hub's conversion of data sets that are published as scripts.
    """

    repo: str
    file: str
    revision: str = ""


# Tasks without published data, by a key of their rows and its type
READERS = {"conversations": (list, "dialogues"), "messages": (list, "dialogues"), "prompt": (str, "prompts")}
CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True, kw_only=True)
class Task(Named):
    """A data set with its prompts and scores.

    `version` is a number, incremented when scores may change, and a letter, incremented when only the interface changes.
    `prompt` is a template with the fields of a row. `overflow` selects how a prompt of more than `max_prompt_tokens` (0: the
    models' context window) is treated: an error, or truncation, which records count. `chat` selects whether the models' chat
    template is applied; `auto` applies it if there is one. `template` sets its variables, such as `enable_thinking`.
    """

    version: ClassVar[str]
    hub: ClassVar[Hub | HubData | None] = None
    web: ClassVar[WebFile | None] = None  # instead of `hub`
    splits: ClassVar[tuple[str, ...]] = ("test",)  # that its prompts are made from
    fields: ClassVar[dict[str, type]] = {}  # required fields of a row
    synthetic: ClassVar[SyntheticTask | None] = None
    published: ClassVar[int | None] = None  # prompts of the published test split, for plans without the data
    paths: ClassVar[tuple[str, ...]] = ()  # keys that hold a path, relative to the TOML file
    omitted: ClassVar[tuple[str, ...]] = ()  # keys that a run spec holds only if they are set
    executes_code: ClassVar[bool] = False  # scoring executes generated code
    continues: ClassVar[bool] = False  # outputs have no natural end, so that a cut by length is not a failure

    description: str = ""
    prompt: str = ""
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    max_prompt_tokens: int = 0
    overflow: Overflow = Overflow.error
    chat: Chat = Chat.off
    revision: str = ""  # of the data set on the hub; empty: the newest, whose commit a run records
    template: dict[str, bool | int | str] = field(default_factory=dict)  # variables of the chat template

    def __post_init__(self) -> None:
        for key, least in (("max_new_tokens", 1), ("max_prompt_tokens", 0)):
            if getattr(self, key) < least:
                raise ValueError(f"{key} = {getattr(self, key)} must be at least {least}")
        if "" in self.stop:
            raise ValueError("stop: must not contain an empty string")
        if self.template and self.chat == Chat.off:
            raise ValueError('template has no effect with chat = "off"')

    @abstractmethod
    def samples(self, rows: list[Row], source: str) -> list[Sample]:
        """Return the samples of checked rows. `source` is the path of the rows, to find files next to them."""

    def left_out(self, rows: list[Row]) -> Mapping[str, int]:
        """Return how many rows `samples` leaves out for each reason."""
        return {}

    @property
    def local(self) -> str:
        """The file or data set of the hub that the task names itself; empty if the source decides."""
        return ""

    @property
    def published_rows(self) -> int | None:
        """The number of rows of the published test split, for plans without the data; None if it is not known."""
        return self.published

    @property
    def is_published(self) -> bool:
        """Whether the source `hub` has rows, which are on the hub, in a file on the web, or in the task's own file."""
        return bool(self.hub or self.web or self.local)

    def stopped(self, text: str) -> str:
        """Return an output up to its first stop string."""
        return up_to(self.stop, text)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of its scores."""
        return ()

    @property
    def headline(self) -> str:
        """The metric that tables show next to speeds; empty if nothing is scored."""
        return self.metrics[0].name if self.metrics else ""

    def score(self, sample: Sample, text: str, sandbox: Sandbox | None = None) -> Score:
        """Return the value of each metric for a generated text. Tasks that execute the text do so in `sandbox`."""
        return {}

    def data(self, source: str) -> Data:
        """Return the samples of a source: `hub`, `synthetic`, an id such as `hf:openai/gsm8k:main#test`, or a file.

        Raises MissingAsset and ConfigError.
        """
        rows = self.rows(source)
        samples = self.samples(rows.rows, source)
        if not samples:
            raise ConfigError(f"{rows.source} has no samples")
        if len({sample.id for sample in samples}) < len(samples):
            twice = next(s.id for i, s in enumerate(samples) if any(s.id == other.id for other in samples[:i]))
            raise ConfigError(f"{rows.source} has two samples with the id '{twice}'")
        return Data(samples, rows.source, rows.revision, rows.sha256, len(samples), self.left_out(rows.rows))

    def continuations(self, rows: list[Row]) -> list[str]:
        """Return the text that follows the prompt in each row; empty if a row has none."""
        texts = []
        for row in rows:
            try:
                texts.append(self.synthetic.answer(row) if self.synthetic else "")
            except KeyError:  # synthetic rows have more fields than real ones
                texts.append("")
        return texts

    def dialogues(self, rows: list[Row]) -> list[list[Message]]:
        """Return whole dialogues for training, one per first turn in `samples`; empty if rows are single questions."""
        return []

    def has_training_split(self, source: str) -> bool:
        """Return whether a source has rows for training apart from those that are measured."""
        if source != "hub":
            return source == "synthetic"
        return isinstance(self.hub, HubData) or (self.hub is not None and "{split}" in self.hub.file)

    def texts(self, source: str) -> tuple[Rows, list[tuple[Sample, str]]]:
        """Return training rows, and their prompts with continuations: the training split, or the rows of the source."""
        rows = self.rows(source, "train" if source in ("hub", "synthetic") else "test")
        samples, after = self.samples(rows.rows, rows.source), self.continuations(rows.rows)
        if len(after) != len(samples):  # a row may be several turns
            after = [""] * len(samples)
        return rows, [pair for pair in zip(samples, after, strict=True) if not pair[0].after]

    def _published(self, split: str) -> Rows:
        """Return the rows of a split on the hub, or of the task's file on the web."""
        if self.web:
            return read_web(self.web, self.name)
        if self.hub is None:
            raise NotOnHub(f"the rows of task {self.name} are not on the hub; help: --data {self.name}=FILE.jsonl")
        if isinstance(self.hub, HubData):
            return self._of_hub(self.hub, split)
        repo, file, revision = self.hub
        return read_hub_file(repo, file.format(split=split), self.revision or revision or None)

    def data_of(self, data: HubData, split: str) -> HubData:
        """Return a split of a data set on the hub, at the task's revision unless it has its own. `test` is its own split."""
        return replace(data, split=data.split if split == "test" else split, revision=data.revision or self.revision)

    def _of_hub(self, data: HubData, split: str) -> Rows:
        """Return the rows of a split on the hub. Raises ConfigError if a column is missing that the task needs."""
        rows = read_hub(self.data_of(data, split))
        columns = rows.rows[0] if rows.rows else self.fields
        if not columns.keys() >= self.fields.keys():
            suggestion = reader_of(rows.rows[0]) or f"; the rows have: {', '.join(columns)}"
            raise ConfigError(f"{rows.source}: task {self.name} needs the columns {', '.join(self.fields)}{suggestion}")
        return rows

    def rows(self, source: str, split: str = "test") -> Rows:
        """Return the checked rows of a split.

        A source that names a data set on the hub or a file is the split `test`. Other splits are read from the same data set,
        or from files next to the file.
        """
        if source == "hub":
            rows = self._published(split)
        elif source == "synthetic":
            if self.synthetic is None:
                raise ConfigError(f"task {self.name} has no synthetic data; help: --data FILE.jsonl")
            rows = Rows(_synthetic(self.synthetic, "test" if split == "test" else "train"), "synthetic", None)
        elif source.startswith(HUB):
            rows = self._of_hub(HubData.parse(source), split)
        else:
            rows = read_file(Path(source) if split == "test" else split_file(Path(source), split))
        is_own = source not in ("hub", "synthetic") and not source.startswith(HUB)
        for number, row in enumerate(rows.rows, 1):
            for key, kind in self.fields.items():
                if is_own and row.get(key) == "":
                    raise ConfigError(f"{rows.source}:{number}: '{key}' is empty (task {self.name})")
                if not isinstance(row.get(key), kind):
                    what = "text" if kind is str else kind.__name__
                    if key in row:
                        wrong = f"'{key}' is of type {type(row[key]).__name__}, task {self.name} needs a {what}"
                        raise ConfigError(f"{rows.source}:{number}: {wrong}")
                    suggestion = reader_of(row) or hint(key, row, "the row has")
                    raise ConfigError(f"{rows.source}:{number}: no {what} under '{key}'{suggestion} (task {self.name})")
        return rows


def reader_of(row: Row) -> str:
    """Return the keys of a row and the task for its schema, as the end of an error; empty for other rows."""
    reader = next((task for key, (kind, task) in READERS.items() if isinstance(row.get(key), kind)), "")
    return f"; the row has: {', '.join(row)}; help: -t {reader}" if reader else ""


@cache
def _synthetic(synthetic: SyntheticTask, split: Split) -> list[Row]:
    """Return the first synthetic rows of a split, cached per process since suites read them repeatedly."""
    return list(itertools.islice(synthetic.rows(split), SYNTHETIC_ROWS))
