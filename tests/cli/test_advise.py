"""`specbench advise`: the answer in words, and the whole command."""

import json
import shlex
import time
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.cli.params import SharedOptions
from specbench.features.advise.answer import answer, other_engines, toml_of
from specbench.features.advise.candidate_set import candidate_of
from specbench.features.advise.candidates import Advice, Candidate, CandidateResult
from specbench.models.lean import LeanModelRunner
from specbench.models.panel_codes import QuantizedLinear
from tests.fixtures import console

PAIR = SimpleNamespace(models={"draft": SimpleNamespace(source="models/small one")}, heads={})
SPEC = SimpleNamespace(methods={}, task=SimpleNamespace(name="gsm8k", data=SimpleNamespace(samples=24)), pair=PAIR)
BEST = candidate_of("sd-4", {"name": "model", "model": "draft", "gamma": 4})


def advice(gain: Estimate | None, measured: Estimate | None = None, is_out_of_time: bool = False) -> Advice:
    result = CandidateResult(candidate=BEST, predicted=Estimate(1.5, 1.4, 1.6), measured=measured or gain, parts=1)
    nothing = SimpleNamespace(
        pair="tiny", task="gsm8k", baseline="ar", decoding=SimpleNamespace(temperature=0.0),
        spec=SPEC,
    )  # fmt: skip
    return Advice(
        results=[result], gain=gain, pilot=nothing, pilot_row=nothing, break_even=None, block_cost=None, final=nothing,
        is_out_of_time=is_out_of_time,
    )  # fmt: skip


def words(found: Advice) -> str:
    return "\n".join(answer(found))


def test_a_method_that_pays_comes_with_its_toml_and_the_options_of_other_engines():
    shown = words(advice(Estimate(1.4, 1.3, 1.5)))
    assert shown.startswith("Use sd-4: 1.40x [1.30, 1.50], measured on held-out prompts.")
    assert "not another time" in shown
    twice = words(
        replace(advice(Estimate(1.4, 1.2, 1.6)), repeats=(Estimate(1.38, 1.3, 1.5), Estimate(1.42, 1.3, 1.5)))
    )
    assert "on held-out prompts in 2 processes (1.38x, 1.42x)" in twice
    assert "a later run on this machine, on 24 other prompts" in twice and "not another time" not in twice
    table = tomllib.loads(shown[shown.index("#") : shown.index("vLLM")])
    assert table["proposer"] == {"name": "model", "model": "draft", "gamma": 4}
    assert (
        '"num_speculative_tokens": 4' in shown
        and "--spec-draft-n-max 4" in shown
        and '"model": "models/small one"' in shown
        and "--speculative-draft-model-path 'models/small one'" in shown
        and shown.count("not measured there") == 3
    )


def test_a_head_comes_with_the_options_of_other_engines():
    head = candidate_of("eagle-3", {"name": "eagle", "head": "eagle", "base": "target", "gamma": 3})
    lines = list(other_engines(CandidateResult(candidate=head), {"eagle": "heads/mine"}))
    assert len(lines) == 2 and all("not measured there" in line for line in lines)
    assert '"method": "eagle", "model": "heads/mine"' in lines[0] and "--speculative-num-steps 3" in lines[1]


@pytest.mark.slow
def test_the_next_command_measures_the_same_models_data_and_settings(tmp_path):
    models = [f"specbench:tiny/models/{role}" for role in ("target", "draft")]
    pair = ["--target", models[0], "--draft", models[1]]
    settings = ["-t", "gsm8k", "--data", "synthetic", "-s", "task.max_new_tokens=48", "--top-k", 50]
    few = ["-n", 20, "--repeats", 1, "--write", "advised.toml"]
    done = console.specbench("advise", *pair, *settings, *few, cwd=tmp_path)
    shown = " ".join(done.stdout.split())
    if "not written: advised.toml" in shown:  # speculation did not pay on this machine
        assert not (tmp_path / "advised.toml").exists()
        return
    words = shlex.split(shown[shown.index("next: ") + 6 :])
    words = words[: words.index("50") + 1]
    assert words[:4] == ["specbench", "run", "-m", "advised.toml"]
    expected = [*pair, "-t", "gsm8k", "--data", "synthetic", "--set", "task.max_new_tokens=48", "--top-k", "50"]
    assert sorted(words[4:]) == sorted(map(str, expected))
    console.specbench(*words[1:], "-n", 1, "--repeats", 1, cwd=tmp_path)


