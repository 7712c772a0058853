"""Heads that a suite trains: names, folders, reuse, and rows that are never measured too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.config.options import Access
from specbench.config.suite import read_suite
from specbench.errors import ConfigError
from specbench.experiment import preparation
from specbench.experiment.head_training import TrainRequest
from specbench.experiment.preparation import prepare, untrained
from specbench.experiment.prepared_heads import with_prepared
from specbench.observer import Observer
from tests.fixtures import console

SUITE = """
paper = "P"
shows = "S"
description = "D"
options = { limit = 4, repeats = 1, max_new_tokens = 20, temperature = 1.0 }

[[prepare]]
kind = "sprinter"
pairs = ["tiny"]
tasks = ["cnndm"]
tau = [1.0, 1.5]
limit = 30

[[grid]]
methods = ["sprinter", "sd"]
pairs = ["tiny"]
tasks = ["cnndm"]
over = { "sprinter.head" = ["sprinter/1", "sprinter/1.5"] }

[[tables]]
rows = ["method", "setting"]
values = ["average_tokens"]
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def trained(monkeypatch):
    """Requests for heads, in place of their training."""
    requests: list[TrainRequest] = []

    def train(request, observer):
        requests.append(request)
        request.out.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(preparation, "train_head", train)
    return requests


def test_there_is_a_head_for_each_tau_and_they_share_the_collected_outputs(suite, trained, tmp_path):
    wanted = read_suite(str(suite))
    assert [head.name for head in untrained(wanted, tmp_path)] == ["sprinter/1", "sprinter/1.5"]
    assert prepare(wanted, tmp_path, Access(), Observer()) == []
    assert [request.tau for request in trained] == [1.0, 1.5]
    assert len({request.collected for request in trained}) == 1 and len({request.out for request in trained}) == 2
    assert untrained(wanted, tmp_path) == []
    prepare(wanted, tmp_path, Access(), Observer())
    assert len(trained) == 2, "heads that exist are reused"


def test_a_labelled_head_stands_beside_the_one_of_another_recipe(suite, trained, tmp_path):
    """SPRINTER's Tables 2 and 3: the authors' recipe, whose split leaks, beside ours. A label is no part of what trains."""
    other = SUITE.replace("tau = [1.0, 1.5]", 'label = "leaking"\nrecipe = { split = "rows" }')
    suite.write_text(SUITE + other[other.index("[[prepare]]") : other.index("[[grid]]")])
    wanted = read_suite(str(suite))
    assert [head.name for head in untrained(wanted, tmp_path)] == ["sprinter/1", "sprinter/1.5", "sprinter/leaking"]
    assert prepare(wanted, tmp_path, Access(), Observer()) == []
    assert [request.recipe for request in trained] == [{}, {}, {"split": "rows"}]
    assert trained[-1].out.name.endswith("-leaking") and trained[-1].collected == trained[0].collected
    for name in ("sprinter-table2", "sprinter-table3", "sprinter-table2-tiny", "sprinter-table3-tiny"):
        steps = [step for step in read_suite(name).prepare if step.label]
        assert {(step.label, step.recipe["split"], step.recipe["temperature"]) for step in steps} == {
            ("authors-leaking", "rows", 0.0)
        }


def test_a_head_that_was_trained_from_something_else_is_trained_again(suite, trained, tmp_path):
    prepare(read_suite(str(suite)), tmp_path, Access(), Observer())
    suite.write_text(SUITE.replace("limit = 30", "limit = 40"))
    prepare(read_suite(str(suite)), tmp_path, Access(), Observer())
    assert [request.count for request in trained] == [30, 30, 40, 40]


def test_heads_that_the_user_gives_are_not_trained(suite, trained, tmp_path):
    wanted = read_suite(str(suite), heads=(("tiny:sprinter", "mine"),))
    assert untrained(wanted, tmp_path) == []
    line = wanted.grid[0]
    assert with_prepared(wanted, "tiny", "cnndm", line.options, tmp_path).heads == line.options.heads


def test_measured_rows_of_a_file_are_left_out_of_training(suite, trained, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"article": f"a {i}", "highlights": "h"}) + "\n" for i in range(20)))
    prepare(read_suite(str(suite), data=(("cnndm", str(rows)),)), tmp_path, Access(), Observer())
    assert {request.skip for request in trained} == {4}
    sampled = read_suite(str(suite), data=(("cnndm", str(rows)),))
    (line,) = sampled.grid
    sampled = replace(sampled, grid=(replace(line, options=replace(line.options, limit=None, sample=3)),))
    with pytest.raises(ConfigError, match="--limit N measures the first N rows only"):
        prepare(sampled, tmp_path, Access(), Observer())


def test_an_unknown_kind_is_named_with_the_nearest_one(suite):
    suite.write_text(SUITE.replace('kind = "sprinter"', 'kind = "sprintr"'))
    with pytest.raises(ConfigError, match=r"prepare\[0\]: kind = 'sprintr'.*did you mean 'sprinter'"):
        read_suite(str(suite))


def test_one_command_trains_and_measures(suite, tmp_path):
    shown = "".join(console.specbench("run", "--suite", suite, cwd=tmp_path))
    assert "training sprinter/1.5 of tiny on cnndm" in shown
    assert "Verifiers on texts that they were not trained on" in shown
    reports = sorted(Path(tmp_path, "results", "heads", "tiny", "cnndm").glob("*/report.json"))
    assert [json.loads(path.read_text())["tau_train"] for path in reports] == [1.0, 1.5]
    console.specbench("report", "--suite", suite, "--plots", "drawn", cwd=tmp_path)
    assert {"own-roc.svg", "own-run-length.svg"} <= {path.name for path in (tmp_path / "drawn").iterdir()}
