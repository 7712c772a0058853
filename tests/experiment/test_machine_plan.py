"""Plans for another machine: sizes, times and the sentence at the end, without torch, weights and network."""

import json
import socket

import pytest

from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.suite import read_suite
from specbench.errors import ConfigError
from specbench.experiment import method_resolution, selection
from specbench.experiment.machine_plan import machine_rows
from specbench.experiment.machine_summary import sentence, span, total_of
from specbench.experiment.machine_training import training_rows
from specbench.experiment.method_cost import FAST, SLOW, Assumption, seconds_per_token
from specbench.experiment.method_variants import groups_of
from specbench.machine.accelerator import read_accelerator
from tests.cli.test_lazy import SLOW as SLOW_IMPORTS
from tests.cli.test_lazy import imported_by
from tests.fixtures.console import specbench

H200 = read_accelerator("h200")
SECONDS = {"draft": 1.0, "target": 10.0, "eagle@target": 0.5}
SIZES = {"draft": 1, "target": 10}
BIG = """
[models.draft]
path = "meta-llama/Llama-3.2-1B"
[models.target]
path = "meta-llama/Llama-3.1-70B-Instruct"
"""


@pytest.mark.parametrize("name", ["se-table2", "cascade-fig1", "polybasic-table1", "sprinter-table2"])
def test_runs_on_the_papers_models_can_be_estimated(name):
    rows = machine_rows(read_suite(name), H200)
    assert rows and all(row.seconds and 0 < row.seconds[0] < row.seconds[1] for row in rows)
    assert all(row.downloads and row.fits for row in rows)


@pytest.mark.parametrize("suite", ["se-table2", "cascade-fig1"])
def test_variants_are_those_that_a_run_resolves(suite):
    line, pair_name, _ = next(read_suite(suite).parts())
    pair = selection.read_pair(pair_name, line.options)[1]
    resolved = method_resolution.groups_of(line.methods, pair, {}, line.options)
    assert [len(each.variants) for each in groups_of(line.methods, pair, line.options)] == [len(e) for e in resolved]


def test_a_method_without_drafts_costs_a_forward_of_each_scorer():
    assert seconds_per_token({"name": "autoregressive", "scorers": ["draft", "target"]}, SECONDS, SIZES, FAST) == 11.0
    assert seconds_per_token({"name": "parallel", "scorers": ["draft", "target"]}, SECONDS, SIZES, FAST) == 10.0


def test_speculation_costs_what_theory_says_at_an_acceptance_rate():
    table = {
        "name": "speculative", "proposer": {"name": "model", "model": "draft", "gamma": 4}, "scorers": ["target"],
    }  # fmt: skip
    never = Assumption(acceptance=0.0, deferral=0.0)
    assert seconds_per_token(table, SECONDS, SIZES, never) == 14.0  # four drafts and a forward for one token
    always = Assumption(acceptance=1.0, deferral=0.0)
    assert seconds_per_token(table, SECONDS, SIZES, always) == pytest.approx(14.0 / 5)  # five tokens
    head = {**table, "proposer": {"name": "eagle", "base": "target", "gamma": 4}}
    assert seconds_per_token(head, SECONDS, SIZES, always) == pytest.approx(12.0 / 5)
    lookup = {**table, "proposer": {"name": "pld", "gamma": 4}}
    assert seconds_per_token(lookup, SECONDS, SIZES, never) == 10.0


def test_a_cascade_is_bounded_by_no_and_by_every_deferral():
    table = {"name": "token-cascade", "small": "draft", "large": "target"}
    assert [seconds_per_token(table, SECONDS, SIZES, each) for each in (FAST, SLOW)] == [1.0, 11.0]