def test_options_are_given_again_by_their_flags():
    options = SharedOptions(
        {"data": ["synthetic"], "ignore_eos": True, "top_k": 50, "set": ["task.shots=0"], "plugin": ["mine.py"]}
    )
    expected = "--data synthetic --top-k 50 --ignore-eos --set task.shots=0 --plugin mine.py".split()
    words = options.arguments()
    assert sorted(words) == sorted(expected) and words[words.index("--set") + 1] == "task.shots=0"
    assert SharedOptions().arguments() == []


def test_two_tasks_are_rejected(tmp_path):
    shown = console.specbench("advise", "-p", "tiny", "-t", "gsm8k", "-t", "wmt", cwd=tmp_path, code=2).stderr
    assert "advise takes one task" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("gain", "words_"),
    [
        (Estimate(0.8, 0.7, 0.9), "Do not speculate here: the selected candidate, sd-4, reaches 0.80x"),
        (Estimate(1.02, 0.97, 1.07), "It cannot be decided: the selected candidate, sd-4, reaches 1.02x"),
    ],
)
def test_a_method_that_does_not_pay_is_not_advised(gain, words_):
    shown = words(advice(gain))
    assert shown.startswith(words_) and "proposer" not in shown


def test_without_time_the_prediction_is_named_and_a_measured_candidate_is_qualified():
    nothing = advice(None, is_out_of_time=True)
    nothing = replace(nothing, results=[replace(nothing.best, measured=None)])
    limit = (
        "The time limit was reached before any candidate was measured on prompts other than those of the first part."
    )
    assert words(nothing).startswith(f"{limit} sd-4 has the highest prediction, 1.50x")
    some = advice(None, measured=Estimate(1.4, 1.3, 1.5), is_out_of_time=True)
    assert "measured on the prompts used for selection" in words(some)


@pytest.mark.slow
def test_the_command_ends_with_an_answer(tmp_path):
    few = ("-t", "gsm8k", "--data", "synthetic", "-n", 10, "--repeats", 1, "--max-new-tokens", 12)
    shown = " ".join(console.specbench("advise", *few, "--write", "best.toml", cwd=tmp_path).stdout.split())
    assert "decoding speedup over the target alone" in shown and "acceptance" in shown
    assert any(text in shown for text in ("Use ", "Do not speculate here", "It cannot be decided"))
    assert (tmp_path / "best.toml").exists() == ("Use " in shown)


@pytest.mark.slow
def test_the_answer_as_json(tmp_path):
    few = ("-t", "gsm8k", "--data", "synthetic", "-n", 10, "--repeats", 1, "--max-new-tokens", 12)
    found = json.loads(console.specbench("advise", *few, "--json", "--write", "best.toml", cwd=tmp_path).stdout)
    assert (tmp_path / "best.toml").exists() == bool(found["pays"])
    assert {"pays", "method", "gain", "candidates"} <= found.keys() and len(found["candidates"]) >= 12


LOSSY = Candidate("cascade-chow", {"name": "speculative"}, lossless=False)


def against(change: Estimate, max_drop: float = 0.02) -> Advice:
    """Return advice with a lossless method, and one that is faster and changes the score."""
    lossless = CandidateResult(
        candidate=BEST, measured=Estimate(1.4, 1.3, 1.5), score_change=Estimate(0.0, 0.0, 0.0), parts=3
    )
    lossy = CandidateResult(candidate=LOSSY, measured=Estimate(1.8, 1.7, 1.9), score_change=change, parts=3)
    results = [lossy, lossless] if lossy.keeps_score(max_drop) else [lossless, lossy]
    return replace(advice(results[0].measured), results=results, max_drop=max_drop)


