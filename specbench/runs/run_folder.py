"""Run folders: their files and types, their expected content, and the readers and the writer of their records.

`load` and `read` return valid records of the run, each once. Everything else in the file is a problem that `load` reports.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from specbench import files
from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.files import read_toml, read_with_checksum
from specbench.runs.record import Count, Key, Record, line_of, parse_record
from specbench.runs.run_spec import SEMANTICS, RunSpec

if TYPE_CHECKING:
    from specbench.runs.locking import FolderLock  # imports filelock

CONFIG = "run.toml"
SAMPLES = "samples.jsonl"
SCORES = "scores.json"
ENVIRONMENT = "env.json"
MANIFEST = "manifest.json"
JUDGED = "judged.json"
SUMMARY = "summary.json"
IMPORTED = "imported.json"
BLOCKS = "blocks.json"
PATHS = "paths.parquet"
ATTEMPTS = "attempts"  # folder of interrupted attempts on other machines
MOST_SHOWN = 3  # problems in an error message


class MetricTable(TypedDict):
    """One metric of scores.json."""

    name: str
    signature: str
    combine: str


class ScoreRow(TypedDict):
    """The scores of one generation in scores.json."""

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
    """A run folder's judged.json: the last judge's comparisons, and earlier ones, of other judges or methods."""

    judge: Table
    label: str
    of: str
    against: str
    comparisons: Count
    rows: list["JudgedRow"]
    earlier: NotRequired[list["Judged"]]


class JudgedRow(TypedDict):
    """One comparison of judged.json: 1 if the first method won, 0 if the second did, 0.5 for a tie.

    `unclear` counts the answers that name no letter. `key` identifies the judge and the texts. `prompt` is the first sample
    with an equal prompt. `equal` texts are ties, without a question to the judge. Older files lack the last two.
    """

    sample: str
    prompt: NotRequired[str]
    repeat: Count
    verdict: float
    unclear: Count
    key: str
    exchanges: list["StoredExchange"]
    equal: NotRequired[bool]


class StoredExchange(TypedDict):
    """A judge's prompt and its answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Manifest:
    """The expected content of a run folder: the SHA-256 of its spec, and the ids of its samples."""

    config_sha256: str
    samples: list[str]


@dataclass(frozen=True)
class ImportOrigin:
    """The origin of an imported run: the archive's name and SHA-256, and whether it has texts."""

    archive: str
    archive_sha256: str
    texts: bool


@dataclass(frozen=True)
class Expected:
    """The generations of a complete run: each sample, repeat and method once. `samples` is None if the ids are unknown.

    `run` is the key of the run, which its records have (`RunSpec.key`).
    """

    methods: tuple[str, ...]
    repeats: int
    count: int  # of samples
    samples: frozenset[str] | None = None
    run: str = ""

    @property
    def generations(self) -> int:
        """The number of generations of a complete run."""
        return len(self.methods) * self.repeats * self.count

    def why_unexpected(self, record: Record) -> str:
        """Return why a record does not belong to the run; empty if it does."""
        if self.run and record.run != self.run:
            return f"it belongs to another run, {record.run}, and not to this one, {self.run}"
        if record.method not in self.methods:
            return f"method '{record.method}' is not in this run"
        if record.repeat >= self.repeats:
            return f"repeat {record.repeat} is out of range (0 to {self.repeats - 1})"
        if self.samples is not None and record.sample not in self.samples:
            return f"sample '{record.sample}' is not in this run"
        return ""


@dataclass(frozen=True)
class RunRecords:
    """The records of a run, each once, and the problems of its file."""

    records: list[Record]
    problems: list[str]
    expected: Expected | None

    @property
    def complete(self) -> bool:
        """Whether there is a record of every expected generation, failed ones included, and nothing else."""
        return self.expected is not None and not self.problems and len(self.records) == self.expected.generations


