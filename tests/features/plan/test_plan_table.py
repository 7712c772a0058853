"""A plan's counts, token limits and bounds without weights and data."""

import json
from copy import copy
from dataclasses import replace

import pytest

from specbench.cli.plan import grouped_reasons
from specbench.errors import MissingAsset, NotCached
from specbench.features.suites import grid as plan_table
from specbench.features.suites.grid import GridPart, methods_in_short, plan_rows, resolve_grid
from specbench.features.suites.suite import TINY, read_suite, suites
from tests.fixtures.console import specbench
from tests.fixtures.plans import named_on_h200

PAPERS = [name for name in suites() if not name.endswith(TINY) and name + TINY in suites()]
COUNTS = ("pair", "task", "T", "generations", "tokens")


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """Set the bandwidth of this machine instead of measuring it."""
    monkeypatch.setattr(plan_table, "read_bandwidth", lambda device: 1e10)


def without_weights(suite):
    """Return the rows of a suite's parts, none of which has its weights."""
    rows = []
    for number, (line, pair, task) in enumerate(suite.parts()):
        rows += plan_rows(GridPart(line, pair, task, number, methods=line.methods, assets=[MissingAsset("weights")]))
    return rows


@pytest.mark.parametrize("name", [name for name in PAPERS if read_suite(name).kind == "runs"])
def test_generations_tokens_and_bounds_of_the_papers_suites_need_no_weights(name):
    suite = read_suite(name)
    rows, there = without_weights(suite), named_on_h200(name)
    assert {row.state for row in rows} == {"missing"}
    assert all(row.generations and row.tokens >= row.generations for row in rows)
    assert [(row.generations, row.tokens) for row in rows] == [(row.generations, row.tokens) for row in there]
    unknown = {row.pair for row in rows if row.least_seconds is None}
    assert unknown == {row.pair for row in there if not row.devices}
    assert all(row.least_seconds > 0 and row.bytes > 0 for row in rows if row.pair not in unknown)


@pytest.mark.parametrize("name", ["se-table2-tiny", "cascade-fig2-tiny"])
def test_a_run_is_counted_alike_with_and_without_its_weights(name, tmp_path):
    parts = resolve_grid(read_suite(name), tmp_path, None).parts
    for part in parts:
        assert part.plan
        with_weights = plan_rows(part)
        without = plan_rows(replace(part, plan=None, assets=[MissingAsset("weights")]))
        assert [[getattr(row, key) for key in COUNTS] for row in without] == [
            [getattr(row, key) for key in COUNTS] for row in with_weights
        ]
        for row, known in zip(without, with_weights, strict=True):
            assert row.methods == known.methods
            assert row.least_seconds == pytest.approx(known.least_seconds, rel=0.02)


def test_a_part_with_a_mistake_or_an_unknown_number_of_prompts_has_no_count(tmp_path):
    line, pair, task = next(read_suite("se-table2-tiny").parts())
    (invalid,) = plan_rows(GridPart(line, pair, task, 1, invalid="a mistake"))
    assert (invalid.state, invalid.generations, invalid.least_seconds) == ("invalid", None, None)
    gone = replace(line, options=replace(line.options, data=(("", str(tmp_path / "gone.jsonl")),)))
    (row,) = plan_rows(GridPart(gone, pair, task, 1, methods=line.methods, assets=[MissingAsset("no file")]))
    assert (row.state, row.generations, row.tokens, row.least_seconds) == ("missing", None, None, None)


def test_data_that_suit_none_of_the_pairs_tasks_plan_the_same_task_here_and_on_another_machine(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hello."}\n')
    command = ["plan", "-p", "tiny", "--data", "rows.jsonl", "--json"]
    here = json.loads(specbench(*command, cwd=tmp_path).stdout)
    there = json.loads(specbench(*command, "--for", "h100", cwd=tmp_path).stdout)["runs"]
    assert {row["task"] for row in here} == {row["task"] for row in there} == {"prompts"}


def test_tasks_without_published_data_are_not_planned_for_another_machine(tmp_path):
    models = "".join(f'[models.{role}]\npath = "specbench:tiny/models/{role}"\n' for role in ("draft", "target"))
    (tmp_path / "own.toml").write_text(models)
    planned = json.loads(specbench("plan", "-p", "own.toml", "--for", "h100", "--json", cwd=tmp_path, code=4).stdout)
    tasks = {row["task"] for row in planned["runs"]}
    assert {"gsm8k", "lm1b"} <= tasks and not {"prompts", "dialogues"} & tasks


def test_a_run_that_lacks_only_heads_that_the_suite_trains_is_pending(tmp_path):
    """It is not advised to download anything, and it has a count."""
    done = specbench("plan", "--suite", "sprinter-table4-tiny", cwd=tmp_path).stdout
    assert "specbench fetch" not in done
    done = specbench("plan", "--suite", "sprinter-table2-tiny", cwd=tmp_path).stdout
    assert "specbench fetch" not in done and "--for" not in done
    assert "sprinter of tiny-gpt-neo on cnndm is not trained" in done
    assert "4 runs: 4 pending; 2,880 generations of at most 57,600 tokens; " in done
    rows = json.loads(specbench("plan", "--suite", "sprinter-table2-tiny", "--json", cwd=tmp_path).stdout)
    assert sorted(row["generations"] for row in rows) == [32 * 3 * 7] * 2 + [32 * 3 * 8] * 2
    assert all(row["why"] == "" for row in rows)


def test_a_run_without_its_models_is_missing_though_its_heads_would_be_trained(tmp_path):
    text = (
        'paper = "P"\nshows = "S"\ndescription = "D"\n[options]\nlimit = 2\n'
        '[[prepare]]\nkind = "sprinter"\npairs = ["gone.toml"]\n'
        'tasks = ["gsm8k"]\n[[grid]]\nmethods = ["sprinter", "sd"]\npairs = ["gone.toml"]\ntasks = ["gsm8k"]\n'
        'data = "synthetic"\n[[tables]]\nrows = ["method"]\nvalues = ["speedup"]\n'
    )
    (tmp_path / "own.toml").write_text(text)
    (tmp_path / "gone.toml").write_text('[models.draft]\npath = "no/where"\n[models.target]\npath = "no/place"\n')
    done = specbench("plan", "--suite", "own.toml", cwd=tmp_path, code=4).stdout
    assert "1 missing; 18 generations of at most " in done and "no estimate of the time" in done
    assert "specbench fetch --suite own.toml" in done and "--for" in done


def test_the_same_help_for_several_models_or_data_sets_is_said_once():
    def model(role, name):
        help_ = "run `hf download {name}` on a machine with network access"
        return NotCached(f"model '{role}': ", name, "cannot be fetched (offline)", help_)

    one, two = model("llama", "meta-llama/Llama-2-7b-hf"), model("vicuna", "lmsys/vicuna-7b-v1.5")
    assert str(copy(one)) == str(one) and str(one).startswith("model 'llama': meta-llama/Llama-2-7b-hf is not in")
    assert grouped_reasons([one, "another reason", one]) == [str(one), "another reason"]
    (both,) = grouped_reasons([one, two])
    assert both.startswith("model 'llama': meta-llama/Llama-2-7b-hf, model 'vicuna': lmsys/vicuna-7b-v1.5 are not in")
    assert both.count("help: ") == 1 and "`hf download NAME`" in both


def test_several_settings_of_a_method_are_counted():
    assert (
        methods_in_short({"ar": "ar", "sd(gamma=3)": "sd", "sd(gamma=5)": "sd", "se(gamma=2)": "se"})
        == "ar, sd x2, se(gamma=2)"
    )
