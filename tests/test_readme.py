"""The commands and the output of the README."""

import re
import shlex
from pathlib import Path

import pytest

from tests.fixtures.console import specbench

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(?:\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line.partition("#")[0].strip() for block in BLOCKS for line in block.splitlines()]
FEW = ["-n", 2, "--repeats", 1, "--max-new-tokens", 6]  # replaces what a command says
WORDS_PER_SECOND = 3.0  # read aloud


def words_of(command: str) -> list[str]:
    return shlex.split(command)[1:]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every `specbench` command of the README, run in order in one folder, with what it printed."""
    where = tmp_path_factory.mktemp("readme")
    outputs = {}
    for command in COMMANDS:
        if command.startswith("specbench "):
            words = words_of(command)
            more = FEW if words[0] == "run" else []
            outputs[command] = specbench(*words, *more, cwd=where).stdout
    return where, outputs


def test_every_command_runs(ran):
    _, outputs = ran
    assert len(outputs) >= 3
    assert {words_of(command)[0] for command in outputs} >= {"init", "plan", "run"}


def test_a_run_ends_with_its_conclusion(ran):
    _, outputs = ran
    for command, output in outputs.items():
        if words_of(command)[0] == "run":
            assert " as fast as " in output or "cannot be distinguished" in output or " is faster than " in output


def test_every_make_target_exists_and_ci_runs_the_tests():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert set(made) >= {"run", "test"} and set(made) <= set(targets)
    assert re.search(r"\bmake\b.*\btest\b", (ROOT / ".ci" / "run").read_text())


def test_the_output_has_the_columns_and_methods_of_its_command(ran, monkeypatch):
    """Its numbers are those of one measurement, its headings and methods those of the present code."""
    monkeypatch.setenv("COLUMNS", "100")
    block = next(each for each in BLOCKS if each.startswith("$ specbench run"))
    command, *lines = block.splitlines()
    words = [*words_of(command.removeprefix("$ ")), "-t", "gsm8k,wmt", *FEW]
    shown = specbench(*words, cwd=ran[0]).stdout.splitlines()
    heads = next(line for line in lines if line.split()[:2] == ["task", "method"])
    short = {"theory"}  # a column that so short a run may lack
    assert {word.strip(",") for word in heads.split()} - short <= {
        word.strip(",") for line in shown for word in line.split()
    }

    def methods(of):
        return {line.split()[1] for line in of if re.match(r"  \S+@", line)}

    assert methods(lines) == methods(shown)
    assert any(line.startswith("6 prompts (synthetic) x 1 repeat, T = 0") for line in lines), "its conditions"


def test_the_scores_of_the_table_can_show_a_difference():
    """Strictly between 0 and 100, for every method of some tasks."""
    block = next(each for each in BLOCKS if each.startswith("$ specbench run"))
    scores = [float(each) for each in re.findall(r"(\d+\.\d) \[\d+\.\d, \d+\.\d\] *$", block, re.MULTILINE)]
    assert len(scores) == 6 * 5
    assert sum(0.0 < score < 100.0 for score in scores) >= 2 * 5


def test_the_first_command_comes_within_30_seconds_of_reading_aloud():
    before = README[: README.index("```")]
    text = re.sub(r"!\[.*?\]\(.*?\)|[#`]", "", before)
    assert len(text.split()) / WORDS_PER_SECOND <= 30


def test_every_linked_file_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []
