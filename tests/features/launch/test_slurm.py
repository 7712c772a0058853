"""The Slurm launcher, on submitit's own local and debug clusters."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from scripts import local_slurm
from specbench.config.request import Access
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.features.launch import slurm
from specbench.features.launch.driver import Campaign, launch
from specbench.features.launch.job import Job
from specbench.features.launch.ledger import LEDGER, Ledger, folder_of
from specbench.features.launch.slurm import slurm_launcher
from specbench.features.suites.suite import SuiteRequest, read_suite
from specbench.observer import Observer
from specbench.runs.run_folder import SAMPLES, load
from specbench.runs.run_state import RunState
from tests.features.launch.test_local import SUITE

pytest.importorskip("submitit", reason="needs submitit")


@pytest.fixture
def request_of(tmp_path):
    (tmp_path / "own.toml").write_text(SUITE)
    return SuiteRequest(suite=read_suite(str(tmp_path / "own.toml")), out=tmp_path / "results", access=Access())


def campaign(request, cluster, tmp_path):
    launcher = slurm_launcher({"cluster": cluster, "minutes": 5}, folder_of(request))
    return Campaign(request=request, launcher=launcher, untimed=True, seconds=0.2)


# submitit does not close its log files
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_the_debug_cluster_runs_a_suite(request_of, tmp_path):
    (line,) = request_of.suite.grid
    suite = replace(request_of.suite, grid=(replace(line, tasks=line.tasks[:1]),))
    (tmp_path / "own.toml").write_text(SUITE.replace(', "xsum"', ""))
    assert launch(campaign(replace(request_of, suite=suite), "debug", tmp_path), Observer()) == ExitCode.OK
    assert len(list((tmp_path / "results").glob("*/summary.json"))) == 1


@pytest.mark.slow
def test_a_preempted_job_is_submitted_again_and_resumes(request_of, tmp_path):
    """The job of one run is killed, with all of its processes, after its first record."""
    found = campaign(request_of, "local", tmp_path)
    poll, killed = found.launcher.poll, []

    def polled(jobs):
        for identifier in jobs:
            samples = tmp_path / "results" / jobs[identifier].key / SAMPLES
            if not killed and samples.exists() and samples.read_bytes().count(b"\n"):
                killed.append((identifier, samples.read_bytes().count(b"\n")))
                _kill(found.launcher._jobs[identifier]._process.pid)
        return poll(jobs)

    found.launcher.poll = polled
    assert launch(found, Observer()) == ExitCode.OK
    entries = Ledger.of(folder_of(request_of)).entries.values()
    assert killed and sorted(entry.attempt for entry in entries) == [1, 2]
    for entry in entries:
        assert load(tmp_path / "results" / entry.key).complete
    for job in found.launcher._jobs.values():  # submitit does not wait for them
        job._process.wait()


def _kill(pid: int) -> None:
    """Kill a process and its descendants."""
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for each in children:
        _kill(each)
    os.kill(pid, signal.SIGKILL)


def test_states_of_the_queue(tmp_path, monkeypatch):
    """A job that Slurm does not list has ended if it left an outcome, or after a few polls."""
    launcher = slurm_launcher({"cluster": "debug"}, tmp_path)
    launcher.cluster = "slurm"
    monkeypatch.setattr(slurm, "UNKNOWN_POLLS", 3)
    jobs = {f"7_{i}": Job(f"run{i}", tmp_path) for i in range(5)}
    listed = "7_0 PENDING\n7_1 RUNNING\n7_2 COMPLETING\n7_3 PREEMPTED\n"
    monkeypatch.setattr(subprocess, "run", lambda command, **options: CompletedProcess(command, 0, listed, ""))
    states = [launcher.poll(jobs) for _ in range(3)]
    expected = {"7_0": RunState.queued, "7_1": RunState.running, "7_2": RunState.running}
    unlisted = {"7_4": RunState.queued}
    assert states == [expected | unlisted, expected | unlisted, expected]


@pytest.mark.parametrize(
    "answer", [None, CompletedProcess((), 1, "", "slurm_load_jobs error: Unable to contact slurm")]
)
def test_a_queue_that_does_not_answer_ends_no_job(answer, tmp_path, monkeypatch):
    launcher = slurm_launcher({"cluster": "debug"}, tmp_path)
    launcher.cluster = "slurm"

    def asked(command, timeout, **options):
        if answer is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return answer

    monkeypatch.setattr(subprocess, "run", asked)
    jobs = {"7_0": Job("run", tmp_path)}
    assert [launcher.poll(jobs)["7_0"] for _ in range(5)] == [RunState.queued] * 5


@pytest.mark.skipif(bool(local_slurm.missing()), reason="needs root, slurm-wlm and munge")
def test_a_real_cluster_runs_a_suite_as_an_array_of_two(tmp_path):
    """The driver is killed while jobs run. The next one follows them, and submits none twice."""
    (tmp_path / "own.toml").write_text(SUITE)
    settings = ("cpus=1", "parallel=2", "minutes=10", "untimed=true")
    options = [word for each in settings for word in ("--launcher-set", each)]
    command = [sys.executable, "-P", "-c", "from specbench.cli import main; main()", "run", "--suite", "own.toml"]
    command += ["--launcher", "slurm", *options]
    with local_slurm.cluster() as environment, (tmp_path / "driver.log").open("wb") as log:
        first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        ledger = tmp_path / "results" / "suites" / "own" / LEDGER
        end = time.monotonic() + 120.0
        while not ledger.exists() or not any(each.id for each in Ledger.of(ledger.parent).entries.values()):
            assert time.monotonic() < end and first.poll() is None, (tmp_path / "driver.log").read_text()
            time.sleep(0.1)
        first.kill()
        first.wait()
        before = {key: each.id for key, each in Ledger.of(ledger.parent).entries.items()}
        subprocess.run(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, check=True, timeout=300)
        entries = Ledger.of(ledger.parent).entries
    assert {key: each.id for key, each in entries.items()} == before, "the jobs of the first driver"
    assert {each.partition("_")[0] for each in before.values()} == {"1"} and len(before) == 2, "one array"
    assert [(each.state, each.attempt) for each in entries.values()] == [("done", 1)] * 2
    assert all(load(tmp_path / "results" / key).complete for key in entries)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster": "pbs"}, "cluster = 'pbs'"),
        ({"cluster": "debug", "gpus": "x"}, "gpus = 'x' must be of type int"),
        ({"cluster": "debug", "minutes": 0}, "minutes = 0 must be at least 1"),
        ({"cluster": "debug", "gpus_per_node": "x"}, 'Parameter "gpus_per_node" expected type'),
        ({"cluster": "debug", "partitoin": "a"}, r"partitoin.*; known settings: cluster, partition, .*, additional$"),
    ],
)
def test_a_mistake_in_a_setting_is_named(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        slurm_launcher(settings, tmp_path)


def test_without_slurm_the_message_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingAsset, match=r"launcher slurm: .*srun"):
        slurm_launcher({}, tmp_path)


def test_settings_become_parameters_of_submitit(tmp_path):
    launcher = slurm_launcher({"cluster": "local", "minutes": 90, "gpus": 1, "partition": "a100"}, tmp_path)
    parameters = launcher.executor._executor.parameters
    assert parameters["timeout_min"] == 90 and parameters["gpus_per_node"] == 1
