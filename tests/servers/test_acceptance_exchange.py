"""Acceptance profiles that go to real servers, and profiles that servers measured, compared with ours."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.console import specbench
from tests.servers.conftest import MODELS, VLLM
from tests.servers.test_real_servers import DRAFT

SAMPLING = ("-t", "gsm8k", "--data", "synthetic", "-n", 16, "--temperature", 0, "--max-new-tokens", 96, "--ignore-eos")
LOAD = ("-c", 1, "--pairs", 3, "--aa-pairs", 3, "--seconds", 4)
NOT_DIFFERENT = (
    "same acceptance",
    "acceptance undecided",
)  # the latter if p shows no difference, and the interval is wide
PARSED = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
config = EngineArgs(model=sys.argv[1], dtype="float32", speculative_config=json.loads(sys.argv[2])).create_engine_config()
found = config.speculative_config
print(json.dumps([found.num_speculative_tokens, found.rejection_sample_method, found.synthetic_acceptance_rates]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of drafts of four tokens by the middle model."""
    folder = tmp_path_factory.mktemp("run")
    pair = f"draft={MODELS / 'middle'},target={MODELS / 'target'}"
    specbench("run", "-m", "sd", "--gamma", 4, "-p", pair, *SAMPLING, "--repeats", 1, cwd=folder)
    return next(folder.glob("results/*/samples.jsonl")).parent


@pytest.fixture(scope="module")
def profile(run, tmp_path_factory) -> Path:
    """The acceptance of the run as NVIDIA's file."""
    path = tmp_path_factory.mktemp("profile") / "speculation_profile.json"
    specbench("report", run, "-f", "speculation-profile", "-o", path, cwd=run)
    return path


@pytest.fixture(scope="module")
def report(run) -> dict:
    (found,) = json.loads(specbench("report", run, "-f", "acceptance", cwd=run).stdout)["profiles"]
    return found


def compared(base: Path, new: Path) -> str:
    """Return the title of the verdict of `compare` on two acceptance profiles."""
    shown = specbench("compare", base, new, "-f", "json", "--exit-zero", cwd=base.parent).stdout
    (verdict,) = json.loads(shown)["verdicts"]
    title: str = verdict["title"]
    return title


def served(on: str, off: str, tmp_path: Path) -> Path:
    specbench("server", "run", "--on", on, "--off", off, *SAMPLING, *LOAD, "-o", tmp_path, cwd=tmp_path)
    return next(tmp_path.glob("run-*"))


def test_llama_cpp_accepts_at_the_rates_of_a_acceptance_report(llama_cpp, profile, report, tmp_path):
    flag, length, name, rates = report["llama.cpp"]
    assert (flag, length, name) == ("--spec-draft-n-max", "4", "--spec-synth-rates")
    on = llama_cpp("--synthetic-rates", rates, "--draft-length", length, draft=True)
    assert compared(profile, served(on, llama_cpp(), tmp_path)) in NOT_DIFFERENT


def test_vllm_parses_the_rates_of_a_acceptance_report(vllm, report):
    config = {"method": "draft_model", "model": DRAFT["model"], **report["vllm"]}
    words = [VLLM, "-c", PARSED, MODELS / "target", json.dumps(config)]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    length, method, rates = json.loads(done.stdout.strip().splitlines()[-1])
    assert (length, method) == (4, "synthetic")
    assert rates == report["vllm"]["synthetic_acceptance_rates"]


def test_acceptance_that_vllm_measured_is_ours(vllm, profile, tmp_path):
    assert compared(profile, served(vllm(DRAFT), vllm(), tmp_path)) in NOT_DIFFERENT