def test_a_large_target_does_not_fit_and_the_plan_says_what_would(tmp_path):
    (tmp_path / "big.toml").write_text(BIG)
    command = ("plan", "-p", "big.toml", "-m", "sd", "-t", "humaneval", "-n", "4", "--for")
    found = specbench(*command, "h100", cwd=tmp_path, code=4).stdout
    last = " ".join(found.split())
    assert "this run does not fit on one H100: it needs 137 GiB of 80 GiB" in last
    assert "fits with --set pair.models.target.quantization=int8" in last
    assert "it fits on one H200" in specbench(*command, "rtx4090", cwd=tmp_path, code=4).stdout
    remedied = specbench(*command, "h100", "--set", "pair.models.target.quantization=int8", cwd=tmp_path).stdout
    assert "this run on one H100: " in remedied and "GiB to download." in remedied


@pytest.mark.parametrize(
    ("gpus", "place", "devices", "said"),
    [
        (1, [], [149], "it fits with --set pair.models.target.quantization=int4."),
        (2, ["target=layers:0,1"], [84, 65], "does not fit on 2 H100: it needs 84 GiB of 80 GiB on a GPU"),
        (4, [], [149], "it fits with --place target=layers:0,1 --place draft=cuda:2."),
        (4, ["target=layers:0,1", "draft=cuda:2"], [69, 65, 17], "this run on 4 H100: "),
        (4, ["target=layers:0,1,2,3"], [51, 35, 35, 32], "at most 51 GiB of 80 GiB on a GPU"),
        (8, ["target=tensor:0,1,2,3,4,5,6,7"], [33] * 8, "this run on 8 H100: "),
    ],
)
def test_a_70b_pair_on_several_gpus(gpus, place, devices, said, tmp_path):
    """Weights of 131 and 15 GiB, a cache, and a workspace on each device."""
    options = [word for each in place for word in ("--place", each)]
    command = ("plan", "-p", "llama-3.1-70b", "-m", "sd", "-t", "gsm8k", "--for", "h100", "--gpus", gpus, *options)
    code = 4 if "fit" in said else 0
    assert said in " ".join(specbench(*command, cwd=tmp_path, code=code).stdout.split())
    (row,) = json.loads(specbench(*command, "--json", cwd=tmp_path, code=code).stdout)["runs"]
    found = [(each["weights"] + each["cache"] + each["graphs"]) / 2**30 for each in row["devices"]]
    assert found == pytest.approx(devices, abs=1.0)


def test_a_model_on_a_gpu_that_the_machine_lacks_is_an_error(tmp_path):
    command = ("plan", "-p", "gpt2", "-m", "sd", "-t", "gsm8k", "--for", "h100", "--place", "target=cuda:1")
    assert "placed on cuda:1, and there are 1 GPUs" in specbench(*command, cwd=tmp_path, code=2).stderr
    assert "--gpus needs --for" in specbench("plan", "-m", "sd", "--gpus", 2, cwd=tmp_path, code=2).stderr


def test_a_longer_answer_takes_longer_and_a_quantized_model_less_memory():
    def row(**more):
        options = Options(device="auto", limit=2, **more)
        suite = read_suite("polybasic-table2")
        line = suite.grid[0].__class__(methods=("sd",), pairs=("llama-2",), tasks=("gsm8k",), options=options)
        (found,) = machine_rows(suite.__class__(name="", paper="", shows="", description="", grid=(line,)), H200)
        return found

    plain = row()
    assert row(max_new_tokens=512).seconds[0] == pytest.approx(2 * plain.seconds[0], rel=0.05)
    assert row(overrides=(("pair.models.target.quantization", "int4"),)).memory.weights < 0.4 * plain.memory.weights
    assert row(engine="eager").seconds[1] > plain.seconds[1]


