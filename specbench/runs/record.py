"""Floor 0: a run folder's files. One JSON line a generation, appended and flushed, so that a finished sample is never lost.

`load` and `read` are the only readers of records: what they return is of the run's methods and samples, has the types that
`Record` gives, and holds every generation once. Anything else is a problem, which is reported and not counted.
"""

import dataclasses
import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, cast

from msgspec import Meta

from specbench import files
from specbench.decoding.round import Step
from specbench.decoding.usage import Calls
from specbench.errors import ConfigError
from specbench.files import checked, parse_json, read_sealed, read_toml
from specbench.runs.locking import FolderLock

SAMPLES = "samples.jsonl"
SCORES = "scores.json"
CONFIG = "run.toml"
ENVIRONMENT = "env.json"
MANIFEST = "manifest.json"
JUDGED = "judged.json"
SUMMARY = "summary.json"
SEMANTICS = 4  # bumped when the meaning of a recorded number changes, so that old runs are not mixed with new ones
CHECKSUM = b', "crc32": "%08x"}\n'  # the end of a record's line
MOST_SHOWN = 3  # problems that one line lists

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0)]
Key = tuple[str, str, int]  # method, sample, repeat


class Round(TypedDict):
    """One round as it is recorded (`step.Step`). `refused` is the text of the draft from the rejected token on."""

    tokens: Count
    drafted: Count
    tested: Count
    accepted: Count
    by: list[str]
    noted: NotRequired[dict[str, float]]
    untested: NotRequired[Count]
    inner: "NotRequired[list[Round]]"
    refused: NotRequired[str]


class Usage(TypedDict):
    """What one model's session cost (`calls.Calls`)."""

    prefill_fed: Count
    prefill_seconds: Seconds
    encodes: Count
    forwards: Count
    fed: Count
    seconds: Seconds
    by_fed: dict[int, Annotated[list[Seconds], Meta(min_length=2, max_length=2)]]
    read: Count
    off_clock: float
    beside: float
    prefill_beside: float


def usage_of(calls: Calls) -> Usage:
    """What a session cost, as it is recorded."""
    return cast(Usage, dataclasses.asdict(calls))


def round_of(step: Step) -> Round:
    """A round as it is recorded; the text of what was rejected is the caller's to add."""
    out = Round(
        tokens=len(step.tokens), drafted=step.drafted, tested=step.tested, accepted=step.accepted, by=list(step.by)
    )
    if step.noted:
        out["noted"] = step.noted
    if step.untested:
        out["untested"] = step.untested
    if step.inner:
        out["inner"] = [round_of(each) for each in step.inner]
    return out


@dataclass(kw_only=True)
class Record:
    """One prompt, decoded once by one method. A failed one has an `error`, and no tokens and no timing."""

    method: str
    sample: str
    repeat: Count
    seed: int  # the run's, plus the repeat; with the sample it makes the generator's
    order: int  # how many generations were timed before it in this process: for drift
    prompt_tokens: Count = 0
    prompt_cut: Count = 0  # tokens of the prompt that were cut away
    prompt_ends: list[int] = field(default_factory=list)  # its first and last eight ids
    tokens: list[Count] = field(default_factory=list)  # committed ids, the first stop included
    text: str = ""  # without what follows a stop string
    pieces: list[str] = field(default_factory=list)  # what each token adds to the text
    finish: str = ""  # eos | stop | length | window
    rounds: list[Round] = field(default_factory=list)  # of methods that draft or note
    models: dict[str, Usage] = field(default_factory=dict)  # by role
    first_token_seconds: Seconds | None = None  # from the prompt to the first committed tokens
    prefill_seconds: Seconds | None = None  # each model's first forward, its encoder's included
    decode_seconds: Annotated[float, Meta(gt=0.0)] | None = None  # all else between the prompt and the last token
    peak_bytes: Count | None = None  # CUDA only
    made_up: str = ""  # what about the models is not real: dummy weights, synthetic laws
    captured: Count = 0  # CUDA graphs captured for this generation, before its clock started
    capture_seconds: Seconds = 0.0
    error: str | None = None

    @property
    def has_valid_times(self) -> bool:
        """Whether all of its seconds are finite and not negative, and decoding took some."""
        times = [self.first_token_seconds, self.prefill_seconds, self.decode_seconds, self.capture_seconds]
        for usage in self.models.values():
            times += [usage["prefill_seconds"], usage["seconds"], *(each[1] for each in usage["by_fed"].values())]
        return self.decode_seconds != 0.0 and all(
            each is None or (math.isfinite(each) and each >= 0.0) for each in times
        )

    @property
    def key(self) -> Key:
        return self.method, self.sample, self.repeat


class DataTable(TypedDict):
    """A run's data, in run.toml."""

    source: str
    revision: NotRequired[str]
    sha256: str
    prompts_sha256: str
    samples: Count
    later_turns: Count
    total: Count


