"""The loop that submits the missing runs of a suite, follows their jobs, and submits interrupted ones again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specbench.config.construct import Table
from specbench.config.shard import Shard, shards_of
from specbench.errors import ExitCode
from specbench.experiment.scorer import is_scored
from specbench.features.launch.job import Launcher
from specbench.features.launch.job_request import job_request, write_request
from specbench.features.launch.ledger import Ledger, LedgerEntry, folder_of, last_line
from specbench.features.launch.local import local_launcher
from specbench.features.launch.ray_cluster import ray_launcher
from specbench.features.launch.sharding import with_shard
from specbench.features.launch.slurm import slurm_launcher
from specbench.features.suites.grid import Grid, resolve_grid
from specbench.features.suites.suite import SuiteRequest
from specbench.features.suites.suite_runner import train_missing, write_index
from specbench.observer import Observer
from specbench.resolution.run_plan import PlannedRun
from specbench.resolution.run_store import progress_of
from specbench.runs.locking import locked
from specbench.runs.run_state import RunState

MOST_ATTEMPTS = 3  # of a job that is interrupted
FINAL_CODES = (ExitCode.USAGE, ExitCode.MISSING)  # another attempt would end in the same way
SECONDS = 1.0  # between polls


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A suite to measure by a launcher. With `shards`, every run is divided into this number of jobs by its prompts.

    `untimed` says that jobs may share a device, so that times are not valid.
    """

    request: SuiteRequest
    launcher: Launcher
    untimed: bool = False
    shards: int = 0
    attempts: int = MOST_ATTEMPTS
    seconds: float = SECONDS
    ask: Callable[[], bool] = field(default=lambda: False)  # after Ctrl-C: whether to cancel jobs that would go on


def launcher_of(name: str, settings: Table, request: SuiteRequest, folder: Path) -> Launcher:
    """Return the launcher of a name with its settings. `folder` is the suite's.

    Raises ConfigError for an unknown setting, and MissingAsset for a launcher that is not installed or not reachable.
    """
    devices = {line.options.device for line in request.suite.grid}
    if name == "slurm":
        return slurm_launcher(settings, folder)
    if name == "ray":
        return ray_launcher(settings, may_use_gpu=devices != {"cpu"})
    return local_launcher(settings, may_use_gpu=devices != {"cpu"})


def launch(campaign: Campaign, observer: Observer) -> ExitCode:
    """Measure the missing runs of a suite by jobs. Returns the exit code, as `run_suite` does.

    Jobs of an earlier driver that still run are followed, not submitted again. An interrupted job is submitted again while
    its run is incomplete, at most `attempts` times in all. After Ctrl-C, jobs are canceled, or go on without a driver.
    """
    request = campaign.request
    folder = folder_of(request)
    with locked([folder], request.access):
        for reason in train_missing(request.suite, request.out, request.access, observer):
            observer.message(reason)
        with observer.status(f"reading the pairs and tasks of {request.suite.name}"):
            shares = _shares(campaign)
        driver = _Driver(campaign, Ledger.of(folder), shares, observer)
        if campaign.launcher.warning:
            observer.message(campaign.launcher.warning)
        try:
            driver.run()
        except KeyboardInterrupt:
            driver.interrupt()
            raise
        seconds = {entry.key: entry.seconds for entry in driver.ledger.entries.values()}
        reasons = {entry.key: entry.why for entry in driver.ledger.entries.values()}
        codes = [write_index(share.request, share.grid, seconds, reasons) for share in shares]
        failed = any(entry.state in (RunState.failed, RunState.invalid) for entry in driver.ledger.entries.values())
        return max([*codes, ExitCode.SOME_FAILED] if failed else codes)


@dataclass(frozen=True)
class _Share:
    """A suite, or one shard of its runs, with its grid."""

    request: SuiteRequest
    grid: Grid
    shard: Shard | None = None


def _shares(campaign: Campaign) -> list[_Share]:
    """Resolve the suite, or each of its shards."""
    request = campaign.request
    shares: list[tuple[SuiteRequest, Shard | None]] = [(request, None)]
    if campaign.shards:
        parts = shards_of(campaign.shards)
        shares = [(replace(request, suite=with_shard(request.suite, shard)), shard) for shard in parts]
    return [_Share(share, resolve_grid(share.suite, share.out, share.sandbox), shard) for share, shard in shares]


