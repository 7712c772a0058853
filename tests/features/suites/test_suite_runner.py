"""Heads that a suite trains: names, folders, reuse, and rows that are never measured too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.config.presets import in_scope, stem
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.features.suites import suite_runner
from specbench.features.suites.prepared_heads import with_prepared
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_index import Index, IndexEntry
from specbench.features.suites.suite_runner import train_missing, training_notes
from specbench.features.train.train_head import TrainRequest
from specbench.observer import Observer
from specbench.runs.run_state import RunState
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

    monkeypatch.setattr(suite_runner, "train_head", train)
    return requests


def untrained(suite, out):
    """Return the names of the heads that are to be trained."""
    return [note.text.split(" of ")[0] for note in training_notes(suite, out) if note.kind == "not trained"]


def test_there_is_a_head_for_each_tau_and_they_share_the_collected_outputs(suite, trained, tmp_path):
    wanted = read_suite(str(suite))
    assert untrained(wanted, tmp_path) == ["sprinter/1", "sprinter/1.5"]
    assert train_missing(wanted, tmp_path, Access(), Observer()) == []
    assert [request.tau for request in trained] == [1.0, 1.5]
    assert len({request.collected for request in trained}) == 1 and len({request.out for request in trained}) == 2
    assert untrained(wanted, tmp_path) == []
    train_missing(wanted, tmp_path, Access(), Observer())
    assert len(trained) == 2, "heads that exist are reused"


def test_a_labelled_head_stands_beside_the_one_of_another_recipe(suite, trained, tmp_path):
    """SPRINTER's Tables 2 and 3: verifiers with other recipes beside ours. A label is no part of what trains."""
    other = SUITE.replace("tau = [1.0, 1.5]", 'label = "leaking"\nrecipe = { split = "rows" }')
    suite.write_text(SUITE + other[other.index("[[prepare]]") : other.index("[[grid]]")])
    wanted = read_suite(str(suite))
    assert untrained(wanted, tmp_path) == ["sprinter/1", "sprinter/1.5", "sprinter/leaking"]
    assert train_missing(wanted, tmp_path, Access(), Observer()) == []
    assert [request.recipe for request in trained] == [{}, {}, {"split": "rows"}]
    assert trained[-1].out.name.endswith("-leaking") and trained[-1].collected == trained[0].collected
    for name in ("sprinter-table2", "sprinter-table3", "sprinter-table2-tiny", "sprinter-table3-tiny"):
        steps = [step for step in read_suite(name).prepare if step.label]
        assert {(step.label, step.recipe.get("split"), step.recipe.get("temperature")) for step in steps} == {
            ("greedy", None, 0.0), ("leaking", "rows", None), ("authors-leaking", "rows", 0.0)
        }  # fmt: skip


def test_a_head_that_was_trained_from_something_else_is_trained_again(suite, trained, tmp_path):
    train_missing(read_suite(str(suite)), tmp_path, Access(), Observer())
    suite.write_text(SUITE.replace("limit = 30", "limit = 40"))
    train_missing(read_suite(str(suite)), tmp_path, Access(), Observer())
    assert [request.count for request in trained] == [30, 30, 40, 40]


def test_heads_that_the_user_gives_are_not_trained(suite, trained, tmp_path):
    wanted = read_suite(str(suite), heads=(("tiny:sprinter", "mine"),))
    assert untrained(wanted, tmp_path) == []
    line = wanted.grid[0]
    assert with_prepared(wanted, "tiny", "cnndm", line.options, tmp_path).heads == line.options.heads


def test_measured_rows_of_a_file_are_left_out_of_training(suite, trained, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"article": f"a {i}", "highlights": "h"}) + "\n" for i in range(20)))
    train_missing(read_suite(str(suite), data=(("cnndm", str(rows)),)), tmp_path, Access(), Observer())
    assert {request.skip for request in trained} == {4}
    sampled = read_suite(str(suite), data=(("cnndm", str(rows)),))
    (line,) = sampled.grid
    sampled = replace(sampled, grid=(replace(line, options=replace(line.options, limit=None, sample=3)),))
    with pytest.raises(ConfigError, match="--limit N measures the first N rows only"):
        train_missing(sampled, tmp_path, Access(), Observer())


