"""One process per folder: a second one ends, waits, or takes over what is left of a dead one; no generation counts twice."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.config.request import Access
from specbench.runs import locking
from specbench.runs.locking import locked
from tests.fixtures.console import specbench

FEW = ["run", "-m", "sd", "-t", "gsm8k", "-n", "2", "--repeats", "1", "--max-new-tokens", "4"]
PROGRAM = [str(Path(sys.executable).parent / "specbench")]


@pytest.fixture(scope="module")
def done_run(tmp_path_factory):
    """A finished run of two prompts."""
    where = tmp_path_factory.mktemp("run")
    specbench(*FEW, cwd=where)
    return where


@pytest.fixture
def run(done_run, tmp_path):
    """A copy of it, and its folder."""
    (source,) = (done_run / "results").iterdir()
    folder = tmp_path / "results" / source.name
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def holder(run):
    """Another process that holds the run's lock, as `.lock.json` names it."""
    code = f"""
import sys
from pathlib import Path
from specbench.runs.locking import FolderLock
from specbench.config.request import Access
lock = FolderLock(Path({str(run)!r}))
lock.acquire(Access())
print("held", flush=True)
sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def lines(folder):
    return (folder / "samples.jsonl").read_text().splitlines()


def test_a_second_process_ends_at_once_and_names_the_first(run, holder):
    before = lines(run)
    done = specbench(*FEW, cwd=run.parents[1], code=4)
    assert f"process {holder.pid} on {socket.gethostname()}" in done.stderr
    assert "--wait" in done.stderr
    specbench("score", run, cwd=run.parents[1], code=4)
    assert lines(run) == before


def test_wait_waits_until_the_other_process_has_finished(run, holder, monkeypatch):
    states, real_sleep = [], time.sleep

    def sleep(seconds):
        states.append(holder.poll())
        holder.stdin.close()
        real_sleep(seconds)

    monkeypatch.setattr(locking.time, "sleep", sleep)
    done = specbench(*FEW, "--wait", cwd=run.parents[1])
    assert states[0] is None, "the other process runs when the first poll ends"
    assert done.stderr.startswith(f"waiting for process {holder.pid}")
    assert "speedup" in done.stdout


def test_the_lock_of_a_killed_process_is_taken_over(run, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (run / ".lock.json").exists()
    specbench(*FEW, cwd=run.parents[1])


def test_a_lock_of_another_host_is_broken_only_on_demand(run, holder):
    owner = json.loads((run / ".lock.json").read_text())
    (run / ".lock.json").write_text(json.dumps(owner | {"host": "elsewhere"}))
    done = specbench(*FEW, cwd=run.parents[1], code=4)
    assert "on elsewhere" in done.stderr
    assert "--break-lock" in done.stderr
    specbench(*FEW, "--break-lock", cwd=run.parents[1])


def test_the_lock_of_a_live_process_of_this_host_is_never_broken(run, holder):
    done = specbench(*FEW, "--break-lock", cwd=run.parents[1], code=4)
    assert f"kill {holder.pid}" in done.stderr


def test_a_process_whose_lock_was_broken_writes_no_further_record(tmp_path):
    """The running command is stopped, its lock is named after another process, and it goes on."""
    many = [*PROGRAM, "run", "-m", "sd", "-t", "gsm8k", "-n", "32", "--repeats", "9", "--max-new-tokens", "4"]
    with subprocess.Popen(many, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        until = time.monotonic() + 120
        while not list(tmp_path.glob("results/*/samples.jsonl")) and time.monotonic() < until:
            time.sleep(0.02)
        (samples,) = tmp_path.glob("results/*/samples.jsonl")
        while not samples.stat().st_size and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        before = samples.read_bytes()
        owner = {"pid": os.getpid(), "host": "elsewhere", "token": "another"}
        (samples.parent / ".lock.json").write_text(json.dumps(owner))
        process.send_signal(signal.SIGCONT)
        message = process.stderr.read()
        assert process.wait(120) == 4, message
    after = samples.read_bytes()
    assert "elsewhere" in message
    assert after.count(b"\n") <= before.count(b"\n") + 1  # one may have been past its check when it was stopped


@pytest.mark.parametrize("distinct", [4, 2])
def test_duplicate_records_are_rejected_by_run_and_reported_by_report(run, distinct):
    """Two records per generation are neither a complete run nor one with 48 of 24 generations."""
    whole = lines(run)[:distinct]
    (run / "samples.jsonl").write_text("\n".join([*whole, *whole]) + "\n")
    done = specbench(*FEW, cwd=run.parents[1], code=2)
    assert "a second record of" in done.stderr
    assert "--fresh" in done.stderr
    summary = json.loads(specbench("report", run, "-f", "json", cwd=run.parents[1]).stdout)[0]
    assert not summary["complete"]
    assert len(summary["problems"]) == distinct
    assert sum(row["generations"] for row in summary["methods"]) == distinct
    assert "second record" in specbench("report", run, cwd=run.parents[1]).stdout
    specbench(*FEW, "--fresh", cwd=run.parents[1])
    assert json.loads(specbench("report", run, "-f", "json", cwd=run.parents[1]).stdout)[0]["complete"]


def test_locks_are_acquired_in_path_order(tmp_path):
    """A process that waits for the first folder holds no later one, whatever order it was given."""
    code = (
        "import sys; from pathlib import Path\n"
        "from specbench.config.request import Access; from specbench.runs.locking import locked\n"
        "with locked(map(Path, sys.argv[1:]), Access(wait=True)): print('locked', flush=True)\n"
    )
    first, second = tmp_path / "a", tmp_path / "b"
    with locked([first], Access()):
        waiting = subprocess.Popen(
            [sys.executable, "-c", code, str(second), str(first)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert waiting.stderr.readline().startswith("waiting for process")
        with locked([second], Access()):
            pass
    assert waiting.communicate(timeout=60)[0] == "locked\n"


@pytest.mark.slow
def test_concurrent_suites_write_one_index(tmp_path):
    suite = (
        'paper = "p"\nshows = "s"\ndescription = "d"\n[options]\nmax_new_tokens = 4\nrepeats = 1\nlimit = 1\n'
        '[[grid]]\nmethods = ["sd"]\npairs = ["tiny"]\ntasks = ["gsm8k", "wmt"]\n'
    )
    (tmp_path / "own.toml").write_text(suite)
    command = [*PROGRAM, "run", "--suite", "own.toml", "--wait"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=240)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    index = json.loads((tmp_path / "results/suites/own/index.json").read_text())
    assert [run["state"] for run in index["runs"]] == ["done", "done"]
    for run in index["runs"]:
        rows = [json.loads(line) for line in lines(tmp_path / "results" / run["folder"])]
        assert len(rows) == len({(row["method"], row["sample"]) for row in rows}) == 2
