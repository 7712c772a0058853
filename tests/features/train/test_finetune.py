"""Fine-tuning of a model with transformers' Trainer."""

import json
import shutil

import pytest

from specbench.analysis.points import reference_of
from specbench.config.pair import PACKAGE
from specbench.config.presets import preset
from specbench.features.suites import prepared_models
from specbench.features.suites.suite import read_suite
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
        (["-t", "wmt,xsum"], "one task is needed"),
        (["-t", "wmt", "--tau", 1.5], "No such option: --tau"),
        (["-t", "wmt", "--base", "drafft"], "no model 'drafft' (did you mean 'draft'?)"),
        (["-t", "wmt", "-s", "recipe.epoch=2"], "did you mean 'epochs'"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path):
    done = console.specbench("train", "finetune", "-p", "tiny-t5", *arguments, cwd=tmp_path, code=2)
    assert message in " ".join(done.stderr.split())


SUITE = """
paper = "own"
shows = "Table 1"
description = "a pair that is fine-tuned on its task"
[options]
limit = 2
repeats = 1
max_new_tokens = 4
[[grid]]
methods = ["sd"]
pairs = ["tiny-t5"]
tasks = ["wmt"]
[[finetune]]
pairs = ["tiny-t5"]
tasks = ["wmt"]
roles = ["draft"]
limit = 30
recipe = { epochs = 1, batch = 12 }
"""


def test_a_suite_fine_tunes_its_models_once(tmp_path):
    """Runs use the fine-tuned model. It is fine-tuned again after a change of its recipe, and not if the user gives one."""
    suite = tmp_path / "own.toml"
    suite.write_text(SUITE)
    planned = console.specbench("plan", "--suite", "own.toml", cwd=tmp_path).stdout
    assert "pending" in planned and "draft of tiny-t5 on wmt is not fine-tuned" in planned
    first = console.specbench("run", "--suite", "own.toml", cwd=tmp_path).stderr
    assert "fine-tuning draft of tiny-t5 on wmt" in first
    (spec,) = (tmp_path / "results").glob("*/run.toml")
    assert 'source = "results/models/tiny-t5/wmt/draft"' in spec.read_text()
    again = "".join(console.specbench("run", "--suite", "own.toml", cwd=tmp_path))
    assert (
        "fine-tuning" not in again
        and "fine-tuned" not in console.specbench("plan", "--suite", "own.toml", cwd=tmp_path).stdout
    )
    suite.write_text(SUITE.replace("limit = 30", "limit = 20"))
    assert "is not fine-tuned" in console.specbench("plan", "--suite", "own.toml", cwd=tmp_path).stdout
    path = PACKAGE / "tiny/models/t5-small"
    given = console.specbench(
        "plan", "--suite", "own.toml", "-s", f"pair.models.draft.path={path}", cwd=tmp_path
    ).stdout
    assert "is not fine-tuned" not in given


def test_a_model_that_a_suite_fine_tunes_twice_is_named(tmp_path):
    (tmp_path / "own.toml").write_text(SUITE + SUITE[SUITE.index("[[finetune]]") :])
    shown = console.specbench("plan", "--suite", "own.toml", cwd=tmp_path, code=2).stderr
    assert "draft of tiny-t5 on wmt is fine-tuned twice" in " ".join(shown.split())


def test_a_model_is_not_fine_tuned_on_rows_that_another_line_of_the_grid_measures(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"source": "a b", "target": "b a"}\n' * 9)
    line = SUITE[SUITE.index("[[grid]]") : SUITE.index("[[finetune]]")]
    text = SUITE.replace("[options]", f'[options]\ndata = "{tmp_path}/rows.jsonl"') + line + "limit = 7\n"
    (tmp_path / "own.toml").write_text(text)
    (step,) = prepared_models.steps_of(read_suite(str(tmp_path / "own.toml")))
    assert step.skipped() == 7


def test_table_two_can_have_a_counterpart_of_every_printed_value():
    """Each pair and task of the paper has a pair that stands for it and that the suite measures."""
    measured = {
        (preset("pair", pair).table.get("stands_for"), task) for _, pair, task in read_suite("cascade-table2").parts()
    }
    printed = reference_of("cascade-table2")
    assert len(printed) == 84 and all((row.pair, row.task) in measured for row in printed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('roles = ["draft"]', 'roles = ["drafft"]'), "did you mean 'draft'"),
        (("epochs = 1", "epoch = 1"), "recipe: unknown key 'epoch' (did you mean 'epochs'?)"),
        (
            ('[[finetune]]\npairs = ["tiny-t5"]', '[[finetune]]\npairs = ["tiny"]'),
            "finetune[0]: no [[grid]] has one of its",
        ),
    ],
)
def test_a_mistake_in_a_fine_tuning_step_is_named_by_plan(tmp_path, change, message):
    (tmp_path / "own.toml").write_text(SUITE.replace(*change))
    shown = console.specbench("plan", "--suite", "own.toml", cwd=tmp_path, code=2).stderr
    assert message in " ".join(shown.split())


@pytest.mark.slow
def test_a_draft_is_made_of_layers_of_the_target(tmp_path):
    """It has the first and the last layer, learns the target's outputs, and drafts for it."""
    source = PACKAGE / "tiny/models/target"
    few = [
        "-n",
        40,
        "-s",
        "recipe.epochs=1",
        "-s",
        "recipe.batch=8",
        "-s",
        "task.max_new_tokens=24",
        "--data",
        "synthetic",
    ]
    shown = console.specbench(
        "train", "draft", "-p", f"target={source}", "-t", "gsm8k", "--layers", 2, *few, "-o", "small", cwd=tmp_path
    ).stdout
    config = json.loads((tmp_path / "small/config.json").read_text())
    last = json.loads((source / "config.json").read_text())["num_hidden_layers"] - 1
    assert config["num_hidden_layers"] == 2 and f"layers 0, {last} of" in shown
    report = json.loads((tmp_path / "small/report.json").read_text())
    assert report["answers"] == "outputs" and report["loss"] < report["loss_before"]
    assert f"next: specbench advise --target {source} --draft small -t gsm8k" in shown
    run = ["run", "-m", "sd", "--target", source, "--draft", "small", "-t", "gsm8k", "--data", "synthetic", "-n", 2]
    console.specbench(*run, "--repeats", 1, "--max-new-tokens", 8, cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "tiny-t5", "-t", "wmt"], "a draft of some layers needs a decoder-only target"),
        (["-p", "tiny", "-t", "gsm8k", "--layers", 99], "--layers must be from 1 to"),
        (["-p", "tiny", "-t", "gsm8k", "--base", "draft"], "No such option: --base"),
    ],
)
def test_a_draft_that_cannot_be_made_is_an_error(arguments, message, tmp_path):
    done = console.specbench("train", "draft", *arguments, "-n", 12, "--data", "synthetic", cwd=tmp_path, code=2)
    assert message in " ".join(done.stderr.split())