def test_a_plan_for_another_machine_imports_no_torch_and_opens_no_connection(monkeypatch):
    assert not imported_by(["plan", "--suite", "se-table2", "--for", "h200"]) & SLOW_IMPORTS

    def refuse(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    rows = machine_rows(read_suite("se-table2"), H200)
    assert sentence("se-table2", total_of(rows), H200).startswith("se-table2 on one H200: ")


def test_a_file_describes_a_machine(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "Mine"\nmemory_gib = 8.0\nbandwidth_gb_s = 100.0\nbf16_tflops = 10.0\n')
    command = ("plan", "-m", "sd", "-p", "gpt2", "-t", "humaneval", "-n", "1", "--for", "mine.toml")
    found = json.loads(specbench(*command, "--json", cwd=tmp_path).stdout)
    assert found["machine"]["name"] == "Mine" and found["total"]["fits"]
    assert found["runs"][0]["generations"] == 2 * 3
    (tmp_path / "mine.toml").write_text('name = "Mine"\nmemory = 8.0\nbandwidth_gb_s = 100.0\nbf16_tflops = 10.0\n')
    assert "did you mean 'memory_gib'" in specbench(*command, cwd=tmp_path, code=2).stderr
    for number in ("0.0", "1e-320", "1e308"):
        text = f'name = "Mine"\nmemory_gib = 8.0\nbandwidth_gb_s = {number}\nbf16_tflops = 10.0\n'
        (tmp_path / "mine.toml").write_text(text)
        assert "must be from 0.001 to 1e+09" in specbench(*command, cwd=tmp_path, code=2).stderr


def test_a_run_without_an_architecture_or_a_number_of_prompts_has_no_estimate(tmp_path):
    done = specbench(
        "plan", "-m", "sd", "-p", "bild-wmt", "-t", "wmt:de-en", "--for", "h100", cwd=tmp_path, code=4
    ).stdout
    assert "no architecture for kssteven/mT5-small-wmt2014-de-en" in done
    assert done.strip().endswith("this run on one H100: no estimate.")
    done = specbench("plan", "-m", "sd", "-p", "gpt2", "-t", "lm1b", "--for", "h100", cwd=tmp_path, code=4).stdout
    assert "help: -n N" in done and "time unknown, at most " in done


def test_mistakes_name_the_nearest_right_value(tmp_path):
    plan = ("plan", "-m", "sd", "-p", "gpt2", "-t", "gsm8k")
    assert "did you mean 'h200'" in specbench(*plan, "--for", "h20", cwd=tmp_path, code=2).stderr
    assert "did you mean" in specbench(*plan, "--for", "h200", "--set", "task.shotz=1", cwd=tmp_path, code=2).stderr
    assert "--device conflict" in specbench(*plan, "--for", "h200", "--device", "cpu", cwd=tmp_path, code=2).stderr


def test_spans_use_the_unit_of_their_upper_end():
    assert span(30.0, 5400.0) == "1 to 90 minutes"
    assert span(9.2 * 3600, 17.4 * 3600) == "9 to 17 hours"
    assert span(3600.0, 30 * 86400.0) == "1 to 30 days"
    assert span(7200.0, 7300.0) == "2 hours"


def test_a_role_that_the_pair_lacks_is_an_error():
    pair = Pair(models={})
    with pytest.raises(ConfigError, match="no model"):
        groups_of(["sd"], pair, Options())


TRAINING = """
paper = "P"
shows = "S"
description = "D"
[options]
limit = 100
[[prepare]]
kind = "{kind}"
pairs = ["gpt2"]
tasks = ["lm1b"]
limit = {limit}
{more}
[[grid]]
methods = ["sd"]
pairs = ["gpt2"]
tasks = ["lm1b"]
[[tables]]
rows = ["method"]
values = ["speedup"]
"""


@pytest.fixture
def training(tmp_path):
    """A function that returns the estimate of the heads of a suite that trains some of one kind."""

    def row(kind="sprinter", limit=500, more="", **options):
        path = tmp_path / "own.toml"
        path.write_text(TRAINING.format(kind=kind, limit=limit, more=more))
        (found,) = training_rows(read_suite(str(path), **options), H200)
        return found

    return row


@pytest.mark.parametrize("kind", ["sprinter", "specdec++", "dsl", "eagle"])
def test_the_training_of_heads_is_estimated(kind, training):
    found = training(kind)
    assert found.methods == f"train {kind}" and found.fits and found.downloads
    assert 0 < found.seconds[0] < found.seconds[1]
    low, high = training(kind, 1000).seconds
    assert low == pytest.approx(2 * found.seconds[0], rel=0.02) and high == pytest.approx(
        2 * found.seconds[1], rel=0.02
    )
    reference = training(kind, more='answers = "reference"').seconds
    assert reference[1] < found.seconds[1] or kind == "dsl", "the target writes no outputs"


def test_heads_of_one_kind_share_their_rows(training):
    """Three values of tau take more than one, by the fits only."""
    one, three = training(more="tau = [1.0]"), training(more="tau = [1.0, 1.2, 1.5]")
    assert three.methods == "train 3 sprinter"
    assert one.seconds[1] < three.seconds[1] < 2 * one.seconds[1]


def test_a_budget_limits_the_training_and_all_texts_have_no_estimate(training):
    assert training("eagle", more="minutes = 0.1").seconds[1] == 6.0
    unknown = training("eagle", 0)
    assert unknown.seconds is None and "limit = N in [[prepare]], or --data lm1b=FILE" in unknown.why
    assert not total_of([unknown]).complete


def test_all_texts_of_a_file_are_counted(training, tmp_path):
    """As many lines as there are, with a limit above that number and without one; the measured ones are not for training."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"Text number {i} of a file."}) + "\n" for i in range(600)))
    data = {"data": (("lm1b", str(rows)),)}
    five_hundred = training("eagle", 500).seconds
    assert training("eagle", 0, **data).seconds == training("eagle", 900, **data).seconds == five_hundred
    missing = training("eagle", 0, data=(("lm1b", str(tmp_path / "none.jsonl")),))
    assert missing.seconds is None and "none.jsonl" in missing.why


def test_rows_of_another_temperature_are_collected_too(tmp_path):
    """SPRINTER's Table 2: the authors' recipe draws greedily, so its rows are not those of the other verifier."""
    rows = [row for row in training_rows(read_suite("sprinter-table2"), H200) if row.task == "lm1b"]
    assert [row.methods for row in rows] == ["train sprinter", "train sprinter/authors-leaking", "train specdec++"]


def test_a_plan_includes_the_heads_that_the_suite_trains_and_not_those_that_are_given(tmp_path):
    def planned(suite, *more):
        return json.loads(specbench("plan", "--suite", suite, "--for", "h200", "--json", *more, cwd=tmp_path).stdout)

    found = planned("sprinter-table5")
    heads = [row for row in found["runs"] if row["methods"].startswith("train")]
    assert {(row["pair"], row["task"], row["methods"]) for row in heads} == {
        (pair, task, "train 3 sprinter") for pair in ("gpt-neo", "gpt2") for task in ("wiki-summary", "lm1b")
    }
    runs = machine_rows(read_suite("sprinter-table5"), H200)
    assert len(found["runs"]) == len(heads) + len(runs)
    total = sum(row["seconds"][1] for row in heads) + sum(row.seconds[1] for row in runs)
    assert found["total"]["seconds"][1] == pytest.approx(total)
    assert not training_rows(read_suite("se-table2"), H200)
    for more, kinds in (
        ((), {"sprinter", "sprinter/authors-leaking", "specdec++"}),
        (("--head", "gpt-neo:sprinter=mine"), {"specdec++"}),
    ):
        rows = planned("sprinter-table2", *more)["runs"]
        assert {row["methods"] for row in rows if row["methods"].startswith("train")} == {
            f"train {kind}" for kind in kinds
        }
    assert not imported_by(["plan", "--suite", "sprinter-table5", "--for", "h200"]) & SLOW_IMPORTS
