"""A user's own models without a TOML file, and the runs that a folder contains."""

import json
from pathlib import Path

import pytest

from specbench.config.pair import PACKAGE
from tests.fixtures.console import specbench

MODELS = PACKAGE / "tiny" / "models"
FEW = [
    "-t",
    "gsm8k",
    "--data",
    "synthetic",
    "-n",
    2,
    "--repeats",
    1,
    "--max-new-tokens",
    6,
    "--set",
    "task.gsm8k.shots=0",
]
BOTH = ["--draft", MODELS / "draft", "--target", MODELS / "target"]


@pytest.fixture(scope="module")
def where(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    specbench("run", "-m", "sd", *BOTH, *FEW, cwd=folder)
    return folder


def test_two_folders_are_a_pair(where):
    (row,) = json.loads(specbench("list", "runs", "--json", cwd=where).stdout)
    assert (row["pair"], row["task"], row["methods"]) == ("target-draft", "gsm8k", ["ar", "sd"])
    assert row["generations"] == row["expected"] == 4
    spec = f"draft={MODELS / 'draft'},target={MODELS / 'target'}"
    again = specbench("run", "-m", "sd", "-p", spec, *FEW, cwd=where)
    assert len(json.loads(specbench("list", "runs", "--json", cwd=where).stdout)) == 1, "the same run"
    assert row["run"] in again.stdout


def test_a_run_on_synthetic_prompts_says_so_in_its_conclusion(where):
    assert "on synthetic prompts" in " ".join(specbench("report", cwd=where).stdout.split())


def test_a_target_alone_runs_methods_without_a_draft(where):
    specbench("run", "-m", "pld", "--target", MODELS / "target", *FEW, "-o", "alone", cwd=where)
    (row,) = json.loads(specbench("list", "runs", "--from", "alone", "--json", cwd=where).stdout)
    assert (row["pair"], row["methods"]) == ("target", ["ar", "pld"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--draft", "x"], "--draft needs --target"),
        (["--target", "x", "-p", "tiny"], "--pair and --target cannot be combined"),
        (["-p", "draft=x"], "no target"),
        (["-p", "draft=,target=x"], "write it as draft=PATH,target=PATH"),
        (["-p", "target=x,target=y"], "write it as draft=PATH,target=PATH"),
    ],
)
def test_incomplete_models_are_an_error_that_says_what_to_write(where, arguments, why):
    assert why in specbench("run", *arguments, *FEW, cwd=where, code=2).stderr


def test_an_unfinished_run_is_listed_with_its_missing_generations(where, tmp_path):
    (run,) = (where / "results").iterdir()
    copied = tmp_path / "results" / run.name
    copied.mkdir(parents=True)
    for name in ("run.toml", "manifest.json"):
        (copied / name).write_bytes((run / name).read_bytes())
    lines = (run / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "samples.jsonl").write_bytes(b"".join(lines[:3]))
    assert "3 of 4 generations" in specbench("list", "runs", cwd=tmp_path).stdout
    assert "no run folder in" in specbench("list", "runs", "--from", "nowhere", cwd=tmp_path, code=2).stderr


def test_columns_take_the_headings_that_tables_show(where):
    shown = specbench("report", "--columns", "speedup over ar, decoding,strict", cwd=where).stdout
    head = next(line for line in shown.splitlines() if line.split()[:1] == ["method"])
    assert " ".join(head.split()) == "method speedup over ar, decoding strict"
    wrong = specbench("report", "--columns", "strct", cwd=where, code=2).stderr
    assert "did you mean 'strict'" in wrong and len(wrong) < 200