def test_a_method_that_is_not_lossless_is_advised_with_the_change_of_its_score():
    shown = words(against(Estimate(-0.005, -0.015, 0.005)))
    assert shown.startswith("Use cascade-chow: 1.80x [1.70, 1.90]")
    assert "cascade-chow is not declared lossless" in shown and "-0.5 [-1.5, +0.5]" in shown


def test_a_faster_method_whose_score_is_uncertain_is_named():
    shown = words(against(Estimate(-0.005, -0.05, 0.04)))
    assert shown.startswith("Use sd-4: 1.40x") and "cascade-chow is faster, 1.80x [1.70, 1.90], but" in shown


def test_a_method_that_certainly_loses_more_is_not_named():
    assert "cascade-chow" not in words(against(Estimate(-0.2, -0.3, -0.1)))


def test_the_front_leaves_out_what_another_method_or_the_target_alone_dominates():
    slow = CandidateResult(
        candidate=LOSSY, measured=Estimate(0.9, 0.8, 1.0), score_change=Estimate(-0.1, -0.2, 0.0), parts=1
    )
    both = against(Estimate(-0.005, -0.015, 0.005))
    assert replace(both, results=[*both.results, slow]).front == list(both.results)
    assert replace(both, results=[slow]).front == []


def test_the_toml_of_a_preset_is_what_was_measured():
    options = {"name": "speculative", "proposer": {"name": "model", "model": "draft", "gamma": 3}}
    spec = SimpleNamespace(methods={"cascade-chow": SimpleNamespace(options=options)})
    pilot = SimpleNamespace(pair="tiny", baseline="ar", decoding=SimpleNamespace(temperature=0.5), spec=SPEC)
    measured = replace(against(Estimate(0.0, 0.0, 0.0)), pilot=pilot, final=SimpleNamespace(spec=spec))
    table = tomllib.loads(toml_of(measured))
    assert table["temperature"] == 0.5 and table["proposer"]["gamma"] == 3 and table["baseline"] == "ar"


def test_a_run_folder_and_a_pair_are_not_taken_together(tmp_path):
    for option in (("-p", "tiny"), ("-n", 12), ("--fresh",), ("--max-drop", 1)):
        shown = console.specbench("advise", "results", *option, cwd=tmp_path, code=2).stderr
        assert "with RUN, only --profile, --write and --json" in " ".join(shown.split())


def test_a_run_folder_is_advised_on_without_decoding(tmp_path):
    few = ("-t", "gsm8k", "--data", "synthetic", "-n", 5, "--repeats", 1, "--max-new-tokens", 12, "-o", "runs")
    console.specbench("run", "-m", "sd", *few, cwd=tmp_path)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    before = (folder / "samples.jsonl").read_bytes()
    shown = json.loads(console.specbench("advise", folder, "--json", cwd=tmp_path).stdout)
    assert (folder / "samples.jsonl").read_bytes() == before
    by_name = {each["method"]: each for each in shown["candidates"]}
    assert by_name["sd"]["measured"] and by_name["sd-2"]["predicted"] and not by_name["sd-2"]["measured"]


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao: specbench[quantization]")
def test_the_cost_of_a_quantized_draft_is_the_time_of_its_forwards(tmp_path, monkeypatch):
    """Predictions follow the times of a copy's forwards: one that waits for 20 ms never pays, however few bytes it has."""
    feed = LeanModelRunner.feed

    def slow(self, *arguments):
        if any(isinstance(module, QuantizedLinear) for module in self.network.model.modules()):
            time.sleep(0.02)
        return feed(self, *arguments)

    monkeypatch.setattr(LeanModelRunner, "feed", slow)
    few = ("-t", "gsm8k", "--data", "synthetic", "-n", 2, "--repeats", 1, "--max-new-tokens", 8, "-o", "runs")
    copy = ("--set", "pair.models.draft.quantization=int8-a8")
    console.specbench("run", "-m", "sd", *copy, *few, cwd=tmp_path)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    shown = json.loads(console.specbench("advise", folder, "--json", cwd=tmp_path).stdout)
    predicted = {each["method"]: each["predicted"] for each in shown["candidates"]}
    drafted = [predicted[name]["value"] for name in ("sd", "sd-2", "sd-4", "tree-2-1-1")]
    assert max(drafted) < 0.8
