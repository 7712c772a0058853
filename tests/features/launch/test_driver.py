"""The driver of launchers: which runs it submits, what it does after a job has ended, and what it leaves behind."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from specbench.cli.run import SuiteMode
from specbench.config.request import Access
from specbench.config.shard import Shard
from specbench.errors import ConfigError, ExitCode
from specbench.features.launch.driver import Campaign, launch
from specbench.features.launch.job import Job, JobOutcome
from specbench.features.launch.job_request import JobRequest, job_request, perform_request, write_request
from specbench.features.launch.ledger import Ledger, folder_of
from specbench.features.launch.sharding import with_shard
from specbench.features.suites.suite import SuiteRequest, read_suite
from specbench.features.suites.suite_index import Index
from specbench.files import read_with_checksum, write_with_checksum
from specbench.machine.hardware import Environment
from specbench.observer import Observer
from specbench.runs.run_folder import ENVIRONMENT, SAMPLES, load
from tests.fixtures import console

SUITE = """
paper = "own"
shows = "Table 1"
description = "speeds"
[options]
limit = 2
repeats = 1
max_new_tokens = 6
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k", "xsum", "humaneval"]
"""
KILLED = "killed"


@dataclass
class Here:
    """A launcher that performs a job in this process when it is polled, or does what `fates` says of its task."""

    cwd: Path
    fates: dict[str, list[object]] = field(default_factory=dict)  # by task: exit codes or KILLED, attempt by attempt
    room: int = 2
    name: str = "here"
    outlives: bool = True
    warning: str = ""
    shared: bool = False
    submitted: list[str] = field(default_factory=list)
    canceled: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)

    def free(self, active):
        return max(self.room - active, 0)

    def submit(self, jobs):
        self.submitted += [job.name for job in jobs]
        self.nodes += [job.node for job in jobs]
        return [job.name for job in jobs]

    def poll(self, jobs):
        for job in jobs.values():
            self._perform(job)
        return {}

    def cancel(self, jobs):
        self.canceled += list(jobs)

    def _perform(self, job: Job):
        task = next(task for task in ("gsm8k", "xsum", "humaneval") if f"_{task}_" in job.key)
        fate = self.fates.get(task, [])
        result = fate[job.attempt - 1] if job.attempt <= len(fate) else 0
        if result == KILLED:
            return
        code = int(result) if result else 0
        if not code:
            assert perform_request(job.request_file, job.error_file, Observer()) == ExitCode.OK
        job.folder.mkdir(parents=True, exist_ok=True)
        job.log.write_text("")
        if code:
            job.error_file.write_text(f"fate {code}\n")
        write_with_checksum(job.outcome_file, asdict(JobOutcome("a host", time.time(), exit_code=code)))


@pytest.fixture
def request_of(tmp_path):
    (tmp_path / "own.toml").write_text(SUITE)
    suite = read_suite(str(tmp_path / "own.toml"))
    return SuiteRequest(suite=suite, out=tmp_path / "results", access=Access())


def campaign(request: SuiteRequest, launcher: Here, **others) -> Campaign:
    return Campaign(request=request, launcher=launcher, seconds=0.0, **others)


def states_of(request: SuiteRequest) -> dict[str, str]:
    return {entry.task: entry.state for entry in Ledger.of(folder_of(request)).entries.values()}


def test_every_run_becomes_one_job_and_the_index_is_that_of_a_local_run(request_of, tmp_path):
    launcher = Here(tmp_path)
    assert launch(campaign(request_of, launcher), Observer()) == ExitCode.OK
    assert len(launcher.submitted) == 3 and set(states_of(request_of).values()) == {"done"}
    console.specbench("run", "--suite", tmp_path / "own.toml", "--out", "alone", cwd=tmp_path)
    one, other = (
        json.loads((tmp_path / each / "suites/own/index.json").read_text())["runs"] for each in ("results", "alone")
    )
    assert [(r["key"], r["state"]) for r in one] == [(r["key"], r["state"]) for r in other]
    assert [r["generations"] for r in one] == [r["generations"] for r in other] == [4, 4, 4]
    for run in one:
        ours, theirs = (load(tmp_path / each / run["folder"]).records for each in ("results", "alone"))
        assert {r.key: r.tokens for r in ours} == {r.key: r.tokens for r in theirs}
    assert launch(campaign(request_of, again := Here(tmp_path)), Observer()) == ExitCode.OK
    assert again.submitted == [], "complete runs are not submitted again"


def test_interrupted_jobs_are_submitted_again_and_final_codes_are_not(request_of, tmp_path):
    fates = {"gsm8k": [KILLED, 143], "xsum": [KILLED] * 5, "humaneval": [ExitCode.USAGE]}
    launcher = Here(tmp_path, fates)
    assert launch(campaign(request_of, launcher), Observer()) == ExitCode.SOME_FAILED
    attempts = {task: sum(f"_{task}_" in name for name in launcher.submitted) for task in fates}
    assert attempts == {"gsm8k": 3, "xsum": 3, "humaneval": 1}
    assert states_of(request_of) == {"gsm8k": "done", "xsum": "failed", "humaneval": "failed"}
    entries = {entry.task: entry for entry in Ledger.of(folder_of(request_of)).entries.values()}
    assert entries["humaneval"].why == "fate 2" and entries["humaneval"].log
    index = Index.of(request_of.suite.name, request_of.out).runs.values()
    assert {run.task: run.why for run in index}["humaneval"] == "fate 2"
    assert entries["xsum"].why == "killed or node lost, without an exit code" and entries["gsm8k"].host == "a host"
    shown = "".join(console.specbench("status", "--suite", tmp_path / "own.toml", cwd=tmp_path))
    assert "1 done, 2 failed" in shown and "4 of 4" in shown and "fate 2" in shown


def test_the_outcome_of_an_earlier_driver_does_not_count(request_of, tmp_path):
    """A job failed for good. After the cause is removed, the same command submits it again."""
    assert launch(campaign(request_of, Here(tmp_path, {"xsum": [4]})), Observer()) == ExitCode.SOME_FAILED
    found: list[bool] = []

    class Looking(Here):
        def submit(self, jobs):
            found.extend(job.outcome_file.exists() or job.log.exists() for job in jobs)
            return super().submit(jobs)

    assert launch(campaign(request_of, Looking(tmp_path)), Observer()) == ExitCode.OK
    assert found == [False]


def test_jobs_without_room_are_submitted_later(request_of, tmp_path):
    class Narrow(Here):
        def submit(self, jobs):
            return super().submit(jobs[:1])

    launcher = Narrow(tmp_path)
    assert launch(campaign(request_of, launcher), Observer()) == ExitCode.OK
    assert len(launcher.submitted) == 3
    assert {entry.attempt for entry in Ledger.of(folder_of(request_of)).entries.values()} == {1}


def test_a_run_that_was_decoded_but_not_scored_is_submitted(request_of, tmp_path):
    assert launch(campaign(request_of, Here(tmp_path)), Observer()) == ExitCode.OK
    next((tmp_path / "results").glob("*_xsum_*/scores.json")).unlink()
    launcher = Here(tmp_path)
    assert launch(campaign(request_of, launcher), Observer()) == ExitCode.OK
    assert len(launcher.submitted) == 1 and "_xsum_" in launcher.submitted[0]


def test_another_driver_follows_jobs_that_run(request_of, tmp_path):
    class Stopped(Here):
        def poll(self, jobs):
            raise KeyboardInterrupt

    first = campaign(request_of, Stopped(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        launch(first, Observer())
    assert first.launcher.submitted == [], "the first poll comes before the first submission"
    ledger = Ledger.of(folder_of(request_of))
    for entry in list(ledger.entries.values()):
        ledger.change(entry.key, state="running", attempt=1, id=f"{entry.key}.1")
    ledger.write()
    second = Here(tmp_path)
    assert launch(campaign(request_of, second), Observer()) == ExitCode.OK
    assert second.submitted == []


def test_jobs_that_end_with_their_driver_are_submitted_again_and_count_as_first_attempts(request_of, tmp_path):
    launch(campaign(request_of, Here(tmp_path, {"xsum": [2]}, outlives=False)), Observer())
    ledger = Ledger.of(folder_of(request_of))
    for entry in list(ledger.entries.values()):  # as if the driver was killed
        ledger.change(entry.key, state="running", attempt=3, id=f"{entry.key}.3", node="a node")
    ledger.write()
    second = Here(tmp_path, outlives=False)
    assert launch(campaign(request_of, second), Observer()) == ExitCode.OK
    assert [name.rpartition(".")[2] for name in second.submitted] == ["1"] and "_xsum_" in second.submitted[0]
    assert second.nodes == ["a node"], "the node of its records is preferred"


@pytest.mark.parametrize(("cancels", "state"), [(False, "queued"), (True, "pending")])
def test_after_an_interrupt_jobs_go_on_or_are_canceled(request_of, tmp_path, cancels, state):
    class Interrupted(Here):
        def poll(self, jobs):
            if jobs:
                raise KeyboardInterrupt
            return {}

    launcher = Interrupted(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        launch(campaign(request_of, launcher, ask=lambda: cancels), Observer())
    assert list(states_of(request_of).values()).count(state) >= 2
    assert len(launcher.canceled) == (2 if cancels else 0)


def test_a_run_of_another_machine_restarts_and_the_old_attempt_is_kept(request_of, tmp_path):
    launch(campaign(request_of, Here(tmp_path)), Observer())
    (folder,) = (path.parent for path in (tmp_path / "results").glob("*_gsm8k_*/samples.jsonl"))
    lines = (folder / SAMPLES).read_bytes().splitlines(keepends=True)
    (folder / SAMPLES).write_bytes(b"".join(lines[:2]))  # interrupted
    environment = read_with_checksum(folder / ENVIRONMENT, Environment)
    write_with_checksum(folder / ENVIRONMENT, {**environment, "cpu": "another processor"}, indent=2)
    paths = tmp_path / "request.json", tmp_path / "error.txt"
    write_request(paths[0], job_request(request_of, 1, folder.name, None, untimed=False))
    perform_request(*paths, Observer())
    assert load(folder).complete and read_with_checksum(folder / ENVIRONMENT, Environment)["cpu"] == environment["cpu"]
    kept = folder / "attempts" / "1"
    assert (kept / SAMPLES).read_bytes() == b"".join(lines[:2])
    assert read_with_checksum(kept / ENVIRONMENT, Environment)["cpu"] == "another processor"
    before = (folder / SAMPLES).stat().st_mtime_ns
    perform_request(*paths, Observer())
    assert (folder / SAMPLES).stat().st_mtime_ns == before and not (folder / "attempts" / "2").exists()


def test_a_suite_has_no_other_runs(request_of, tmp_path):
    path, error = tmp_path / "request.json", tmp_path / "error.txt"
    write_request(path, job_request(request_of, 1, "sd_tiny_gsm8k_00000000", None, untimed=False))
    with pytest.raises(ConfigError, match="has no run sd_tiny_gsm8k_00000000"):
        perform_request(path, error, Observer())
    assert "has no run sd_tiny_gsm8k_00000000" in error.read_text(), "the driver reads it"


def test_a_request_file_holds_the_options_that_the_user_replaced(tmp_path):
    (tmp_path / "own.toml").write_text(SUITE)
    replaced = {"limit": 1, "gamma": (("", (2,)),), "overrides": (("task.shots", 0),)}
    suite = read_suite(str(tmp_path / "own.toml"), **replaced)
    request = SuiteRequest(suite=suite, out=tmp_path / "results", access=Access(), replaced=replaced)
    job = job_request(request, 2, "a run", Shard(1, 2), untimed=True)
    write_request(tmp_path / "request.json", job)
    read = read_with_checksum(tmp_path / "request.json", JobRequest)
    again = read.suite_request()
    assert (read.part, read.shard, read.access.untimed) == (2, Shard(1, 2), True)
    assert again.suite == with_shard(suite, Shard(1, 2)) and dict(again.replaced) == replaced


def test_status_needs_a_suite_that_a_launcher_has_run(request_of, tmp_path):
    shown = "".join(console.specbench("status", "--suite", tmp_path / "own.toml", cwd=tmp_path, code=2))
    assert "no launcher has run own" in shown
    with pytest.raises(ConfigError, match="--launcher-set needs --launcher"):
        SuiteMode(settings=("jobs=2",))