class TaskTable(TypedDict):
    """A run's task, in run.toml."""

    name: str
    version: str
    continues: bool
    options: dict[str, Any]
    data: DataTable


class PairTable(TypedDict):
    """A run's models, in run.toml, as far as every reader needs them."""

    name: str
    models: dict[str, dict[str, Any]]
    traffic: dict[str, dict[str, float]]
    shapes: dict[str, dict[str, float]]


class DecodingTable(TypedDict):
    """A run's decoding settings, in run.toml."""

    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    ignore_eos: bool
    seed: int
    repeats: Count


class ConfigTable(TypedDict):
    """A resolved config, as far as every reader needs it, without its models."""

    semantics: int
    task: TaskTable
    baseline: str
    clock: str
    methods: dict[str, dict[str, Any]]
    decoding: DecodingTable
    engine: dict[str, str]


class MetricTable(TypedDict):
    """One metric of scores.json."""

    name: str
    signature: str
    combine: str


class ScoreRow(TypedDict):
    """What one generation scored, in scores.json."""

    method: str
    sample: str
    repeat: Count
    group: str
    values: dict[str, float | list[float]]


class Scores(TypedDict):
    """A run folder's scores.json."""

    version: str
    metrics: list[MetricTable]
    headline: str
    sandbox: NotRequired[str | None]
    not_executed: bool
    records: Count
    samples: NotRequired[dict[str, dict[str, str]]]
    rows: list[ScoreRow]


class Judged(TypedDict):
    """A run folder's judged.json."""

    judge: dict[str, Any]
    of: str
    against: str
    records: Count
    rows: list["JudgedRow"]


class JudgedRow(TypedDict):
    """One comparison of judged.json: 1 where the first method won, 0 where the second did, 0.5 for a tie."""

    sample: str
    repeat: Count
    verdict: float


class RunTable(ConfigTable):
    """A run's resolved config, run.toml."""

    pair: PairTable


@dataclass(frozen=True)
class Manifest:
    """What a run folder has to hold: the SHA-256 of its config, and the ids of its samples."""

    config_sha256: str
    samples: list[str]


@dataclass(frozen=True)
class Expected:
    """The generations of a complete run: every sample (None where the ids are unknown), repeat and method, once."""

    methods: tuple[str, ...]
    repeats: int
    count: int  # of samples
    samples: frozenset[str] | None = None

    @property
    def generations(self) -> int:
        return len(self.methods) * self.repeats * self.count

    def why_unexpected(self, record: Record) -> str:
        """Why a record is not one of the run's; empty where it is."""
        if record.method not in self.methods:
            return f"method '{record.method}' is not in this run"
        if record.repeat >= self.repeats:
            return f"repeat {record.repeat} is out of range (0 to {self.repeats - 1})"
        if self.samples is not None and record.sample not in self.samples:
            return f"sample '{record.sample}' is not in this run"
        return ""


@dataclass(frozen=True)
class Recorded:
    """The records of a run, each generation once, and what else its file holds, a line each."""

    records: list[Record]
    problems: list[str]
    expected: Expected | None

    @property
    def complete(self) -> bool:
        """Whether every expected generation is there once, failed ones included, and nothing else."""
        return self.expected is not None and not self.problems and len(self.records) == self.expected.generations


class Recorder:
    """Appends records to a run folder's samples.jsonl, and knows which are there already.

    A half-written last line, which a kill can leave, is cut off and measured again. Raises ConfigError where the file holds
    anything else that is not of the run.
    """

    def __init__(self, lock: FolderLock, expected: Expected) -> None:
        self.folder = lock.folder
        self._lock, self._path = lock, lock.folder / SAMPLES
        self._path.touch()
        whole = self._path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            with self._path.open("rb+") as file:
                file.truncate(end)
        found = load(self.folder, expected)
        if found.problems:
            raise ConfigError(
                f"{self._path}: {listed(found.problems)}; help: delete these lines and run the same command, which measures"
                " what is missing; --fresh measures everything again"
            )
        self.done = {record.key for record in found.records}

    def append(self, record: Record) -> Record:
        """Write a record and return it; one whose times are invalid, as after the clock was set back, as a failed record.

        Raises OSError, naming the file, and FolderInUse if another process has broken the lock.
        """
        self._lock.require()
        if not record.has_valid_times:
            record = Record(
                method=record.method, sample=record.sample, repeat=record.repeat, seed=record.seed, order=record.order,
                prompt_tokens=record.prompt_tokens, made_up=record.made_up,
                error="ValueError: the measured times are negative or not finite",
            )  # fmt: skip
        line = line_of(record)
        try:
            parse_record(line)
        except ConfigError as error:
            raise AssertionError(f"a record that no reader accepts: {error}") from error
        with files.named(self._path), self._path.open("ab") as file:
            file.write(line)
        self.done.add(record.key)
        return record


