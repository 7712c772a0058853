"""`specbench advise`: the answer in words, and the whole command."""

import json
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specbench.analysis.advice import Advice, CandidateResult
from specbench.analysis.intervals import Estimate
from specbench.reporting.advice import answer
from specbench.resolution.candidates import candidate_of
from tests.fixtures import console

BEST = candidate_of("sd-4", {"name": "model", "model": "draft", "gamma": 4})


def advice(gain: Estimate | None, measured: Estimate | None = None, is_out_of_time: bool = False) -> Advice:
    result = CandidateResult(candidate=BEST, predicted=Estimate(1.5, 1.4, 1.6), measured=measured or gain, parts=1)
    nothing = SimpleNamespace(pair="tiny", task="gsm8k", baseline="ar")
    return Advice(
        results=[result], gain=gain, pilot=nothing, pilot_row=nothing, break_even=None, block_price=None, final=nothing,
        is_out_of_time=is_out_of_time,
    )  # fmt: skip


def words(found: Advice) -> str:
    return "\n".join(answer(found))


def test_a_method_that_pays_comes_with_its_toml_and_the_options_of_other_engines():
    shown = words(advice(Estimate(1.4, 1.3, 1.5)))
    assert shown.startswith("Use sd-4: 1.40x [1.30, 1.50], measured on held-out prompts.")
    table = tomllib.loads(shown[shown.index("#") : shown.index("vLLM")])
    assert table["proposer"] == {"name": "model", "model": "draft", "gamma": 4}
    assert (
        '"num_speculative_tokens": 4' in shown
        and "--spec-draft-n-max 4" in shown
        and shown.count("not measured there") == 3
    )


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
    assert (
        "The time limit was reached before any candidate was measured. sd-4 has the highest prediction, 1.50x"
        in words(nothing)
    )
    some = advice(None, measured=Estimate(1.4, 1.3, 1.5), is_out_of_time=True)
    assert "measured on the prompts used for selection" in words(some)


def test_the_command_ends_with_an_answer(tmp_path):
    few = ("-t", "gsm8k", "--data", "synthetic", "-n", 10, "--repeats", 1, "--max-new-tokens", 12)
    shown = " ".join(console.specbench("advise", *few, cwd=tmp_path).stdout.split())
    assert "decoding speedup over the target alone" in shown and "acceptance" in shown
    assert any(text in shown for text in ("Use ", "Do not speculate here", "It cannot be decided"))
    found = json.loads(console.specbench("advise", *few, "--json", "--write", "best.toml", cwd=tmp_path).stdout)
    assert (tmp_path / "best.toml").exists() == bool(found["pays"])
    assert {"pays", "method", "gain", "candidates"} <= found.keys() and len(found["candidates"]) >= 12
