"""The text after each prompt that a head is trained and evaluated on: the models' outputs, or the data's answers."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specbench.config.options import Options
from specbench.config.pair import Answers, HeadKind
from specbench.data.task import Sample
from specbench.features.train.train_head import TrainRequest, train_head
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.observer import Observer
from specbench.resolution.selection import read_pair, read_task
from specbench.training import classifier_training as classifiers
from specbench.training.recipes import DraftRollout, PrefixRollout
from specbench.training.texts import Text, Writing
from tests.fixtures.console import specbench

LETTERS = "zq xw vk jj " * 12  # an answer that the bundled models never give


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """Problems of the synthetic task, with answers that the target would not write."""
    _, task = read_task("gsm8k", read_pair("tiny", Options())[1], Options())
    found = task.texts("synthetic")[0].rows[:60]
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "answer": f"{LETTERS}#### 7"}) + "\n" for row in found))
    return path


def quick(rows: Path, out: Path, *more: object) -> list[object]:
    """Arguments of `train eagle` for a few steps on short outputs."""
    sets = ("recipe.epochs=8", "recipe.batch=600", "recipe.warm_up=5", "task.max_new_tokens=24")
    return [
        "eagle",
        "-p",
        "tiny",
        "-t",
        "gsm8k",
        "--data",
        rows,
        "-o",
        out,
        *(a for s in sets for a in ("-s", s)),
        *more,
    ]


def collected_rows(folder: Path) -> dict[str, torch.Tensor]:
    """The rows of the first shard of a head."""
    return load_file(next((folder / "collected").glob("*/000000.safetensors")))


def test_an_eagle_head_is_trained_on_the_targets_outputs_and_their_acceptance_is_what_the_trial_measures(
    tmp_path, rows
):
    """The data's answers are not the target's: the acceptance after training is still that of decoding."""
    shown = specbench("train", *quick(rows, tmp_path / "head", "--trial", 12), cwd=tmp_path).stdout
    assert "trained and evaluated on outputs of the target at T = 0" in shown
    report = json.loads((tmp_path / "head" / "report.json").read_text())
    assert (report["answers"], report["temperature"], report["decoded_texts"]) == ("outputs", 0.0, 12)
    (trial,) = (row for row in report["trial"] if row["method"] == "eagle")
    assert report["acceptance_low"] <= trial["acceptance_rate"] <= report["acceptance_high"]
    assert trial["acceptance_rate"] == pytest.approx(report["acceptance"]), "of the same 12 prompts, at T = 0"
    specbench(
        "run", "-m", "ar", "-p", "tiny", "-t", "gsm8k", "--data", rows, "-n", 60, "--repeats", 1, "--max-new-tokens", 24,
        "-o", tmp_path / "runs", cwd=tmp_path,
    )  # fmt: skip
    (samples,) = (tmp_path / "runs").glob("*/samples.jsonl")
    outputs = {tuple(json.loads(line)["tokens"]) for line in samples.read_text().splitlines() if "tokens" in line}
    found = collected_rows(tmp_path / "head")
    texts = [found["token"][(found["text"] == n) & found["own"]] for n in found["text"].unique()]
    same = sum(tuple(tokens.tolist()) in outputs for tokens in texts)
    assert same >= 0.9 * len(texts) == 18.0, "batched generation may differ in near-ties"


@pytest.mark.slow
def test_reference_answers_are_an_explicit_choice_and_the_acceptance_is_still_that_of_decoding(tmp_path, rows):
    shown = specbench(
        "train", *quick(rows, tmp_path / "head", "--answers", "reference", "--trial", 12), cwd=tmp_path
    ).stdout
    assert "trained and evaluated on the reference answers of the data" in shown
    report = json.loads((tmp_path / "head" / "report.json").read_text())
    (trial,) = (row for row in report["trial"] if row["method"] == "eagle")
    assert report["answers"] == "reference" and "temperature" not in report
    assert trial["acceptance_rate"] == pytest.approx(report["acceptance"])
    assert report["overlap"] > report["acceptance"] + 0.1, "the text that it learned is not what the target writes"


class Interrupting(Observer):
    """Interrupts the collection after a number of texts, and counts the texts."""

    def __init__(self, after: int) -> None:
        self.texts, self._after = 0, after

    @contextmanager
    def progress(self, label, total, done=0):
        def advance():
            self.texts += label.startswith("collecting")
            if self.texts == self._after:
                raise KeyboardInterrupt

        yield advance


def test_outputs_that_were_generated_before_an_interruption_are_not_generated_again(tmp_path, rows, monkeypatch):
    request = TrainRequest(
        kind=HeadKind.eagle, pair="tiny", tasks=("gsm8k",), out=tmp_path / "head", trial=0,
        options=Options(data=(("", str(rows)),), overrides=(("task.max_new_tokens", 8),)),
        recipe={"epochs": 1, "batch": 600, "warm_up": 2},
    )  # fmt: skip
    written: list[int] = []
    answered = Writing.with_generated_answers

    def counted(self, pair, texts):
        written.extend(text.number for text in texts)
        return answered(self, pair, texts)

    monkeypatch.setattr(Writing, "with_generated_answers", counted)
    with pytest.raises(KeyboardInterrupt):
        train_head(request, Interrupting(30))
    assert written == list(range(40))
    train_head(request, Observer())
    assert written[40:] == list(range(20, 60)), "the first shard was complete"


@pytest.fixture(scope="module")
def pair():
    """The bundled draft and target."""
    _, found = read_pair("tiny", Options())
    models = resolve_models(found, ("draft", "target"), Path(), Execution(torch.device("cpu"), "float32"))
    return load(models, Path(), torch.device("cpu"))


def test_outputs_end_at_a_stop_string_and_at_the_limits(pair):
    """In one batch as alone: the limit of new tokens, the longest text, and the first stop string."""
    prompt = pair.tokenizer.encode(
        "Question: Ann has 3 apples and buys 4 more. How many apples does Ann have?\nAnswer:"
    )
    long = Text(0, prompt, [], Sample("0", ""), "", max_new_tokens=30)
    writing = Writing("target", 1000, 0.0, 0)
    (whole,) = writing.with_generated_answers(pair, [long])
    text = pair.tokenizer.decode(whole.rest)
    stop = text[8:11]
    texts = [
        Text(1, prompt[3:], [], Sample("1", ""), "", max_new_tokens=5),
        Text(2, prompt, [], Sample("2", ""), "", max_new_tokens=30, stop=(stop,)),
        Text(3, prompt, [], Sample("3", ""), "", max_new_tokens=30),
    ]
    short, stopped, same = (each.rest for each in writing.with_generated_answers(pair, texts))
    assert len(short) <= 5 and same == whole.rest
    assert stop in pair.tokenizer.decode(stopped) and stop not in pair.tokenizer.decode(stopped[:-1])
    (cut,) = Writing("target", len(prompt) + 2, 0.0, 0).with_generated_answers(pair, [long])
    assert cut.rest == whole.rest[:2]


def test_rows_of_every_kind_follow_the_chosen_answers(pair):
    """Along a reference answer, the heads see the prefixes that it has; along outputs, they do not depend on it."""
    prompt = pair.tokenizer.encode("Question: Ann has 3 apples.")
    one, other = (
        Text(0, prompt, pair.tokenizer.encode(answer), Sample("0", ""), "") for answer in (LETTERS, "Ann has 3 apples.")
    )
    collect = {
        "state": lambda text, answers: classifiers.specdec_rows(pair, text, DraftRollout(answers=answers, steps=8)),
        "inputs": lambda text, answers: classifiers.dsl_rows(pair, text, DraftRollout(answers=answers, steps=8)),
        "q": lambda text, answers: classifiers.sprinter_rows(pair, text, PrefixRollout(answers=answers, steps=8)),
    }
    for column, rows_of in collect.items():
        outputs = [rows_of(text, Answers.outputs)[column] for text in (one, other)]
        reference = [rows_of(text, Answers.reference)[column] for text in (one, other)]
        assert torch.equal(*outputs), column
        assert reference[0].shape != reference[1].shape or not torch.equal(*reference), column
