"""Reports on runs of several machines: the hardware of each, and no ratio across them."""

import json
import shutil

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point
from specbench.config.suite_layout import Expectation
from specbench.files import write_sealed
from specbench.reporting.expectations import outcome_lines, outcomes_of
from specbench.runs.run_folder import ENVIRONMENT
from tests.fixtures import console

SUITE = """
paper = "own"
shows = "Table 1"
description = "two tasks"
[options]
limit = 2
repeats = 1
max_new_tokens = 8
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k", "xsum"]
[[tables]]
rows = ["method"]
columns = ["task"]
values = ["speedup"]
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    (folder / "own.toml").write_text(SUITE)
    console.specbench("run", "--suite", "own.toml", cwd=folder)
    return folder


@pytest.fixture
def mixed(measured, tmp_path):
    """The suite's results, as if one run had been measured on a GPU."""
    folder = shutil.copytree(measured, tmp_path / "mixed")
    path = next(folder.glob(f"results/*xsum*/{ENVIRONMENT}"))
    table = json.loads(path.read_text())
    del table["sha256"]
    write_sealed(path, table | {"gpu": {"name": "NVIDIA H200"}})
    return folder


def runs(folder):
    return sorted(path.parent for path in folder.glob("results/*/run.toml"))


def test_the_hardware_of_every_run_is_named(measured, mixed):
    command = ("report", "--suite", "own.toml", "-f", "md")
    alike = console.specbench(*command, cwd=measured).stdout
    assert "Hardware" not in alike and "kinds of machines" not in alike
    page = console.specbench(*command, cwd=mixed).stdout
    hardware = page.partition("Hardware")[2]
    assert "measured on 2 kinds of machines" in page
    assert "NVIDIA H200" in hardware and all(run.name in hardware for run in runs(mixed))


def test_runs_of_one_machine_are_pooled(measured):
    table = console.specbench("report", *runs(measured), "--pooled", cwd=measured).stdout
    of_suite = console.specbench("report", "--suite", "own.toml", "--pooled", "-f", "md", cwd=measured).stdout
    (line,) = [line for line in of_suite.splitlines() if line.startswith("| sd ")]
    assert [each.strip() for each in line.split("|")][2:6] == ["tiny", "0", "2", "4"]
    assert "All runs together" in table and "sd" in table


def test_times_of_two_machines_are_not_pooled(mixed):
    done = console.specbench("report", "--suite", "own.toml", "--pooled", cwd=mixed, code=6)
    assert "gpu: none | NVIDIA H200" in done.stderr and "their times are not pooled" in done.stderr
    console.specbench("report", *runs(mixed), "--pooled", cwd=mixed, code=6)


def test_a_prompt_counts_once(measured, tmp_path):
    run = runs(measured)[0]
    copy = shutil.copytree(run, tmp_path / run.name.replace("sd", "again"))
    done = console.specbench("report", run, copy, "--pooled", cwd=measured, code=6)
    assert "contain the same prompt" in done.stderr


def test_pooling_needs_two_runs(measured):
    done = console.specbench("report", runs(measured)[0], "--pooled", cwd=measured, code=2)
    assert "at least two run folders" in done.stderr


def test_expectations_do_not_compare_machines():
    """The best of several settings is chosen among runs of one machine."""
    expected = Expectation(
        says="at least 1", of={"method": "sd"}, value="speedup", at_least=1.0, best=True, by=("pair",)
    )

    def point(speedup: float, machine: str, run: str) -> Point:
        place = {"pair": "p", "task": "t", "T": 0.0, "method": "sd"}
        return Point(
            **place, run=run, machine=machine, values={"speedup": Estimate(speedup, speedup - 0.1, speedup + 0.1)}
        )

    here = [point(0.5, "a", "one"), point(2.0, "a", "two")]
    assert expectations_of(expected, here) == ["at least 1: confirmed"]
    there = [point(0.5, "a", "one"), point(2.0, "b", "two")]
    assert "1 of 2 confirmed, 1 of 2 contradicted" in expectations_of(expected, there)[0]


def expectations_of(expected, points):
    class OneExpectation:
        expect = (expected,)

    return outcome_lines(outcomes_of(OneExpectation(), points))
