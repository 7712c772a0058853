"""The local launcher: processes with GPU leases, which outlive their driver."""

import fcntl
import json
import os
import time

import pytest

from specbench.errors import ConfigError
from specbench.features.launch.job import Job
from specbench.features.launch.local import Gpu, LocalLauncher, gpus_here
from specbench.runs.run_state import RunState
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
tasks = ["gsm8k", "xsum"]
"""


def wait_for(launcher, jobs, state, seconds=60.0):
    """Wait until jobs are in a state; None: until they have ended."""
    end = time.monotonic() + seconds
    while {launcher.poll(jobs).get(job) for job in jobs} != {state}:
        assert time.monotonic() < end, "a job did not reach its state"
        time.sleep(0.05)


@pytest.mark.slow
def test_jobs_run_at_the_same_time_without_times(tmp_path):
    (tmp_path / "own.toml").write_text(SUITE)
    out = "".join(
        console.specbench(
            "run", "--suite", tmp_path / "own.toml", "--launcher", "local", "--launcher-set", "jobs=2", cwd=tmp_path
        )
    )
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*/summary.json")]
    assert len(summaries) == 2 and all(each["complete"] for each in summaries)
    for summary in summaries:
        assert summary["environment"]["untimed"] is True
        (sd,) = (row for row in summary["methods"] if row["method"] == "sd")
        assert "speedup" not in sd and "tokens_per_second" not in sd and sd["acceptance_rate"] > 0.0
        assert sd["rank"] is None and not sd["round_milliseconds"]
    assert "faster" not in out and "1.00x" not in out
    shown = "".join(console.specbench("report", next(iter((tmp_path / "results").glob("*_gsm8k_*"))), cwd=tmp_path))
    assert "untimed" in shown and "speedup" not in shown
    status = json.loads(console.specbench("status", "--suite", tmp_path / "own.toml", "--json", cwd=tmp_path).stdout)
    assert [(each["state"], each["done"], each["total"]) for each in status] == [("done", 4, 4), ("done", 4, 4)]


def test_a_job_can_have_several_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.features.launch.local.tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(Job, "command", property(lambda job: ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]))
    launcher = LocalLauncher([Gpu(f"GPU-{i}", "a card") for i in range(3)], per_job=2)
    assert launcher.free(0) == 1 and launcher.free(1) == 0
    job = Job("run", tmp_path / "launch")
    (identifier,) = launcher.submit([job])
    assert launcher.free(0) == 0
    wait_for(launcher, {identifier: job}, None)
    assert job.log.read_text() == "GPU-0,GPU-1\n" and launcher.free(0) == 1


@pytest.mark.slow
def test_shards_of_a_run_are_jobs_and_are_combined(tmp_path):
    (tmp_path / "own.toml").write_text(SUITE.replace(', "xsum"', ""))
    command = ("run", "--suite", tmp_path / "own.toml", "--shards", 2)
    settings = ("--launcher-set", "jobs=2")
    console.specbench(*command, "--launcher", "local", *settings, cwd=tmp_path)
    status = json.loads(console.specbench("status", "--suite", tmp_path / "own.toml", "--json", cwd=tmp_path).stdout)
    assert [(each["state"], each["done"], each["total"]) for each in status] == [("done", 2, 2)] * 2
    whole = json.loads((tmp_path / "results" / "suites" / "own" / "index.json").read_text())["runs"]
    assert [(each["state"], each["generations"]) for each in whole] == [("done", 4)]


def test_a_gpu_is_leased_until_its_job_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.features.launch.local.tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(Job, "command", property(lambda job: ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 60"]))
    launcher = LocalLauncher([Gpu("GPU-one", "a card"), Gpu("GPU-two", "a card")])
    assert launcher.free(0) == 2 and not launcher.shared
    jobs = [Job(f"run{i}", tmp_path / "launch") for i in range(2)]
    ids = dict(zip(launcher.submit(jobs), jobs, strict=True))
    wait_for(launcher, ids, RunState.running)
    other = LocalLauncher(launcher.gpus)
    assert other.free(0) == 0, "another driver sees the leases"
    assert set(other.poll(ids).values()) == {RunState.running}, "and the jobs"
    assert other.submit([Job("run2", tmp_path / "launch")]) == []
    end = time.monotonic() + 60.0
    while not all(job.log.exists() and job.log.read_bytes() for job in jobs):
        assert time.monotonic() < end, "a job wrote no log"
        time.sleep(0.05)
    launcher.cancel(ids)
    wait_for(launcher, ids, None)
    assert not other.poll(ids)
    while launcher.free(0) < 2:  # a child of the job's process still ends
        time.sleep(0.05)
    logs = sorted((tmp_path / "launch").glob("*.log"))
    assert [path.read_text().strip() for path in logs] == ["GPU-one", "GPU-two"]
    descriptor = os.open(launcher.gpus[0].lease, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert launcher.free(0) == 1
    os.close(descriptor)


def test_on_a_cpu_one_job_runs_at_a_time_unless_more_are_requested():
    assert LocalLauncher().free(0) == 1 and LocalLauncher().free(1) == 0 and not LocalLauncher().shared
    assert LocalLauncher(jobs=3).free(1) == 2 and LocalLauncher(jobs=3).shared
    with pytest.raises(ConfigError, match="gpu = 'a card': none here"):
        gpus_here("a card")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("local", "job=2"), "launcher local: unknown key 'job' (did you mean 'jobs'"),
        (("local", "jobs=-1"), "jobs = -1 must be at least 0"),
        (("local", "absent.toml"), "absent.toml"),
    ],
)
def test_a_mistake_in_a_setting_is_named(settings, message, tmp_path):
    (tmp_path / "own.toml").write_text(SUITE)
    arguments = ("--launcher", settings[0], "--launcher-set", settings[1])
    shown = "".join(console.specbench("run", "--suite", tmp_path / "own.toml", *arguments, cwd=tmp_path, code={2, 4}))
    assert message in shown


def test_an_outcome_says_how_a_command_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "command", property(lambda job: ["sh", "-c", "echo error: no; exit 7"]))
    launcher, job = LocalLauncher(), Job("run", tmp_path)
    (identifier,) = launcher.submit([job])
    wait_for(launcher, {identifier: job}, None)
    assert job.outcome().exit_code == 7 and job.log.read_text() == "error: no\n"
