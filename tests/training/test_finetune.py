"""Fine-tuning of a model with transformers' Trainer."""

import json
import shutil

import pytest

from specbench.config.pair import PACKAGE
from tests.fixtures import console

pytest.importorskip("accelerate", reason="needs accelerate")


def test_a_t5_model_is_fine_tuned_and_used_by_task(tmp_path):
    shutil.copytree(PACKAGE / "tiny/models/t5-small", tmp_path / "small")
    (tmp_path / "mine.toml").write_text(
        '[models.draft]\npath = "small"\n\n[models.target]\npath = "specbench:tiny/models/t5-large"\n'
        '[defaults]\ndata = "synthetic"\ntasks = ["wmt"]\n'
    )
    few = ["--base", "draft", "-t", "wmt", "-n", 60, "-s", "recipe.epochs=2", "-s", "recipe.batch=12"]
    shown = console.specbench("train", "finetune", "-p", "mine.toml", *few, "-o", "tuned", cwd=tmp_path).stdout
    report = json.loads((tmp_path / "tuned/report.json").read_text())
    assert report["train_texts"] == 36 and report["steps"] == 6
    assert report["loss"] < report["loss_before"]
    assert 'by_task = { "wmt" = "tuned" }' in shown
    pair = (tmp_path / "mine.toml").read_text().replace('"small"', '"small"\nby_task = { "wmt" = "tuned" }')
    (tmp_path / "mine.toml").write_text(pair)
    console.specbench("run", "-p", "mine.toml", "-n", 2, "--repeats", 1, "--max-new-tokens", 4, cwd=tmp_path)
    (spec,) = (tmp_path / "results").glob("*/run.toml")
    assert 'source = "tuned"' in spec.read_text()


def test_a_decoder_learns_the_answers_only(tmp_path):
    few = ["--base", "draft", "-t", "gsm8k", "-n", 40, "-s", "recipe.epochs=1", "-s", "recipe.batch=8", "--minutes", 5]
    console.specbench("train", "finetune", "-p", "tiny", *few, "-s", "recipe.rate=1e-4", "-o", "tuned", cwd=tmp_path)
    report = json.loads((tmp_path / "tuned/report.json").read_text())
    assert report["steps"] == 3 and report["loss"] < 1.5, "the prompt's tokens would be harder to predict"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "wmt,xsum"], "finetune takes one task"),
        (["-t", "wmt", "--tau", 1.5], "--tau have no effect on finetune"),
        (["-t", "wmt", "--base", "drafft"], "no model 'drafft' (did you mean 'draft'?)"),
        (["-t", "wmt", "-s", "recipe.epoch=2"], "did you mean 'epochs'"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path):
    done = console.specbench("train", "finetune", "-p", "tiny-t5", *arguments, cwd=tmp_path, code=2)
    assert message in " ".join(done.stderr.split())