def _read_spec(table: Table, path: Path) -> RunSpec:
    if table.get("semantics") != SEMANTICS:
        raise ConfigError(
            f"{path.parent} was written by another version of specbench; help: run the same command again, which"
            " measures into a new folder"
        )
    try:
        return RunSpec.from_toml(table, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged: {error}; help: restore it, or measure again with --fresh") from None


def _recordable(record: Record) -> Record:
    """Return a record; one with invalid times, as after a change of the clock, as failed."""
    if record.has_valid_times:
        return record
    return replace(record.as_failed("ValueError: the measured times are negative or not finite"), capture_seconds=0.0)


def load(folder: Path, expected: Expected | None = None) -> RunRecords:
    """Return all records of a run folder in measured order, and the problems of its file.

    By default, `expected` is read from run.toml. Raises ConfigError if the folder contains no run.
    """
    expected = expected or expected_of(folder)
    problems: list[str] = []
    return RunRecords(list(_records(folder, expected, problems)), problems, expected)


def read(folder: Path, expected: Expected | None = None) -> Iterator[Record]:
    """Yield the records of a run folder, without the lines that `load` reports as problems."""
    return _records(folder, expected or expected_of(folder), [])


def _records(folder: Path, expected: Expected | None, problems: list[str]) -> Iterator[Record]:
    seen: set[Key] = set()
    with (folder / SAMPLES).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                continue  # incomplete, from a killed process
            try:
                record = parse_record(line)
            except ConfigError as error:
                problems.append(f"line {number} is damaged: {error}")
                continue
            wrong = expected.why_unexpected(record) if expected else ""
            if not wrong and record.key in seen:
                wrong = f"a second record of {_named(record.key)}"
            if wrong:
                problems.append(f"line {number}: {wrong}")
                continue
            seen.add(record.key)
            yield record


def _named(key: Key) -> str:
    """Return the key of a record in words."""
    method, sample, repeat = key
    return f"{method}, sample '{sample}', repeat {repeat}"


def listed(problems: list[str]) -> str:
    """Return problems on one line: the first ones, and the number of others."""
    shown = "; ".join(problems[:MOST_SHOWN])
    return shown if len(problems) <= MOST_SHOWN else f"{shown}; and {len(problems) - MOST_SHOWN} more"


def runs_in(folder: Path) -> list[Path]:
    """Return a run folder in a list, or the run folders below a folder, by name, without interrupted attempts."""
    if (folder / SAMPLES).exists():
        return [folder]
    folders = (path.parent for path in folder.glob(f"**/{SAMPLES}"))
    return sorted(run for run in folders if ATTEMPTS not in run.relative_to(folder).parts)


def spec_of(folder: Path) -> RunSpec:
    """Read the spec of a run folder.

    Raises ConfigError if the folder contains no run, a damaged run, a run of another version, or a spec that was changed
    after the run began.
    """
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} contains no run; help: specbench run")
    spec = _read_spec(read_toml(path), path)
    manifest = manifest_of(folder)
    if manifest and manifest.config_sha256 != spec.checksum:
        raise ConfigError(f"{path} was changed after the run began; help: restore it, or measure again with --fresh")
    return spec


def manifest_of(folder: Path) -> Manifest | None:
    """Return a run folder's manifest; None if it has none. Raises ConfigError if it is damaged."""
    path = folder / MANIFEST
    return read_with_checksum(path, Manifest) if path.exists() else None


def imported_of(folder: Path) -> ImportOrigin | None:
    """Return the origin of an imported run; None for a run that was measured here. Raises ConfigError if it is damaged."""
    path = folder / IMPORTED
    return read_with_checksum(path, ImportOrigin) if path.exists() else None


def require_texts(folder: Path) -> None:
    """Raise ConfigError if a run was exported without texts."""
    if (origin := imported_of(folder)) and not origin.texts:
        raise ConfigError(
            f"{folder} was exported without texts; help: specbench archive export --texts on the other machine"
        )


def expected_of(folder: Path) -> Expected:
    """Return the expected records of a run folder. Raises ConfigError if it contains no run."""
    spec, manifest = spec_of(folder), manifest_of(folder)
    samples = spec.task.data.samples
    if manifest and len(manifest.samples) != samples:
        raise ConfigError(f"{folder / MANIFEST}: damaged: {len(manifest.samples)} samples, and the run has {samples}")
    ids = frozenset(manifest.samples) if manifest else None
    return Expected(tuple(spec.methods), spec.decoding.repeats, samples, ids, spec.key)


class Recorder:
    """Appends records to a run folder's samples.jsonl. `done` are the keys of existing records.

    Removes an incomplete last line, which a killed process can leave; its record is measured again. Raises ConfigError if
    the file contains anything else that does not belong to the run.
    """

    def __init__(self, lock: "FolderLock", expected: Expected) -> None:
        self.folder = lock.folder
        self._lock, self._path = lock, lock.folder / SAMPLES
        self._path.touch()
        whole = self._path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            with self._path.open("rb+") as file:
                file.truncate(end)
        recorded = load(self.folder, expected)
        if recorded.problems:
            raise ConfigError(
                f"{self._path}: {listed(recorded.problems)}; help: delete these lines and run the same command, or measure"
                " everything again with --fresh"
            )
        self.done: set[Key] = {record.key for record in recorded.records}

    def append(self, record: Record) -> Record:
        """Write a record in the form that can be stored, and return it in this form.

        Raises OSError, naming the file, and FolderInUse if another process has broken the lock.
        """
        self._lock.require()
        record = _recordable(record)
        line = line_of(record)
        try:
            parse_record(line)
        except ConfigError as error:
            raise AssertionError(f"a record that no reader accepts: {error}") from error
        with files.add_path_to_errors(self._path), self._path.open("ab") as file:
            file.write(line)
        self.done.add(record.key)
        return record


class Blocks(TypedDict):
    """A run folder's blocks.json: forwards and their seconds, by model and tokens read."""

    models: dict[str, dict[str, tuple[float, float]]]


def timed_forwards(folder: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """Return the forwards that were timed next to a run, with their seconds, by model and tokens read; empty if none were."""
    path = folder / BLOCKS
    stored = read_with_checksum(path, Blocks)["models"] if path.exists() else {}
    return {role: {int(fed): sums for fed, sums in sizes.items()} for role, sizes in stored.items()}
