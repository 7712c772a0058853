"""Pairs with a checkpoint for each task, and pairs that stand for those of a paper."""

import json

import pytest

from specbench.config.options import Options
from specbench.config.request import Request
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_report import printed_values
from specbench.resolution.resolve import resolve
from specbench.resolution.selection import read_pair
from tests.fixtures import console

PAIR = """
[models.draft]
path = "specbench:tiny/models/draft"
by_task = { cnndm = "specbench:tiny/models/middle" }

[models.target]
path = "specbench:tiny/models/target"

[defaults]
data = "synthetic"
tasks = ["gsm8k", "cnndm"]
"""


@pytest.fixture
def pair(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PAIR)
    return path


def test_a_variant_has_the_checkpoint_of_its_task(pair):
    _, found = read_pair(str(pair), Options())
    paths = {
        task: found.on(task).models["draft"].path.rpartition("/")[2] for task in ("gsm8k", "cnndm", "cnndm:se-paper")
    }
    assert paths == {"gsm8k": "draft", "cnndm": "middle", "cnndm:se-paper": "middle"}


def test_each_task_is_measured_with_its_checkpoint(pair, tmp_path):
    console.specbench("run", "-p", pair, "-n", 2, "--repeats", 1, "--max-new-tokens", 4, cwd=tmp_path)
    texts = {path.parent.name: path.read_text() for path in (tmp_path / "results").glob("*/run.toml")}
    assert {"tiny/models/middle" in text for name, text in texts.items() if "cnndm" in name} == {True}
    assert {"tiny/models/middle" in text for name, text in texts.items() if "gsm8k" in name} == {False}


def test_data_that_suit_none_of_the_pairs_tasks_select_the_checkpoint_and_options_of_the_task_that_runs(pair, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hello."}\n{"prompt": "Good morning."}\n')
    options = ["--repeats", 1, "--set", "task.prompts.max_new_tokens=4"]
    console.specbench("run", "-m", "sd", "-p", pair, "--data", "rows.jsonl", *options, cwd=tmp_path)
    (folder,) = (tmp_path / "results").glob("*/run.toml")
    assert "prompts" in folder.parent.name and "max_new_tokens = 4" in folder.read_text()


def test_each_task_has_a_plan_with_its_checkpoint(pair, tmp_path):
    request = Request(methods=("sd",), pair=str(pair), options=Options(limit=1), out=tmp_path)
    found = resolve(request)
    drafts = {run.spec.task.name: plan.models["draft"].spec.path for plan in found.plans for run in plan.runs}
    assert {task: path.rpartition("/")[2] for task, path in drafts.items()} == {"gsm8k": "draft", "cnndm": "middle"}
    assert len(found.runs) == len(found.plans) == 2


def test_the_printed_values_are_shown_for_a_pair_that_stands_for_the_papers():
    printed = printed_values(read_suite("cascade-table2"))
    ours = {(row.task, row.method, row.metric): row.value for row in printed if row.pair == "bild"}
    papers = {(row.task, row.method, row.metric): row.value for row in printed if row.pair == "t5-v1.1 small-large"}
    assert ours == papers and len(ours) == 42


def test_fetch_lists_the_checkpoints_of_every_task(tmp_path):
    done = console.specbench(
        "fetch", "-p", "bild", "-t", "xsum,cnndm", "--dry-run", "--json", cwd=tmp_path, code={0, 4}
    )
    found = {each["repository"] for each in json.loads(done.stdout)["repositories"] if each["kind"] == "model"}
    assert found == {f"kssteven/T5-{size}-{task}" for size in ("small", "large") for task in ("xsum", "cnndm")}
