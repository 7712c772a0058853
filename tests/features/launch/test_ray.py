"""The Ray launcher, on a real cluster of two nodes on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.errors import ConfigError
from specbench.features.launch.ledger import Ledger
from specbench.features.launch.ray_cluster import ray_launcher
from specbench.features.suites.suite import read_suite
from specbench.runs.locking import holder_of
from specbench.runs.run_folder import ENVIRONMENT, SAMPLES, load
from tests.fixtures import console

ray = pytest.importorskip("ray", reason="needs ray")

SUITE = """
paper = "own"
shows = "Table 1"
description = "token ids"
[options]
limit = 3
repeats = 4
max_new_tokens = 24
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k", "xsum", "humaneval"]
temperature = 0.0
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k"]
temperature = 1.0
"""
GENERATIONS = 2 * 3 * 4  # of a run
PROMPT_DETECTION = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}  # of a lost node
LIMIT = 1200.0  # seconds after which a wait counts as endless


@pytest.fixture
def cluster(monkeypatch):
    """A cluster without nodes that run tasks."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default, other processes of the tests take precedence
    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": PROMPT_DETECTION}
    found = Cluster(initialize_head=True, head_node_args=head)
    yield found
    found.shutdown()


def driver(suite: Path, address: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Start `specbench run` with the Ray launcher."""
    command = [sys.executable, "-P", "-c", "from specbench.cli import main; main()", "run", "--suite", str(suite)]
    settings = [f"address={address}", "untimed=true", "attempts=5"]
    options = [word for each in settings for word in ("--launcher-set", each)]
    with (cwd / "driver.log").open("ab") as log:
        return subprocess.Popen([*command, "--launcher", "ray", *options], cwd=cwd, stdout=log, stderr=log)


def status_of(suite: Path, cwd: Path) -> list[dict[str, object]]:
    done = console.specbench("status", "--suite", suite, "--json", cwd=cwd, code={0, 2})
    return json.loads(done.stdout) if done.stdout.strip() else []


def add_node(cluster, threads):
    """Add a node of two logical GPUs. The number of threads of its jobs is a part of their fingerprint."""
    # Waiting threads yield, since more threads than cores run at the same time
    settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    return cluster.add_node(num_cpus=2, num_gpus=2, env_vars=settings)


def stopped_on(node, results):
    """Return the runs that a node has begun and not completed, and their processes, which are stopped here."""
    found = {}
    for entry in Ledger.of(results / "suites" / "own").entries.values():
        folder = results / entry.key
        samples, holder = folder / SAMPLES, holder_of(folder)
        if entry.node != node.node_id or not samples.exists() or holder is None or not holder.alive:
            continue
        os.kill(holder.pid, signal.SIGSTOP)
        if 1 <= samples.read_bytes().count(b"\n") < GENERATIONS:
            found[entry.key] = holder.pid
        else:
            os.kill(holder.pid, signal.SIGCONT)
    return found


def wait_for(condition, process, cwd, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end and process.poll() in (None, 0), (cwd / "driver.log").read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_a_lost_node_and_a_lost_driver_lose_nothing(cluster, tmp_path):
    """One node is removed without grace, and the driver is killed and started again. Token ids equal those of a local run.

    The runs of the removed node begin again on the other one, whose fingerprint differs, and their records are kept apart.
    """
    suite = tmp_path / "own.toml"
    suite.write_text(SUITE)
    assert len(list(read_suite(str(suite)).parts())) == 4
    nodes = [add_node(cluster, threads) for threads in (2, 1)]
    process, most, moved = driver(suite, cluster.address, tmp_path), 0, {}
    try:

        def running() -> int:
            nonlocal most
            now = sum(each["state"] == "running" for each in status_of(suite, tmp_path))
            most = max(most, now)
            return now

        wait_for(lambda: running() >= 3, process, tmp_path)
        wait_for(lambda: moved.update(stopped_on(nodes[0], tmp_path / "results")) or moved, process, tmp_path)
        cluster.remove_node(nodes[0], allow_graceful=False)
        for pid in moved.values():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: sum(each["state"] == "done" for each in status_of(suite, tmp_path)) >= 2, process, tmp_path)
        process.kill()
        process.wait()
        process = driver(suite, cluster.address, tmp_path)
        assert process.wait(LIMIT) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        process.kill()
    assert most >= 3
    jobs = status_of(suite, tmp_path)
    assert {each["state"] for each in jobs} == {"done"}
    for key in moved:
        environments = [tmp_path / "results" / key / name / ENVIRONMENT for name in ("attempts/1", ".")]
        assert [json.loads(each.read_text())["threads"] for each in environments] == [2, 1]
    console.specbench("run", "--suite", suite, "--out", "alone", cwd=tmp_path)
    folders = sorted(path.parent for path in (tmp_path / "alone").glob("*/run.toml"))
    assert len(folders) == 4
    for folder in folders:
        theirs, ours = load(folder), load(tmp_path / "results" / folder.name)
        assert ours.complete and not ours.problems, "no key has two records"
        assert {r.key: r.tokens for r in ours.records} == {r.key: r.tokens for r in theirs.records}
        assert json.loads((tmp_path / "results" / folder.name / ENVIRONMENT).read_text())["untimed"] is True


def test_a_mistake_in_a_setting_is_named():
    with pytest.raises(ConfigError, match=r"unknown key 'gpu' .did you mean 'gpus'"):
        ray_launcher({"gpu": 1}, may_use_gpu=False)
