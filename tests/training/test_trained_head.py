"""What `specbench train` says of a head: whether it is worth using, and the command that uses it."""

from pathlib import Path

import pytest

from specbench.analysis.draft_lengths import LengthPrediction
from specbench.analysis.intervals import Estimate
from specbench.cli.trained_head import show
from specbench.config.options import Options
from specbench.config.pair import HeadKind
from specbench.data.task import Sample
from specbench.experiment.head_training import TrainedHead
from specbench.experiment.head_trial import HeadTrial, method_of
from specbench.experiment.selection import read_pair, read_task
from specbench.training.texts import Source, Text, Texts, split_of
from tests.fixtures.summaries import method_summary, run_summary

REPORT = {
    "overlap": 0.5, "overlap_low": 0.4, "overlap_high": 0.6, "train_texts": 30, "test_texts": 10, "steps": 7,
    "epochs": 2.0, "smooth_l1": 0.1, "cross_entropy": 1.0,
}  # fmt: skip


def trial(speedup: Estimate, **predicted: float) -> HeadTrial:
    """A trial of `eagle` with draft length 5, and the predicted speedups of other lengths: `at_3=1.2`."""
    lengths = [
        LengthPrediction(
            int(key.removeprefix("at_")), Estimate(value, value - 0.1, value + 0.1), Estimate(1.0, 0.9, 1.1)
        )
        for key, value in predicted.items()
    ]
    found = {"values": {"speedup": speedup}, "predicted_lengths": lengths}
    return HeadTrial("eagle", (run_summary(method_summary("eagle", **found)),))


def shown(capsys, tried: HeadTrial | None, source: str = "synthetic", skip: int = 0) -> str:
    """Return what is printed for an EAGLE head that was trained on the task gsm8k, named by a file."""
    _, task = read_task("gsm8k", read_pair("tiny", Options())[1], Options())
    head = TrainedHead(
        kind=HeadKind.eagle, base="target", sources=(Source("gsm8k", task, source, "own/gsm8k.toml"),),
        folder=Path("my heads/e"), report=REPORT, skip=skip, trial=tried,
    )  # fmt: skip
    show(head, ["-p", "own.toml"])
    return capsys.readouterr().out


COMMAND = "specbench run -m eagle -t own/gsm8k.toml -p own.toml --head 'eagle@target=my heads/e'"


@pytest.mark.parametrize(
    ("speedup", "predicted"), [(Estimate(1.2, 1.1, 1.3), {}), (Estimate(1.2, 1.1, 1.3), {"at_2": 1.5})]
)
def test_a_head_that_is_measured_to_be_faster_is_recommended_with_its_command(capsys, speedup, predicted):
    """A measured speedup counts before a predicted one. The task is named as in the request."""
    text = shown(capsys, trial(speedup, **predicted))
    assert text.splitlines()[-1] == f"To use the head: {COMMAND}"
    assert "probability 0.500 [0.400, 0.600] at T = 1" in text and "30 texts for 7 steps (2 epochs)" in text


def test_a_head_that_is_predicted_to_be_faster_is_not_said_to_be(capsys):
    text = shown(capsys, trial(Estimate(0.9, 0.8, 0.95), at_2=1.2))
    assert text.splitlines()[-1] == (
        f"Predicted at draft length 2: 1.20x [1.10, 1.30]. To measure it: {COMMAND} --gamma 2"
    )


@pytest.mark.parametrize(
    ("speedup", "predicted"),
    [(Estimate(0.9, 0.8, 0.95), {"at_1": 1.05}), (Estimate(1.02, 0.97, 1.07), {}), (Estimate(1.2, None, None), {})],
)
def test_a_head_without_a_certain_speedup_is_not_recommended(capsys, speedup, predicted):
    """Without an interval, no speedup is certain."""
    last = shown(capsys, trial(speedup, **predicted)).splitlines()[-1]
    assert last.startswith("The trial shows no speedup with this head.") and "specbench run" not in last


def test_the_command_measures_on_rows_that_training_left_out(capsys):
    fast = trial(Estimate(1.2, 1.1, 1.3))
    assert shown(capsys, fast, "own.jsonl", skip=50).splitlines()[-1].endswith(" -n 50")
    assert "also training rows" in shown(capsys, fast, "own.jsonl").splitlines()[-1]
    assert " -n " not in shown(capsys, fast, "hub", skip=50).splitlines()[-1]


def test_a_head_without_a_trial_says_so(capsys):
    assert f"No trial was run. To measure the head: {COMMAND}" in shown(capsys, None)


def test_every_kind_of_head_has_a_method_on_its_own_base():
    assert {kind: method_of(kind, "target" if kind == HeadKind.eagle else "draft") for kind in HeadKind} == {
        HeadKind.sprinter: "sprinter", HeadKind.specdec: "specdec++", HeadKind.dsl: "dsl", HeadKind.eagle: "eagle",
    }  # fmt: skip
    assert method_of(HeadKind.eagle, "middle") == "polybasic"
    assert method_of(HeadKind.eagle, "other") == ""


def test_held_out_prompts_are_those_of_the_test_split():
    """Of one task, and of the collected texts alone."""
    texts = Texts([Text(i, [i], [], Sample(str(i), ""), "ab"[i % 2]) for i in range(100)], {"texts": 100})
    found = texts.first(50).held_out("a", 3)
    assert {sample.id for sample in found} == {str(i) for i in range(0, 50, 2) if split_of(i, 3) == "test"}
    assert texts.first(50).about["texts"] == 50
