"""`specbench doctor`: what it finds here, and what it says of machines that are worse."""

import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from huggingface_hub import constants

from specbench.cli import doctor as checkup
from specbench.cli.doctor import Check, bundled, clock, cpu, disk, gpu, hub, load, sandbox
from specbench.config.pair import PACKAGE
from specbench.machine.threads import Cores
from specbench.sandbox import NoSandbox
from tests.fixtures.console import specbench

EVERY = (
    "python, torch, transformers, cpu, load, memory, cpu kernels, gpu, memory bandwidth, clock, disk for results,"
    " disk for models, hub, hub token, sandbox, torchao, gguf, matplotlib, bundled"
).split(", ")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the command says of this machine, by check; the hub is not queried."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        checks = json.loads(specbench("doctor", "--json", cwd=tmp_path_factory.mktemp("doctor")).stdout)
    return {check["name"]: check for check in checks}


def test_every_check_runs_and_failed_ones_give_advice(found):
    assert [name for name in found if name != "gpu processes"] == EVERY
    assert {check["state"] for check in found.values()} <= {"ok", "warn"}
    assert all(check["help"] for check in found.values() if check["state"] != "ok")
    assert found["python"]["state"] == found["torch"]["state"] == found["bundled"]["state"] == "ok"
    assert float(found["memory bandwidth"]["found"].split()[0]) > 0


def test_offline_mode_is_reported(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = {check.name: check for check in hub()}["hub"]
    assert (found.state, found.found) == ("warn", "offline mode is on (HF_HUB_OFFLINE)")


def test_a_missing_requirement_exits_with_4_and_skips_checks_that_need_it(monkeypatch, tmp_path):
    version = metadata.version

    def without_torch(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_torch)
    done = specbench("doctor", cwd=tmp_path, code=4)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [words[:2] for words in lines] == [["ok", "python"], ["fail", "torch"], ["ok", "transformers"]]
    assert "help: pip install torch" in done.stdout


def test_an_unsteady_clock_is_a_warning():
    assert clock([1.0, 1.0, 1.01, 1.0, 1.02]).state == "ok"
    wild = clock([1.0, 1.0, 1.3, 1.0, 1.0])
    assert wild.state == "warn"
    assert "30.0%" in wild.found


def test_a_busy_machine_and_too_many_threads_are_warnings(monkeypatch):
    machine = {"cpu": "X", "cores": 4, "threads": 4096, "load_1min": 3.0}
    assert load(machine).state == "warn"
    assert load(machine | {"load_1min": 1.0}).state == "ok"
    cores = Cores(allowed=4, busy=1.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    assert "OMP_NUM_THREADS gives 4096" in cpu(machine, cores).help
    assert cpu(machine | {"threads": 1}, cores).state == "ok"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cpu(machine, cores) == Check("cpu", "ok", "X, 4 of 4 cores, 3 free")


@pytest.mark.parametrize(
    ("others", "state", "said"),
    [(None, "warn", "no nvidia-smi"), ([], "ok", "none"), (["17, python, 3 MiB"], "warn", "17, python, 3 MiB")],
)
def test_a_gpu_is_reported_with_its_clocks_and_other_processes(others, state, said, monkeypatch):
    monkeypatch.setattr(checkup, "gpu_processes", lambda: others)
    device, neighbours = gpu({"name": "H200", "driver_version": "1.2", "power.limit": "700 W"})
    assert device.found == "H200, driver_version 1.2, power.limit 700 W"
    assert neighbours.state == state
    assert said in neighbours.found


def test_a_full_or_read_only_disk_is_a_warning(tmp_path):
    assert disk("disk", tmp_path / "not" / "there", 1).state == "ok"
    assert disk("disk", tmp_path, 1 << 62).state == "warn"
    assert disk("disk", Path("/proc/1"), 1).state == "warn"


def test_a_missing_sandbox_is_reported_with_what_was_tried(monkeypatch):
    def fail(kind):
        raise NoSandbox([(kind, "not installed")])

    monkeypatch.setattr(checkup.Sandbox, "find", fail)
    check = sandbox()
    assert (check.state, check.found) == ("warn", "bwrap: not installed; unshare: not installed")


@pytest.mark.parametrize(
    ("lacking", "state", "found"),
    [
        ([], "ok", "bwrap works; unshare: no seccomp filter (Invalid argument)"),
        (
            ["oom_score_adj not raised"],
            "warn",
            "bwrap works, but: oom_score_adj not raised; unshare: no seccomp filter (Invalid argument)",
        ),
    ],
)
def test_missing_protections_of_a_sandbox_are_a_warning(lacking, state, found, monkeypatch):
    class Weak:
        def weaknesses(self):
            return lacking

    def find(kind):
        if kind == "unshare":
            raise NoSandbox([(kind, "no seccomp filter (Invalid argument)")])
        return Weak()

    monkeypatch.setattr(checkup.Sandbox, "find", find)
    check = sandbox()
    assert (check.state, check.found) == (state, found)
    assert bool(check.help) is (state == "warn")


def test_a_bundled_model_without_weights_is_a_failure(tmp_path):
    for kind in ("models", "heads"):
        (tmp_path / kind).mkdir()
    shutil.copytree(PACKAGE / "tiny/models/draft", tmp_path / "models/draft")
    shutil.copytree(PACKAGE / "tiny/heads/dsl", tmp_path / "heads/dsl")
    assert bundled(tmp_path).state == "ok"
    (tmp_path / "models/draft/model.safetensors").unlink()
    assert (bundled(tmp_path).state, bundled(tmp_path).help) == ("fail", "reinstall specbench")