def load(folder: Path, expected: Expected | None = None) -> Recorded:
    """All records of a run folder, in the order in which they were measured, and the problems of its file.

    `expected` is by default what run.toml says. Raises ConfigError where the folder holds no run.
    """
    expected = expected or expected_of(folder)
    problems: list[str] = []
    return Recorded(list(_records(folder, expected, problems)), problems, expected)


def read(folder: Path, expected: Expected | None = None) -> Iterator[Record]:
    """The records of a run folder one by one, without what `load` reports as problems."""
    return _records(folder, expected or expected_of(folder), [])


def _records(folder: Path, expected: Expected | None, problems: list[str]) -> Iterator[Record]:
    seen: set[Key] = set()
    with (folder / SAMPLES).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                continue  # a kill's half-written line
            try:
                record = parse_record(line)
            except ConfigError as error:
                problems.append(f"line {number} is damaged: {error}")
                continue
            wrong = expected.why_unexpected(record) if expected else ""
            if not wrong and record.key in seen:
                wrong = f"a second record of {record.method}, sample '{record.sample}', repeat {record.repeat}"
            if wrong:
                problems.append(f"line {number}: {wrong}")
                continue
            seen.add(record.key)
            yield record


def line_of(record: Record) -> bytes:
    """A record as a line of samples.jsonl, which ends with a checksum of what is before it."""
    text = json.dumps(dataclasses.asdict(record), ensure_ascii=False)[:-1].encode()
    return text + CHECKSUM % zlib.crc32(text)


def parse_record(line: bytes) -> Record:
    """One line of samples.jsonl. Raises ConfigError where it is not a record, was changed, or contradicts itself.

    A line without a checksum, which an earlier version wrote, is taken as it is.
    """
    text, ending = line[: -len(CHECKSUM % 0)], line[-len(CHECKSUM % 0) :]
    if ending.startswith(CHECKSUM[:12]) and ending != CHECKSUM % zlib.crc32(text):
        raise ConfigError("it was changed after it was written")
    record = parse_json(line, Record, "record")
    if record.error is not None:
        if record.tokens or record.decode_seconds is not None:
            raise ConfigError("a failed generation has tokens or a timing")
        return record
    if record.decode_seconds is None or record.prefill_seconds is None:
        raise ConfigError("a generation without an error has no timing")
    if not record.tokens:
        raise ConfigError("a generation without an error has no tokens")
    if record.rounds and sum(each["tokens"] for each in record.rounds) != len(record.tokens):
        raise ConfigError("its rounds do not add up to its tokens")
    if any(each["accepted"] > each["tested"] or len(each["by"]) not in (0, each["tested"]) for each in record.rounds):
        raise ConfigError("a round accepts more than it tests")
    return record


def listed(problems: list[str]) -> str:
    """Problems as one line: the first ones, and how many there are."""
    shown = "; ".join(problems[:MOST_SHOWN])
    return shown if len(problems) <= MOST_SHOWN else f"{shown}; and {len(problems) - MOST_SHOWN} more"


def run_config(folder: Path) -> dict[str, Any]:
    """The resolved config of a run folder.

    Raises ConfigError where it holds no run, a damaged one, or a config that was changed since the run began.
    """
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} holds no run (no {CONFIG}); help: specbench run")
    config = read_toml(path)
    manifest = manifest_of(folder)
    if manifest and manifest.config_sha256 != config_sha256(config):
        raise ConfigError(f"{path} was changed after the run began; help: restore it, or measure again with --fresh")
    if config.get("semantics") not in (None, SEMANTICS):
        raise ConfigError(
            f"{folder} was written by another version of specbench; help: the same command measures into a new folder"
        )
    checked(config, RunTable, str(path))
    return config


def config_sha256(config: dict[str, Any]) -> str:
    """The SHA-256 of a resolved config, as hex digits."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def manifest_of(folder: Path) -> Manifest | None:
    """A run folder's manifest; None for runs that were begun before there was one. Raises ConfigError for a damaged one."""
    path = folder / MANIFEST
    return read_sealed(path, Manifest) if path.exists() else None


def expected_of(folder: Path) -> Expected:
    """The generations that a run folder's config asks for. Raises ConfigError where it holds no run."""
    config, manifest = run_config(folder), manifest_of(folder)
    samples = config["task"]["data"]["samples"]
    if manifest and len(manifest.samples) != samples:
        raise ConfigError(f"{folder / MANIFEST}: damaged: {len(manifest.samples)} samples, and the run has {samples}")
    ids = frozenset(manifest.samples) if manifest else None
    return Expected(tuple(config["methods"]), config["decoding"]["repeats"], samples, ids)