def test_an_unknown_kind_is_named_with_the_nearest_one(suite):
    suite.write_text(SUITE.replace('kind = "sprinter"', 'kind = "sprintr"'))
    with pytest.raises(ConfigError, match=r"prepare\[0\]: kind = 'sprintr'.*did you mean 'sprinter'"):
        read_suite(str(suite))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("limit = 40", "'sprinter/1' of tiny on cnndm"),
        ('features = "state+q"', "'sprinter/1' of tiny on cnndm"),
        ("tau = [1.5]\nlimit = 40", "'sprinter' of tiny on cnndm"),
    ],
)
def test_two_entries_that_train_one_head_are_a_mistake_in_the_suite(change, found, suite):
    """They have one name, or, with different numbers of values of tau, one folder and different recipes."""
    entry = SUITE[SUITE.index("[[prepare]]") : SUITE.index("[[grid]]")]
    old = "tau = [1.0, 1.5]\nlimit = 30" if "tau" in change else "limit = 30"
    suite.write_text(SUITE.replace("[[grid]]", entry.replace(old, change) + "[[grid]]"))
    with pytest.raises(
        ConfigError, match=rf"own\.toml: prepare\[0\] and prepare\[1\] both train {found}; help: a label"
    ):
        read_suite(str(suite))


def test_a_tau_that_an_entry_has_twice_is_a_mistake_in_the_suite(suite):
    suite.write_text(SUITE.replace("tau = [1.0, 1.5]", "tau = [1.5, 1.5]"))
    with pytest.raises(ConfigError, match=r"own\.toml: prepare\[0\] trains 'sprinter/1\.5' of tiny on cnndm twice"):
        read_suite(str(suite))


def test_one_command_trains_and_measures(suite, tmp_path):
    shown = "".join(console.specbench("run", "--suite", suite, cwd=tmp_path))
    assert "training sprinter/1.5 of tiny on cnndm" in shown
    assert "Verifiers on their test rows" in shown
    reports = sorted(Path(tmp_path, "results", "heads", "tiny", "cnndm").glob("*/report.json"))
    assert [json.loads(path.read_text())["tau_train"] for path in reports] == [1.0, 1.5]
    console.specbench("report", "--suite", suite, "--plots", "drawn", cwd=tmp_path)
    assert {"own-roc.svg", "own-run-length.svg"} <= {path.name for path in (tmp_path / "drawn").iterdir()}


HEAD = """
[[prepare]]
kind = "eagle"
base = "{base}"
on = "dialogues"
answers = "reference"
pairs = ["tiny-polybasic"]
tasks = ["gsm8k", "cnndm"]
limit = 0
recipe = {{ epochs = 1 }}
"""
CHAIN = f"""
paper = "P"
shows = "S"
description = "D"
options = {{ limit = 2, repeats = 1, max_new_tokens = 8, temperature = 0.0 }}
{HEAD.format(base="target")}{HEAD.format(base="middle")}
[[grid]]
methods = ["polybasic", "eagle"]
pairs = ["tiny-polybasic"]
tasks = ["gsm8k", "cnndm"]
"""


@pytest.fixture
def chain(tmp_path):
    """A suite that trains the heads of a chain on dialogues, and a file of them in ShareGPT's schema."""
    turns = [{"from": "human", "value": "Name a river."}, {"from": "gpt", "value": "The Elbe, which is long."}]
    (tmp_path / "dialogues.json").write_text(json.dumps([{"conversations": turns}] * 25))
    (tmp_path / "chain.toml").write_text(CHAIN)
    return str(tmp_path / "chain.toml"), (("dialogues", str(tmp_path / "dialogues.json")),)


def test_the_heads_of_a_chain_are_trained_on_other_rows_once_for_all_tasks(chain, trained, tmp_path):
    """One head per model. The rows of dialogues are not measured, so none is left out. They replace the pair's own heads."""
    name, data = chain
    wanted = read_suite(name, data=data)
    assert train_missing(wanted, tmp_path, Access(), Observer()) == []
    assert [(each.base, each.tasks, each.skip, each.count) for each in trained] == [
        ("target", ("dialogues",), 0, 0), ("middle", ("dialogues",), 0, 0)
    ]  # fmt: skip
    assert trained[0].out != trained[1].out
    heads = dict(with_prepared(wanted, "tiny-polybasic", "cnndm", wanted.grid[0].options, tmp_path).heads)
    assert heads == {"eagle@target": str(trained[0].out), "eagle@middle": str(trained[1].out)}
    mine = read_suite(name, data=data, heads=(("eagle@middle", "mine"),))
    assert untrained(mine, tmp_path / "other") == ["eagle@target"]


