"""Jobs, and the protocol of launchers: submit, poll, cancel.

A job measures one run of a suite, as its request file says. It has a log and an outcome file. `python -m
specbench.features.launch.job OUTCOME LOG COMMAND ...` runs it.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from specbench.errors import ConfigError
from specbench.experiment.child_process import JOB, child_environment, command_line
from specbench.files import read_with_checksum, write_with_checksum
from specbench.runs.run_state import RunState

LEASES = "SPECBENCH_LEASES"  # environment variable: descriptors that the command keeps open until it ends
UNLIMITED = sys.maxsize  # jobs that a queue takes


@dataclass(frozen=True)
class JobOutcome:
    """What is known of a job that began: its host, the time in seconds since the epoch, and once it ended its exit code.

    `node` is the cluster's name of the machine, if it has one. `seconds` is how long the job took.
    """

    host: str
    began: float
    node: str = ""
    exit_code: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """One attempt to complete a run. Its request, log, outcome and error are files in `folder`.

    `node` is the one that an earlier attempt ran on, for launchers that can select it; empty for the first attempt.
    """

    key: str
    folder: Path
    attempt: int = 1
    node: str = ""

    @property
    def name(self) -> str:
        """The run and the number of the attempt."""
        return f"{self.key}.{self.attempt}"

    @property
    def request_file(self) -> Path:
        """What all attempts measure, as a `JobRequest`."""
        return self.folder / f"{self.key}.request.json"

    @property
    def log(self) -> Path:
        """Standard output and errors of the command."""
        return self.folder / f"{self.name}.log"

    @property
    def outcome_file(self) -> Path:
        """Where the outcome is written."""
        return self.folder / f"{self.name}.json"

    @property
    def error_file(self) -> Path:
        """Where the command writes the error that ends it."""
        return self.folder / f"{self.name}.error.txt"

    @property
    def error(self) -> str:
        """The error that ended the command; empty if there is none."""
        return self.error_file.read_text("utf-8").strip() if self.error_file.exists() else ""

    @property
    def command(self) -> list[str]:
        """The command line. The process ends with the one that started it."""
        return command_line(JOB, str(self.request_file), str(self.error_file))

    @property
    def performing(self) -> list[str]:
        """The command line of a process that performs the job."""
        return command_line(str(self.outcome_file), str(self.log), *self.command, module=__name__)

    def outcome(self) -> JobOutcome | None:
        """Return the outcome; None if the job has not begun, or if its file is damaged."""
        try:
            return read_with_checksum(self.outcome_file, JobOutcome) if self.outcome_file.exists() else None
        except ConfigError:
            return None


def perform(outcome_file: Path, log: Path, command: Sequence[str], node: str = "", cwd: Path | None = None) -> int:
    """Run a command in `cwd` to its end, and write its outcome. Returns the exit code, negative after a signal."""
    outcome = JobOutcome(socket.gethostname(), time.time(), node)
    outcome_file.parent.mkdir(parents=True, exist_ok=True)
    write_with_checksum(outcome_file, asdict(outcome))
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            pass_fds=[int(fd) for fd in os.environ.get(LEASES, "").split(",") if fd],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(),
        )
        code = process.wait()
    seconds = round(time.time() - outcome.began, 1)
    write_with_checksum(outcome_file, asdict(replace(outcome, exit_code=code, seconds=seconds)))
    return code


class Launcher(Protocol):
    """A queue of jobs. Results and outcomes travel through files only.

    `name` is the value of `--launcher`. `outlives` says that jobs go on after the driver has ended. `warning` is shown before
    jobs are submitted, unless it is empty.
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

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, RunState]:
        """Return the state of jobs by id, queued or running. A job that is left out has ended."""

    def cancel(self, jobs: Mapping[str, Job]) -> None:
        """Stop jobs, by id."""


if __name__ == "__main__":
    sys.exit(perform(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
