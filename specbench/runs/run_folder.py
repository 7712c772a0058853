"""A run folder: its files, what it has to hold, and the only readers of its records.

What `load` and `read` return belongs to the run's methods and samples, has the types of `Record`, and holds every generation
once. Anything else is reported as a problem and not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import ConfigError
from specbench.files import read_sealed, read_toml
from specbench.runs.record import Key, Record, parse_record
from specbench.runs.run_spec import SEMANTICS, RunSpec

SAMPLES = "samples.jsonl"
SCORES = "scores.json"
CONFIG = "run.toml"
ENVIRONMENT = "env.json"
MANIFEST = "manifest.json"
JUDGED = "judged.json"
SUMMARY = "summary.json"
MOST_SHOWN = 3  # problems that one line lists


@dataclass(frozen=True)
class Manifest:
    """What a run folder has to hold: the SHA-256 of its spec, and the ids of its samples."""

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


def listed(problems: list[str]) -> str:
    """Problems as one line: the first ones, and how many there are."""
    shown = "; ".join(problems[:MOST_SHOWN])
    return shown if len(problems) <= MOST_SHOWN else f"{shown}; and {len(problems) - MOST_SHOWN} more"


def spec_of(folder: Path) -> RunSpec:
    """Read the spec of a run folder.

    Raises ConfigError where the folder holds no run, a damaged one, one of another version, or a spec that was changed since
    the run began.
    """
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} holds no run (no {CONFIG}); help: specbench run")
    table = read_toml(path)
    if table.get("semantics") != SEMANTICS:
        raise ConfigError(
            f"{folder} was written by another version of specbench; help: the same command measures into a new folder"
        )
    try:
        spec = RunSpec.from_toml(table, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged: {error}; help: restore it, or measure again with --fresh") from None
    manifest = manifest_of(folder)
    if manifest and manifest.config_sha256 != spec.checksum:
        raise ConfigError(f"{path} was changed after the run began; help: restore it, or measure again with --fresh")
    return spec


def manifest_of(folder: Path) -> Manifest | None:
    """A run folder's manifest; None where there is none. Raises ConfigError for a damaged one."""
    path = folder / MANIFEST
    return read_sealed(path, Manifest) if path.exists() else None


def expected_of(folder: Path) -> Expected:
    """The generations that a run folder's spec asks for. Raises ConfigError where it holds no run."""
    spec, manifest = spec_of(folder), manifest_of(folder)
    samples = spec.task.data.samples
    if manifest and len(manifest.samples) != samples:
        raise ConfigError(f"{folder / MANIFEST}: damaged: {len(manifest.samples)} samples, and the run has {samples}")
    ids = frozenset(manifest.samples) if manifest else None
    return Expected(tuple(spec.methods), spec.decoding.repeats, samples, ids)
