"""Labels say what was decoded, and options that contradict one another are rejected."""

import json
import tomllib

import pytest

from specbench.errors import ConfigError
from specbench.features.suites.suite import read_suite
from tests.fixtures.console import specbench

FEW = ("-t", "gsm8k", "-n", 1, "--repeats", 1, "--max-new-tokens", 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gamma", 3, "--over", "method.proposer.gamma=[1,5]"], ["--gamma 3", "--over method.proposer.gamma"]),
        (["--gamma", 3, "--set", "method.proposer.gamma=5"], ["--gamma 3", "--set method.proposer.gamma"]),
        (
            ["--set", "method.proposer.gamma=5", "--over", "method.proposer.gamma=[1]"],
            ["--set method.proposer.gamma", "--over method.proposer.gamma"],
        ),
        (
            ["--over", "sd.proposer.gamma=[2]", "--over", "method.proposer.gamma=[1]"],
            ["--over sd.proposer.gamma", "--over method.proposer.gamma"],
        ),
        (
            ["--gamma", 3, "--set", 'method.proposer={name="model", model="draft", gamma=5}'],
            ["--gamma 3", "--set method.proposer"],
        ),
        (["--set", "task.shots=1", "--set", "task.shots=2"], ["--set task.shots=1", "--set task.shots=2"]),
        (["--set", "method.proposer.gamma=1", "--set", "method.proposer=2"], ["proposer.gamma=1", "proposer=2"]),
        (["--set", "task.max_new_tokens=9"], ["--max-new-tokens", "--set task.max_new_tokens"]),
        (["--sample", 1], ["--limit 1", "--sample 1"]),
    ],
)
def test_conflicting_options_are_rejected_with_both_names(tmp_path, arguments, named):
    done = specbench("run", "-m", "sd", *FEW, *arguments, cwd=tmp_path, code=2)
    assert all(name in done.stderr for name in named), done.stderr
    assert "conflict" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_sweep_rejects_a_draft_length_that_its_grid_sweeps(tmp_path):
    done = specbench("run", "-m", "sd", "-t", "gsm8k", "-n", 1, "--over", "auto", "--gamma", 3, cwd=tmp_path, code=2)
    assert "--gamma 3" in done.stderr
    assert "sd.proposer.gamma" in done.stderr


@pytest.mark.parametrize(("gamma", "method"), [(3, "ar"), ("3,1", "sd")])
def test_draft_lengths_that_no_method_takes_are_rejected(tmp_path, gamma, method):
    done = specbench("run", "-m", method, *FEW, "--gamma", gamma, cwd=tmp_path, code=2)
    assert f"--gamma {gamma}: {method} has" in done.stderr


def test_the_variants_of_a_sweep_decode_what_their_labels_say(tmp_path):
    specbench("run", "-m", "sd", *FEW, "--over", "method.proposer.gamma=[1,3]", cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    methods = tomllib.loads((folder / "run.toml").read_text())["methods"]
    assert {name: table["options"]["proposer"]["gamma"] for name, table in methods.items() if name != "ar"} == {
        "sd(gamma=1)": 1,
        "sd(gamma=3)": 3,
    }
    for row in map(json.loads, (folder / "samples.jsonl").read_text().splitlines()):
        if row["method"] != "ar":
            drafted = [each["drafted"] for each in row["rounds"]]
            assert max(drafted) == methods[row["method"]]["options"]["proposer"]["gamma"], row["method"]


def test_an_option_of_the_user_replaces_the_suites_in_any_notation(tmp_path):
    (tmp_path / "own.toml").write_text(
        'paper = "p"\nshows = "s"\ndescription = "d"\n[options]\nmax_new_tokens = 8\nrepeats = 1\nlimit = 1\n'
        '[[grid]]\nmethods = ["sd"]\npairs = ["tiny"]\ntasks = ["gsm8k"]\n'
    )
    plan = specbench("plan", "--suite", "own.toml", "--set", "task.max_new_tokens=4", "--json", cwd=tmp_path)
    assert json.loads(plan.stdout)
    specbench("run", "--suite", "own.toml", "--set", "task.max_new_tokens=4", cwd=tmp_path)
    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.name != "suites")
    assert tomllib.loads((folder / "run.toml").read_text())["decoding"]["max_new_tokens"] == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('engine = "leen"', "engine = 'leen' (did you mean 'lean'?)"),
        ('device = "cudda"', "device = 'cudda' (did you mean 'cuda'?)"),
        ('dtype = "float23"', "dtype = 'float23' (did you mean 'float32'?)"),
    ],
)
def test_a_suite_with_an_unknown_engine_device_or_dtype_is_rejected(line, message, tmp_path):
    (tmp_path / "own.toml").write_text(
        f'title = "Mine"\npaper = "Ours"\n[options]\n{line}\n'
        '[[grid]]\nmethods = ["sd"]\npairs = ["tiny"]\ntasks = ["gsm8k"]\n'
    )
    with pytest.raises(ConfigError) as error:
        read_suite(str(tmp_path / "own.toml"))
    assert message in str(error.value)
    assert "own.toml" in str(error.value)