def test_without_rows_the_pairs_own_heads_are_used(chain, trained, tmp_path):
    wanted = read_suite(chain[0])
    assert train_missing(wanted, tmp_path, Access(), Observer()) == [] and not trained
    assert with_prepared(wanted, "tiny-polybasic", "gsm8k", wanted.grid[0].options, tmp_path).heads == ()
    notes = training_notes(wanted, tmp_path)
    assert [" is not trained without --data dialogues=FILE" in note.text for note in notes] == [True, True]


def test_the_plan_says_how_much_disk_the_features_take(chain, tmp_path):
    """25 texts of at most 1,024 tokens, as the pair's recipe has it, of 192 half-precision numbers and 17 bytes."""
    for note in training_notes(read_suite(chain[0], data=chain[1]), tmp_path)[:-1]:
        assert f"its features take at most {25 * 1024 * (2 * 192 + 17) / 1e9:.4f} GB in " in note.text
        assert note.text.endswith("25 texts")


def test_the_features_of_all_heads_are_compared_with_the_free_space_together(chain, trained, tmp_path, monkeypatch):
    """Each of two heads would fit alone. The line is in the plan, and is shown before the first training."""
    wanted, size = read_suite(chain[0], data=chain[1]), 25 * 1024 * (2 * 192 + 17)
    assert training_notes(wanted, tmp_path)[-1].text.startswith(
        f"features of EAGLE heads take at most {2 * size / 1e9:.4f} GB together; "
    )
    monkeypatch.setattr(suite_runner, "free_disk_bytes", lambda folder: int(1.5 * size))
    last, shown = training_notes(wanted, tmp_path)[-1].line, []
    assert last.startswith("! features of EAGLE heads take at most") and "help: a smaller limit or recipe.most" in last
    observer = Observer()
    monkeypatch.setattr(observer, "message", shown.append)
    train_missing(wanted, tmp_path, Access(), observer)
    assert shown[0] == last and len(trained) == 2


def test_polybasics_suites_train_both_heads_on_sharegpt():
    for name in ("polybasic-table1", "polybasic-table2", "polybasic-fig4"):
        suite = read_suite(name)
        pairs = {pair for _, pair, _ in suite.parts()}
        assert [(step.kind, step.base, step.on, step.limit) for step in suite.prepare] == [
            ("eagle", "target", "dialogues", 0), ("eagle", "middle", "dialogues", 0)
        ]  # fmt: skip
        assert all(set(step.pairs) == pairs for step in suite.prepare)


def test_a_chain_is_measured_with_the_heads_that_its_suite_trains(chain, tmp_path):
    name, (data,) = chain
    shown = "".join(console.specbench("run", "--suite", name, "--data", "=".join(data), cwd=tmp_path))
    assert "features of 25 texts take" in shown and "has no effect" not in shown
    specs = [path.read_text() for path in (tmp_path / "results").glob("*/run.toml")]
    assert len(specs) == 2 and all(
        "dialogues/eagle-middle" in text and "dialogues/eagle-target" in text for text in specs
    )


def test_a_name_with_a_dot_is_a_whole_name():
    """`llama-3.1-70b` is not `llama-3`: their heads are in two folders, and options of one do not apply to the other."""
    assert [stem(name) for name in ("llama-3.1-70b", "of/mine.toml", "wmt:de-en")] == [
        "llama-3.1-70b",
        "mine",
        "wmt:de-en",
    ]
    assert not in_scope("llama-3", "llama-3.1-70b") and in_scope("mine", "of/mine.toml")


def test_the_seconds_of_a_run_that_is_measured_again_do_not_include_the_earlier_ones(tmp_path):
    index, entry = (
        Index.of("mine", tmp_path),
        IndexEntry(key="a", state=RunState.done, pair="tiny", task="wmt", seconds=5.0),
    )
    for resumed, seconds in ((False, 5.0), (True, 10.0), (False, 5.0)):
        index.record(entry, resumed)
        assert index.runs["a"].seconds == seconds
