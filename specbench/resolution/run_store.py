"""What the folders of planned runs hold. Every call reads the folder, since other processes may write to it meanwhile."""

from typing import NamedTuple

from specbench.errors import ConfigError
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.run_folder import SAMPLES, RunRecords, imported_of, load
from specbench.runs.run_state import RunState


class Progress(NamedTuple):
    """How many of a run's generations are recorded, failed ones included, and whether the records are complete.

    A damaged line or a second record of a generation makes them incomplete, even if `done` is the expected number.
    """

    done: int
    is_complete: bool

    @property
    def state(self) -> RunState:
        """The state that the folder shows."""
        return RunState.done if self.is_complete else RunState.begun if self.done else RunState.pending


def records_of(run: PlannedRun) -> RunRecords:
    """Return the generations that a run's folder holds; none for a folder without records.

    Raises ConfigError if it was imported: its records cannot be continued here.
    """
    if origin := imported_of(run.folder):
        raise ConfigError(
            f"{run.folder} was imported from {origin.archive}; help: measure with --out in another folder"
        )
    expected = run.expected
    return load(run.folder, expected) if (run.folder / SAMPLES).exists() else RunRecords([], [], expected)


def progress_of(run: PlannedRun) -> Progress:
    """Return how much of a run its folder holds. Raises ConfigError if it was imported."""
    recorded = records_of(run)
    return Progress(len(recorded.records), recorded.complete)
