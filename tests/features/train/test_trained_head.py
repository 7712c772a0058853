"""What `specbench train` says of a head: whether it is worth using, and the command that uses it."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import LengthPrediction
from specbench.cli.trained_head import show_head
from specbench.config.options import Options
from specbench.config.pair import HeadKind, default_base
from specbench.data.task import Sample
from specbench.decoding.traits import Theory, Traits
from specbench.features.train.head_trial import Gain, HeadTrial, method_of
from specbench.features.train.train_head import TrainingResult
from specbench.resolution.selection import read_pair, read_task
from specbench.training.texts import TaskSource, Text, Texts, split_of
from tests.fixtures.summaries import method_summary, run_summary

REPORT = {
    "acceptance": 0.5, "acceptance_low": 0.4, "acceptance_high": 0.6, "draft_length": 5, "decoding_temperature": 0.0,
    "decoded_texts": 10, "overlap": 0.7, "train_texts": 30, "test_texts": 10, "steps": 7, "epochs": 2.0, "loss": 0.1,
    "cross_entropy": 1.0, "answers": "outputs", "temperature": 0.0, "ended": "minutes", "falling": False,
}  # fmt: skip


def trial(speedup: Estimate, **predicted: float) -> HeadTrial:
    """A trial of `eagle` with draft length 5, and the predicted speedups of other lengths: `at_3=1.2`."""
    lengths = [
        LengthPrediction(
            int(key.removeprefix("at_")), Estimate(value, value - 0.1, value + 0.1), Estimate(1.0, 0.9, 1.1)
        )
        for key, value in predicted.items()
    ]
    summary = run_summary(method_summary("eagle", values={"speedup": speedup}, predicted_lengths=lengths))
    return HeadTrial("eagle", "ar", (summary,), (Gain(summary, speedup),), Estimate(0.45, 0.35, 0.55))


def over_sd(speedup: Estimate, over_ar: Estimate) -> HeadTrial:
    """A trial of `dsl`, whose gain is the speedup over `sd`."""
    summary = run_summary(method_summary("dsl", values={"speedup": over_ar}), method_summary("sd"))
    return HeadTrial("dsl", "sd", (summary,), (Gain(summary, speedup),))


def shown(capsys, tried: HeadTrial | None, source: str = "synthetic", skip: int = 0, report=REPORT, **more) -> str:
    """Return what is printed for an EAGLE head that was trained on the task gsm8k, named by a file."""
    _, task = read_task("gsm8k", read_pair("tiny", Options())[1], Options())
    head = TrainingResult(
        kind=HeadKind.eagle, base="target", sources=(TaskSource("gsm8k", task, source, "own/gsm8k.toml"),),
        folder=Path("my heads/e"), report=report, skip=skip, trial=tried, **more,
    )  # fmt: skip
    show_head(head, ["-p", "own.toml"])
    return capsys.readouterr().out


COMMAND = "specbench run -m eagle -t own/gsm8k.toml -p own.toml --head 'eagle@target=my heads/e'"


@pytest.mark.parametrize(
    ("speedup", "predicted"), [(Estimate(1.2, 1.1, 1.3), {}), (Estimate(1.2, 1.1, 1.3), {"at_2": 1.5})]
)
def test_a_head_that_is_measured_to_be_faster_is_recommended_with_its_command(capsys, speedup, predicted):
    """A measured speedup counts before a predicted one. The task is named as in the request."""
    text = shown(capsys, trial(speedup, **predicted))
    assert text.splitlines()[-1] == f"To use the head: {COMMAND}"
    assert "10 unseen prompts at T = 0 with drafts of 5: acceptance rate 0.500 [0.400, 0.600]" in text
    assert "acceptance rate 0.450 [0.350, 0.550]; 0.500 [0.400, 0.600] after training" in text
    assert (
        "trained and evaluated on outputs of the target at T = 0" in text and "30 texts for 7 steps (2 epochs)" in text
    )
    assert "eagle with this head is faster than ar." in text


def test_a_head_that_is_predicted_to_be_faster_is_not_said_to_be(capsys):
    text = shown(capsys, trial(Estimate(0.9, 0.8, 0.95), at_2=1.2))
    assert text.splitlines()[-1] == (
        f"Predicted at draft length 2: 1.20x [1.10, 1.30]. To measure it: {COMMAND} --gamma 2"
    )


@pytest.mark.parametrize(
    ("speedup", "predicted", "says"),
    [
        (Estimate(0.9, 0.8, 0.95), {"at_1": 1.05}, "is slower than ar."),
        (Estimate(1.02, 0.97, 1.07), {}, "is not shown to be faster than ar."),
        (Estimate(1.2, None, None), {}, "At least 5 held-out prompts are needed"),
    ],
)
def test_a_head_without_a_certain_speedup_is_not_recommended(capsys, speedup, predicted, says):
    """Without an interval, no speedup is certain, and nothing is advised."""
    text = shown(capsys, trial(speedup, **predicted))
    assert says in text and "specbench run" not in text and "faster than ar." not in text.replace(says, "")
    assert ("may help" in text) == (speedup.low is not None)


@pytest.mark.parametrize(
    ("speedup", "says"),
    [
        (Estimate(1.1, 1.05, 1.2), "dsl with this head is faster than sd."),
        (Estimate(0.8, 0.7, 0.9), "dsl with this head is slower than sd."),
        (Estimate(1.0, 0.9, 1.1), "dsl with this head is not shown to be faster than sd."),
    ],
)
def test_a_draft_length_head_is_judged_by_its_speedup_over_sd(capsys, speedup, says):
    """Both speedups are printed with their baselines, and the verdict is about one of them."""
    text = shown(capsys, over_sd(speedup, Estimate(1.41, 1.35, 1.47)))
    assert f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] as fast as sd, 1.41x" in text
    assert "1.41x [1.35, 1.47] as fast as ar" in text and says in text
    assert ("To use the head" in text) == (speedup.low > 1.0)


@pytest.mark.parametrize(
    ("changes", "more", "advice"),
    [
        ({"falling": True}, {}, "train for longer: a larger --minutes"),
        ({"falling": True, "ended": "epochs"}, {}, "train for longer: --set recipe.epochs=4"),
        ({}, {"texts_omitted": 70}, "left out 70 texts; a larger --minutes collects more."),
        ({}, {"is_limited": True}, "no longer falls; more texts may help: --limit 0 or --data"),
        ({"ended": "validation"}, {}, "no longer falls; more texts may help: --data"),
        ({"falling": None}, {}, "More texts may help: --data"),
    ],
)
def test_longer_training_is_advised_only_if_the_loss_falls_and_a_limit_ended_training(capsys, changes, more, advice):
    text = shown(capsys, trial(Estimate(0.9, 0.8, 0.95)), report={**REPORT, **changes}, **more)
    assert text.splitlines()[-1].endswith(advice)
    assert ("for longer" in text) == (changes.get("falling") is True)


def test_training_is_not_advised_for_rounds_that_cost_more_than_they_can_commit(capsys):
    """A round of 5 drafted tokens commits at most 6: at a cost of 8 tokens, no acceptance rate is worth it."""
    speedup = Estimate(0.5, 0.4, 0.6)
    eagle = method_summary(
        "eagle", values={"speedup": speedup, "accepted_length": 4.0, "acceptance_rate": 0.6, "tokens_per_second": 50.0}
    )
    summary = run_summary(method_summary("ar", values={"tokens_per_second": 100.0}), eagle)
    traits = Traits(roles=("target",), theory=Theory(formula="speculation", models=("eagle", "target"), gamma=(5,)))
    methods = {**summary.spec.methods, "eagle": replace(summary.spec.methods["eagle"], traits=traits)}
    summary = replace(summary, spec=replace(summary.spec, methods=methods))
    text = shown(
        capsys, HeadTrial("eagle", "ar", (summary,), (Gain(summary, speedup),)), report={**REPORT, "falling": True}
    )
    assert "8.00 tokens of ar, but commits at most 6" in text
    assert text.splitlines()[-1].startswith("Each round of eagle commits 4.00 tokens"), "the trial's reason is last"


def test_the_command_measures_on_rows_that_training_left_out(capsys):
    fast = trial(Estimate(1.2, 1.1, 1.3))
    assert shown(capsys, fast, "own.jsonl", skip=50).splitlines()[-1].endswith(" -n 50")
    assert "also training rows" in shown(capsys, fast, "own.jsonl").splitlines()[-1]
    assert " -n " not in shown(capsys, fast, "hub", skip=50).splitlines()[-1]


def test_a_head_without_a_trial_says_so(capsys):
    assert f"No trial was run. To measure the head: {COMMAND}" in shown(capsys, None)


def test_every_kind_of_head_has_a_method_on_its_own_base():
    assert {kind: method_of(kind, default_base(kind)) for kind in HeadKind} == {kind: kind.value for kind in HeadKind}
    assert method_of(HeadKind.eagle, "middle") == "polybasic"
    assert method_of(HeadKind.eagle, "other") == ""


def test_held_out_texts_are_those_of_the_test_split():
    """Of the collected texts alone."""
    texts = Texts([Text(i, [i], [], Sample(str(i), ""), "ab"[i % 2]) for i in range(100)], {"texts": 100})
    found = texts.first(50).held_out(3)
    assert {text.number for text in found} == {i for i in range(50) if split_of(i, 3) == "test"}
    assert texts.first(50).about["texts"] == 50