class _Driver:
    """The state of a campaign: the ledger, and the runs by key."""

    def __init__(self, campaign: Campaign, ledger: Ledger, shares: Sequence[_Share], observer: Observer) -> None:
        self.campaign, self.launcher, self.ledger, self.observer = campaign, campaign.launcher, ledger, observer
        self.before, self.same = ledger.entries, ledger.launcher == self.launcher.name
        self.runs: dict[str, PlannedRun] = {}
        ledger.launcher, ledger.entries = self.launcher.name, {}
        for share in shares:
            self._enter(share)
        ledger.write()

    def _enter(self, share: _Share) -> None:
        """Add the entries of a suite or a shard to the ledger. Jobs that outlive an earlier driver are kept."""
        for part in share.grid.parts:
            for run in part.plan.runs if part.plan else []:
                key = run.folder.name
                self.runs[key] = run
                earlier = self.before.get(key)
                entry = LedgerEntry(
                    key, run.spec.pair.name, run.spec.task.name, run.spec.generations,
                    node=earlier.node if earlier else "", seconds=earlier.seconds if earlier else 0.0,
                )  # fmt: skip
                if earlier and self.same and earlier.active and self.launcher.outlives:
                    entry = earlier
                elif self._is_complete(key) and is_scored(run.folder, run.task, part.sandbox):
                    entry = replace(entry, state=RunState.done)
                else:
                    wanted = job_request(self.campaign.request, part.number, key, share.shard, self.campaign.untimed)
                    write_request(self.ledger.job(entry).request_file, wanted)
                self.ledger.put(entry)
            if part.plan is None:
                state = RunState.missing if part.missing else RunState.invalid
                why = part.missing or part.invalid
                self.ledger.put(LedgerEntry(part.key, part.pair, part.task, 0, state, why=why))

    def run(self) -> None:
        """Submit and follow jobs until every run is done or has failed."""
        done = sum(entry.state.is_final for entry in self.ledger.entries.values())
        with self.observer.progress(f"runs by {self.launcher.name}", len(self.ledger.entries), done) as advance:
            while True:
                finished = self._poll()
                self._submit()
                self.ledger.write()
                for _ in range(finished):
                    advance()
                if all(entry.state.is_final for entry in self.ledger.entries.values()):
                    return
                time.sleep(self.campaign.seconds)

    def interrupt(self) -> None:
        """Cancel the jobs. Jobs that can go on without a driver are canceled only if the user confirms."""
        active = {entry.id: self.ledger.job(entry) for entry in self._active()}
        if not active:
            return
        if self.launcher.outlives and not self.campaign.ask():
            are = "1 job is" if len(active) == 1 else f"{len(active)} jobs are"
            self.observer.message(f"{are} still running; run the same command to follow them")
            return
        self.launcher.cancel(active)
        for entry in self._active():
            self.ledger.change(entry.key, state=RunState.pending, why="canceled", changed=time.time())
        self.ledger.write()
        canceled = "1 job" if len(active) == 1 else f"{len(active)} jobs"
        self.observer.message(f"{canceled} canceled; the same command resumes their runs")

    def _active(self) -> list[LedgerEntry]:
        return [entry for entry in self.ledger.entries.values() if entry.active]

    def _poll(self) -> int:
        """Update the entries of active jobs. Returns how many runs are finished by this."""
        active = {entry.id: entry for entry in self._active()}
        states = self.launcher.poll({identifier: self.ledger.job(entry) for identifier, entry in active.items()})
        finished = 0
        for identifier, entry in active.items():
            outcome = self.ledger.job(entry).outcome()
            if identifier not in states:
                finished += self._handle_job_end(entry)
            elif outcome and (entry.state, entry.host) != (RunState.running, outcome.host):
                where = {"host": outcome.host, "node": outcome.node}
                self.ledger.change(entry.key, state=RunState.running, changed=outcome.began, **where)
            elif entry.state is not states[identifier]:  # no outcome yet: what the launcher says
                self.ledger.change(entry.key, state=states[identifier], changed=time.time())
        return finished

    def _handle_job_end(self, entry: LedgerEntry) -> bool:
        """Decide what follows the end of a job. Returns whether its run is finished."""
        job = self.ledger.job(entry)
        outcome = job.outcome()
        code = outcome.exit_code if outcome else None
        seconds = entry.seconds + (outcome.seconds if outcome else 0.0)
        where = {"host": outcome.host, "node": outcome.node, "seconds": seconds} if outcome else {}
        if code in (ExitCode.OK, ExitCode.SOME_FAILED) and self._is_complete(entry.key):
            self.ledger.change(entry.key, state=RunState.done, changed=time.time(), why="", **where)
            return True
        why = job.error or "; ".join(filter(None, [_how_ended(code), last_line(job.log)]))
        if code in FINAL_CODES or entry.attempt >= self.campaign.attempts:
            self.ledger.change(entry.key, state=RunState.failed, changed=time.time(), why=why, **where)
            self.observer.message(f"{entry.key}: {why}; log: {job.log}")
            return True
        self.ledger.change(entry.key, state=RunState.pending, changed=time.time(), why=why, **where)
        self.observer.message(
            f"{entry.key}: attempt {entry.attempt} of {self.campaign.attempts} failed ({why}); submitting again"
        )
        return False

    def _submit(self) -> None:
        """Submit waiting runs, as many as the launcher has room for."""
        waiting = [entry for entry in self.ledger.entries.values() if entry.state is RunState.pending]
        room = self.launcher.free(len(self._active()))
        chosen = [replace(entry, attempt=entry.attempt + 1) for entry in waiting[:room]]
        if not chosen:
            return
        jobs = [self.ledger.job(entry) for entry in chosen]
        for job in jobs:  # of an earlier driver
            job.outcome_file.unlink(missing_ok=True)
            job.log.unlink(missing_ok=True)
            job.error_file.unlink(missing_ok=True)
        for entry, job, identifier in zip(chosen, jobs, self.launcher.submit(jobs), strict=False):
            self.ledger.put(
                replace(entry, state=RunState.queued, id=identifier, log=str(job.log), changed=time.time(), why="")
            )
        self.ledger.write()

    def _is_complete(self, key: str) -> bool:
        return progress_of(self.runs[key]).is_complete


def _how_ended(code: int | None) -> str:
    """Return how a job without an error ended, in words."""
    if code is None:
        return "killed or node lost, without an exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
