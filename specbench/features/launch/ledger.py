"""The jobs of a suite and their progress, in RESULTS/suites/NAME/launch.json.

The driver writes the file, and `specbench status` reads it together with the logs and the records.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, ExitCode
from specbench.features.launch.job import Job
from specbench.features.suites.suite import Suite, SuiteRequest
from specbench.features.suites.suite_index import SUITES, Index
from specbench.files import checked, read_with_checksum, write_with_checksum
from specbench.runs.locking import holder_of
from specbench.runs.run_folder import SAMPLES
from specbench.runs.run_state import RunState

LEDGER, FOLDER = "launch.json", "launch"

VERSION = 2  # of the file
STATES = {"waiting": RunState.pending, "pending": RunState.queued}  # words of version 1
TAIL_BYTES = 4096  # of a log, in which its last line is looked for


def folder_of(request: SuiteRequest) -> Path:
    """Return the folder of a suite's index, ledger and logs."""
    return Index.of(request.suite.name, request.out, request.is_changed).path.parent


@dataclass(frozen=True)
class LedgerEntry:
    """One run, and its newest job. `attempt` is 0 before the first job.

    `node` is the cluster's name of the machine, if it has one. `changed` is the time of the last change of state.
    `seconds` is the total duration of the run's jobs that have ended.
    """

    key: str
    pair: str
    task: str
    generations: int = 0
    state: RunState = RunState.pending
    attempt: int = 0
    id: str = ""
    host: str = ""
    node: str = ""
    changed: float = 0.0
    seconds: float = 0.0
    why: str = ""
    log: str = ""

    @property
    def active(self) -> bool:
        """Whether a launcher has the job."""
        return self.state.is_active


@dataclass(frozen=True)
class _LedgerTable:
    launcher: str
    entries: list[dict[str, Any]]
    version: int = 1


@dataclass
class Ledger:
    """The entries of a suite's runs by key, in the order of the suite."""

    path: Path
    launcher: str = ""
    entries: dict[str, LedgerEntry] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> "Ledger":
        """Return the ledger of a suite's folder, empty if there is none. Raises ConfigError if it is damaged."""
        path = folder / LEDGER
        if not path.exists():
            return cls(path)
        table = read_with_checksum(
            path, _LedgerTable, "delete it; the runs are kept, and jobs that still run finish them"
        )
        if table.version > VERSION:
            raise ConfigError(f"{path} was written by a later version of specbench")
        rows = table.entries if table.version == VERSION else map(_as_today, table.entries)
        entries = [checked(row, LedgerEntry, str(path)) for row in rows]
        return cls(path, table.launcher, {entry.key: entry for entry in entries})

    @property
    def folder(self) -> Path:
        """Where logs and outcomes of jobs are."""
        return self.path.parent / FOLDER

    def job(self, entry: LedgerEntry) -> Job:
        """Return the newest job of an entry."""
        return Job(entry.key, self.folder, entry.attempt, entry.node)

    def put(self, entry: LedgerEntry) -> None:
        """Replace an entry, without writing the file."""
        self.entries[entry.key] = entry

    def change(self, key: str, **values: object) -> LedgerEntry:
        """Replace values of an entry, and return it."""
        self.entries[key] = entry = replace(self.entries[key], **values)  # type: ignore[arg-type]  # values of any field
        return entry

    def write(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        table = _LedgerTable(self.launcher, [asdict(entry) for entry in self.entries.values()], VERSION)
        write_with_checksum(self.path, asdict(table), indent=1)


def _as_today(row: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of version 1 with the present words for states."""
    return {**row, "state": STATES.get(row["state"], row["state"])}


@dataclass(frozen=True)
class JobProgress:
    """One run: its state, the generations that are recorded, and where its job runs.

    `since` is when the state began, in seconds since the epoch; 0 before the first job. `last` is the last line of the log,
    or for a failed run the reason, with the path of the log.
    """

    run: str
    state: RunState
    attempt: int
    done: int
    total: int
    host: str
    since: float
    last: str
    log: str

    @property
    def is_open(self) -> bool:
        """Whether the run is neither done nor failed."""
        return not self.state.is_final

    @property
    def is_active(self) -> bool:
        """Whether a launcher has the run's job."""
        return self.state.is_active

    @property
    def done_of(self) -> str:
        """The recorded generations and their number in a complete run."""
        return f"{self.done} of {self.total}"


def progress_of(suite: Suite, results: Path) -> list[JobProgress]:
    """Return the state of every run. Raises ConfigError if no launcher has run the suite."""
    ledger = Ledger.of(results / SUITES / suite.name)
    if not ledger.entries:
        raise ConfigError(
            f"no launcher has run {suite.name}; help: specbench run --suite {suite.requested or suite.name} --launcher local"
        )
    return [_progress(_updated(entry, ledger), results) for entry in ledger.entries.values()]


def driver_runs(suite: Suite, results: Path) -> bool:
    """Return whether the suite's driver is running; True if it is on another host, which cannot be checked."""
    holder = holder_of(results / SUITES / suite.name)
    return holder is not None and holder.alive


def _updated(entry: LedgerEntry, ledger: Ledger) -> LedgerEntry:
    """Return an entry with what its job has written since the driver's last update."""
    outcome = ledger.job(entry).outcome() if entry.active else None
    if outcome is None:
        return entry
    if outcome.exit_code is None:
        return replace(entry, state=RunState.running, host=outcome.host, changed=outcome.began)
    ended = outcome.began + outcome.seconds
    if outcome.exit_code == ExitCode.OK:
        return replace(entry, state=RunState.done, host=outcome.host, changed=ended)
    # the driver decides whether it has failed
    return replace(entry, state=RunState.pending, host=outcome.host, changed=ended)


def _progress(entry: LedgerEntry, results: Path) -> JobProgress:
    """Count the records of a run, and read the last line of its log."""
    samples, log = results / entry.key / SAMPLES, Path(entry.log)
    done = 0
    if entry.generations and samples.exists():
        with samples.open("rb") as file:
            done = min(sum(line.endswith(b"\n") for line in file), entry.generations)
    last = last_line(log) if entry.active and entry.log else ""
    if entry.state in (RunState.failed, RunState.missing, RunState.invalid):
        last = f"{entry.why}; {log}" if entry.log else entry.why
    return JobProgress(
        entry.key, entry.state, entry.attempt, done, entry.generations, entry.host, entry.changed, last, entry.log
    )


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
