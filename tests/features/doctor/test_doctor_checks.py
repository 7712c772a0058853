"""Checks of machines and installations that are worse than this one."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from specbench.config.pair import PACKAGE
from specbench.features.doctor import installation_checks, machine_checks
from specbench.features.doctor.installation_checks import bundled, sandbox
from specbench.features.doctor.machine_checks import clock, disk_space, gpus, load, processor
from specbench.machine.check import Check
from specbench.machine.threads import Cores
from specbench.sandbox import NoSandbox


def test_offline_mode_is_reported(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub = {check.name: check for check in installation_checks.hub()}["hub"]
    assert (hub.state, hub.found) == ("warn", "offline mode is on (HF_HUB_OFFLINE)")


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
    assert "OMP_NUM_THREADS gives 4096" in processor(machine, cores).help
    assert processor(machine | {"threads": 1}, cores).state == "ok"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert processor(machine, cores) == Check("cpu", "ok", "X, 4 of 4 cores, 3 free")


@pytest.mark.parametrize(
    ("others", "state", "said"),
    [(None, "warn", "no nvidia-smi"), ([], "ok", "none"), (["17, python, 3 MiB"], "warn", "17, python, 3 MiB")],
)
def test_a_gpu_is_reported_with_its_clocks_and_other_processes(others, state, said, monkeypatch):
    monkeypatch.setattr(machine_checks, "gpu_processes", lambda: others)
    gpu, neighbours = gpus({"name": "H200", "driver_version": "1.2", "power.limit": "700 W"})
    assert gpu.found == "H200, driver_version 1.2, power.limit 700 W"
    assert neighbours.state == state
    assert said in neighbours.found


def test_a_full_or_read_only_disk_is_a_warning(tmp_path):
    assert disk_space("disk", tmp_path / "not" / "there", 1).state == "ok"
    assert disk_space("disk", tmp_path, 1 << 62).state == "warn"
    assert disk_space("disk", Path("/proc/1"), 1).state == "warn"


def test_a_missing_sandbox_is_reported_with_what_was_tried(monkeypatch):
    def fail(kind):
        raise NoSandbox([(kind, "not installed")])

    monkeypatch.setattr(installation_checks.Sandbox, "find", fail)
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

    monkeypatch.setattr(installation_checks.Sandbox, "find", find)
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
