"""The jobs of a suite: RESULTS/suites/NAME/launch.json, written by the driver and read by `specbench status`."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from specbench.config.suite import SuiteRequest
from specbench.files import read_sealed, write_sealed
from specbench.launch.job import Job
from specbench.runs.suite_index import Index

LEDGER, FOLDER = "launch.json", "launch"

State = Literal["waiting", "pending", "running", "done", "failed", "missing"]
FINAL = ("done", "failed", "missing")


def folder_of(request: SuiteRequest) -> Path:
    """Return the folder of a suite's index, ledger and logs."""
    return Index.of(request.suite.name, request.out, bool(request.changes)).path.parent


@dataclass(frozen=True)
class Entry:
    """One run, and its newest job. `attempt` is 0 before the first job.

    `node` is the cluster's name of the machine, if it has one. `changed` is the time of the last change of state.
    `seconds` is the total duration of the run's jobs that have ended.
    """

    key: str
    pair: str
    task: str
    arguments: tuple[str, ...]
    generations: int = 0
    state: State = "waiting"
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
        return self.state in ("pending", "running")


@dataclass(frozen=True)
class _Table:
    launcher: str
    entries: list[Entry]


@dataclass
class Ledger:
    """The entries of a suite's runs by key, in the order of the suite."""

    path: Path
    launcher: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> "Ledger":
        """Return the ledger of a suite's folder, empty if there is none. Raises ConfigError if it is damaged."""
        path = folder / LEDGER
        if not path.exists():
            return cls(path)
        table = read_sealed(path, _Table, "delete it; the runs are kept, and jobs that still run finish them")
        return cls(path, table.launcher, {each.key: each for each in table.entries})

    @property
    def folder(self) -> Path:
        """Where logs and outcomes of jobs are."""
        return self.path.parent / FOLDER

    def job(self, entry: Entry) -> Job:
        """Return the newest job of an entry."""
        return Job(entry.key, entry.arguments, self.folder, entry.attempt, entry.node)

    def put(self, entry: Entry) -> None:
        """Replace an entry, without writing the file."""
        self.entries[entry.key] = entry

    def change(self, key: str, **values: object) -> Entry:
        """Replace values of an entry, and return it."""
        self.entries[key] = entry = replace(self.entries[key], **values)  # type: ignore[arg-type]
        return entry

    def write(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(self.path, asdict(_Table(self.launcher, list(self.entries.values()))), indent=1)
