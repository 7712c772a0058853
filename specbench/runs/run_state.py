"""The states of a run, which suites, launchers, `plan` and `status` share."""

from enum import StrEnum


class RunState(StrEnum):
    """How far a run is. A folder shows pending, begun and done; a launcher adds queued and running."""

    pending = "pending"  # nothing is recorded
    begun = "begun"  # some generations are recorded, and no job is known to run
    queued = "queued"  # a launcher has submitted its job
    running = "running"  # its job runs
    done = "done"  # every generation is recorded
    failed = "failed"  # it ended with an error
    missing = "missing"  # models or data are missing
    invalid = "invalid"  # a setting is wrong
    too_large = "too large"  # it does not fit on this machine

    @property
    def is_final(self) -> bool:
        """Whether a launcher submits no further job."""
        return self not in (RunState.pending, RunState.begun, RunState.queued, RunState.running)

    @property
    def is_active(self) -> bool:
        """Whether a launcher has the run's job."""
        return self in (RunState.queued, RunState.running)
