"""The states of a suite's runs: RESULTS/suites/NAME/index.json, written by `run`, read by report and reproduce.

A suite run with other options has its own index, changed.json, so that a trial does not overwrite measurements.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from specbench.files import read_with_checksum, write_with_checksum
from specbench.runs.run_folder import CONFIG
from specbench.runs.run_state import RunState
from specbench.vocabulary import Simulation

SUITES = "suites"
INDEX_FILE, CHANGED_INDEX_FILE = "index.json", "changed.json"

EXCHANGED = ("data", "heads", "overrides")  # options that replace a suite's models, heads, data or settings


@dataclass(frozen=True)
class Change:
    """An option of a suite that the user replaced, and its value in words."""

    option: str
    value: str

    def __str__(self) -> str:
        return f"{self.option} = {self.value}"


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """One run, or one part of a suite that could not be resolved.

    Args:
        key: the run folder's name, or the pair, task and methods of a part that could not be resolved.
        why: the reason why the run is not done, or why some of its generations failed.
        seconds: measuring time, added up over resumed runs.
        folder: the run folder below the results; empty for a part that could not be resolved.
        generations, failed: counts of a run that is done.
        simulated: what is not real about the models.
        levels: the models of a profile's chain, the target first.
    """

    key: str
    state: RunState
    pair: str = ""
    task: str = ""
    why: str = ""
    seconds: float = 0.0
    folder: str = ""
    generations: int = 0
    failed: int = 0
    simulated: Simulation = Simulation.none
    levels: tuple[str, ...] = ()


@dataclass
class IndexTable:
    """A suite's index.json. `definition` is the suite's `definition` when all of its runs were last measured."""

    runs: list[IndexEntry]
    suite: str = ""
    definition: str = ""
    changes: list[Change | str] = field(default_factory=list)  # text in indexes of earlier revisions


@dataclass
class Index:
    """The entries of a suite's runs by key."""

    path: Path
    runs: dict[str, IndexEntry] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)  # options that replaced the suite's
    definition: str = ""  # as in `IndexTable`; empty if it is not known

    @classmethod
    def of(cls, suite: str, results: Path, changed: bool = False) -> "Index":
        """Return the index of a suite, or of its runs with other options; empty if there is none."""
        path = results / SUITES / suite / (CHANGED_INDEX_FILE if changed else INDEX_FILE)
        if not path.exists():
            return cls(path)
        stored = read_with_checksum(path, IndexTable, "restore or delete it; the suite's runs are kept")
        return cls(
            path, {entry.key: entry for entry in stored.runs}, list(map(_change, stored.changes)), stored.definition
        )

    @classmethod
    def any_of(cls, suite: str, results: Path) -> "Index":
        """Return the suite's own index, or the index of its runs with other options if only that one has runs here."""
        index, changed = cls.of(suite, results), cls.of(suite, results, changed=True)
        return changed if changed.measured(results) and not index.measured(results) else index

    def measured(self, results: Path) -> "list[IndexEntry]":
        """Return the runs that are done and whose folders are here."""
        return [run for run in self.done if run.folder and (results / run.folder / CONFIG).exists()]

    def record(self, entry: IndexEntry, resumed: bool = True) -> None:
        """Replace the entry of a run, adding the seconds of the earlier one if the run was resumed."""
        earlier = self.runs.get(entry.key) if resumed else None
        seconds = entry.seconds + (earlier.seconds if earlier else 0.0)
        self.runs[entry.key] = replace(entry, seconds=round(seconds, 1))

    def keep(self, keys: list[str]) -> None:
        """Write the runs of these keys in this order. Others are removed from the index."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.runs = {key: self.runs[key] for key in keys}
        table = IndexTable(list(self.runs.values()), self.path.parent.name, self.definition, list(self.changes))
        write_with_checksum(self.path, asdict(table), indent=1)

    @property
    def swaps(self) -> bool:
        """Whether the changes replaced the suite's models, heads, data or settings."""
        return any(change.option in EXCHANGED for change in self.changes)

    @property
    def done(self) -> list[IndexEntry]:
        """The runs that are done."""
        return [run for run in self.runs.values() if run.state is RunState.done]

    @property
    def complete(self) -> bool:
        """Whether all runs are done, without failed generations."""
        return bool(self.runs) and len(self.done) == len(self.runs) and not self.failures

    @property
    def failures(self) -> int:
        """The number of failed generations in runs that are done."""
        return sum(run.failed for run in self.done)

    @property
    def minutes(self) -> float:
        """The measuring time of all runs."""
        return sum(run.seconds for run in self.runs.values()) / 60


def _change(stored: Change | str) -> Change:
    """Return a change as it is stored now, or as `option = value` in an index of an earlier revision."""
    if isinstance(stored, Change):
        return stored
    option, _, value = stored.partition(" = ")
    return Change(option, value)
