"""The protocol of launchers: submit, poll, cancel."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from specbench.launch.job import Job

UNLIMITED = sys.maxsize  # jobs that a queue takes


class JobState(StrEnum):
    """The state of a job in its launcher's queue."""

    pending = "pending"
    running = "running"
    ended = "ended"


class Launcher(Protocol):
    """A queue of jobs. Results and outcomes travel through files only.

    `name` is that of `--launcher`. `outlives` says that jobs go on after the driver has ended. `warning` is shown before jobs
    are submitted, unless it is empty.
    """

    name: str
    outlives: bool
    warning: str

    @property
    def shared(self) -> bool:
        """Whether jobs may share a device, so that timings are invalid."""

    def free(self, active: int) -> int:
        """Return how many more jobs may be submitted, given the number of active ones."""

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Submit jobs. Returns an id for each, by which another driver can find it.

        If there is no room for the last ones, they are not submitted, and have no id.
        """

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, JobState]:
        """Return the state of jobs by id. A job that the launcher does not know has ended."""

    def cancel(self, jobs: Mapping[str, Job]) -> None:
        """Stop jobs, by id."""
