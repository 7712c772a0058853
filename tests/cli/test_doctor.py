"""`specbench doctor`: what it prints of this machine, and its exit code."""

import json

import pytest
from huggingface_hub import constants

from specbench.features.doctor import installation_checks
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


def test_a_missing_requirement_exits_with_4_and_skips_checks_that_need_it(monkeypatch, tmp_path):
    version = installation_checks.version_of
    monkeypatch.setattr(installation_checks, "version_of", lambda name: "" if name == "torch" else version(name))
    done = specbench("doctor", cwd=tmp_path, code=4)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [words[:2] for words in lines] == [["ok", "python"], ["fail", "torch"], ["ok", "transformers"]]
    assert "help: pip install torch" in done.stdout
