"""Jobs of a Slurm cluster, by submitit's AutoExecutor."""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from specbench.config.construct import Table, at_least, construct
from specbench.errors import ConfigError, MissingAsset
from specbench.features.launch.job import UNLIMITED, Job, perform
from specbench.files import in_one_line
from specbench.runs.run_state import RunState

HELP = "the launcher slurm needs submitit, which is not installed\n  help: pip install 'specbench[slurm]'"
ALIASES = {  # our settings -> submitit's parameters
    "partition": "slurm_partition", "account": "slurm_account", "qos": "slurm_qos", "constraint": "slurm_constraint",
    "exclusive": "slurm_exclusive", "parallel": "slurm_array_parallelism", "gpus": "gpus_per_node", "minutes": "timeout_min",
    "cpus": "cpus_per_task", "memory_gb": "mem_gb", "setup": "slurm_setup", "additional": "slurm_additional_parameters",
}  # fmt: skip
WRONG = (NameError, TypeError, ValueError, AssertionError)  # submitit's errors for an unknown or wrong parameter
UNKNOWN_POLLS = 15  # polls without an entry in the queue and without an outcome, after which a job has ended
UNKNOWN_JOB = "Invalid job id"  # squeue's error if none of the jobs is in the queue
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "SPECIAL_EXIT")
GOING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING")


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """What sbatch is given: `parallel` jobs of the array at a time, `setup` shell commands, `additional` other parameters.

    `cluster` is slurm, or submitit's local or debug for tests. `minutes` is the time limit of a job.
    """

    cluster: Literal["slurm", "local", "debug"] = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclusive: bool | None = None
    parallel: int | None = None
    gpus: int | None = None
    minutes: int = 24 * 60
    cpus: int | None = None
    memory_gb: int | float | None = None
    setup: tuple[str, ...] | None = None
    additional: dict[str, object] | None = None

    def __post_init__(self) -> None:
        at_least(self, parallel=1, gpus=0, minutes=1, cpus=1, memory_gb=0)


@dataclass
class SlurmLauncher:
    """Jobs of one array."""

    executor: Any
    cluster: Literal["slurm", "local", "debug"]
    name: str = "slurm"
    outlives: bool = True
    warning: str = ""
    shared: bool = False  # jobs without GPUs share their node unless they are exclusive
    _jobs: dict[str, Any] = field(default_factory=dict)  # submitit's jobs by id
    _unknown: dict[str, int] = field(default_factory=dict)

    def free(self, active: int) -> int:
        return UNLIMITED

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        import submitit  # an extra

        try:
            with self.executor.batch():  # one array
                submitted = [self.executor.submit(perform, job.outcome_file, job.log, job.command) for job in jobs]
        except submitit.core.utils.FailedJobError as error:
            raise ConfigError(f"launcher slurm: {in_one_line(error)}") from None
        self._jobs |= {job.job_id: job for job in submitted}
        return [job.job_id for job in submitted]

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, RunState]:
        queued = self._queued(list(jobs)) if self.cluster == "slurm" else {}
        if queued is None:  # no answer: nothing is known but the outcomes
            return _not_ended({identifier: _without_queue(job) for identifier, job in jobs.items()})
        states = {
            identifier: self._state(identifier, job, queued.get(identifier, "")) for identifier, job in jobs.items()
        }
        return _not_ended(states)

    def cancel(self, jobs: Mapping[str, Job]) -> None:
        for identifier in jobs:
            if self.cluster == "slurm":
                _run("scancel", identifier)
            elif job := self._jobs.get(identifier):
                job.cancel(check=False)

    def _state(self, identifier: str, job: Job, queued: str) -> RunState | None:
        """Return the state of a job; None if it has ended."""
        outcome = job.outcome()
        if outcome and outcome.exit_code is not None:
            return None
        if self.cluster != "slurm":
            submitted = self._jobs.get(identifier)
            if submitted is None:
                return None
            if self.cluster == "debug":
                with suppress(Exception):  # the outcome file says how it ended
                    submitted.results()  # which runs it
                return None
            return None if submitted.done() else RunState.running
        if queued:
            self._unknown[identifier] = 0
        if queued in WAITING:
            return RunState.queued
        if queued in GOING:
            return RunState.running
        if not queued:  # submitted a moment ago, or gone
            self._unknown[identifier] = self._unknown.get(identifier, 0) + 1
            return None if self._unknown[identifier] >= UNKNOWN_POLLS else RunState.queued
        return None

    def _queued(self, identifiers: Sequence[str]) -> dict[str, str] | None:
        """Return the states of jobs in Slurm's queue, by id; None if Slurm does not answer, for example while it restarts."""
        if not identifiers:
            return {}
        arrays = sorted({identifier.partition("_")[0] for identifier in identifiers})
        answer = _run("squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={','.join(arrays)}")
        if answer is None or (answer.returncode and UNKNOWN_JOB not in answer.stderr):
            return None
        return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines() if line.strip())


def slurm_launcher(settings: Table, folder: Path) -> SlurmLauncher:
    """Return a launcher with these settings. Raises MissingAsset without submitit or Slurm, ConfigError for a setting."""
    try:
        import submitit  # an extra
    except ImportError:
        raise MissingAsset(HELP) from None
    names = [field.name for field in fields(SlurmSettings)]
    slurm = construct(SlurmSettings, {key: settings[key] for key in settings if key in names}, "launcher slurm")
    named = {name: getattr(slurm, key) for key, name in ALIASES.items()}
    parameters = {"name": "specbench", **{name: value for name, value in named.items() if value is not None}}
    parameters |= {key: settings[key] for key in settings if key not in names}  # submitit's own
    if slurm.setup:
        parameters["slurm_setup"] = list(slurm.setup)
    try:
        executor = submitit.AutoExecutor(folder=str(folder / "submitit"), cluster=slurm.cluster)
        executor.update_parameters(**parameters)
    except WRONG as error:
        raise ConfigError(f"launcher slurm: {in_one_line(error)}; known settings: {', '.join(names)}") from None
    except RuntimeError as error:
        raise MissingAsset(f"launcher slurm: {error}") from None
    return SlurmLauncher(executor, slurm.cluster, shared=not (slurm.gpus or slurm.exclusive))


def _not_ended(states: Mapping[str, RunState | None]) -> dict[str, RunState]:
    return {identifier: state for identifier, state in states.items() if state is not None}


def _without_queue(job: Job) -> RunState | None:
    """Return a job's state by its outcome alone; None if it has ended."""
    outcome = job.outcome()
    if outcome is None:
        return RunState.queued
    return RunState.running if outcome.exit_code is None else None


def _run(*command: str) -> "subprocess.CompletedProcess[str] | None":
    """Run a command; None if it does not end within a minute."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise MissingAsset(
            f"{command[0]} is not installed here; help: run this on a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        return None
