"""What a page says of a small version's grid, and of parallel models, follows from the grid and the placement."""

from dataclasses import replace

import pytest

from specbench.config.suite import TINY, read_suite, suites
from specbench.reporting.notes import PARALLEL, common_notes, notes
from specbench.reporting.reproduction import SAME, counterpart
from specbench.runs.run_spec import RunSpec
from tests.fixtures.summaries import method_summary, run_summary, spec_table


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("se-table4-tiny", ["tasks cnndm, xsum, wmt instead of humaneval, gsm8k, mmlu, cnndm"]),
        ("cos-parallel-tiny", ["2 of the 4 tasks (humaneval, gsm8k)", "no ensemble of 3 models"]),
        ("se-fig4-tiny", ["5 of the 9 values of we-se.target.weights"]),
        ("se-fig8-tiny", ["tasks gsm8k, cnndm, wmt, humaneval", "5 of the 9 values of se-small-large.target.weights"]),
        ("polybasic-table2-tiny", ["instead of spec-bench", "also polybasic-model, polybasic-pld, sd"]),
        ("sprinter-table4-tiny", ["task cnndm instead of wiki-summary"]),
    ],
)
def test_a_smaller_grid_is_said_to_be_another(name, differences):
    said = counterpart(read_suite(name))
    assert SAME not in said
    assert all(each in said for each in differences), said


@pytest.mark.parametrize(
    "name", ["se-table2-tiny", "se-table3-tiny", "se-fig5-tiny", "se-fig6-tiny", "cascade-table2-tiny"]
)
def test_the_same_grid_is_said_to_be_the_same(name):
    assert SAME in counterpart(read_suite(name))


def test_a_grid_that_loses_a_value_a_method_or_a_temperature_is_another():
    suite = read_suite("se-table3-tiny")
    first, second = suite.grid
    assert "temperatures 0 instead of 0, 1" in counterpart(replace(suite, grid=(first,)))
    lines = tuple(replace(line, methods=("cd-se",)) for line in suite.grid)
    assert "without cd-sd" in counterpart(replace(suite, grid=lines))
    over = tuple((key, values[:1]) for key, values in first.options.over)
    lines = tuple(replace(line, options=replace(line.options, over=over)) for line in (first, second))
    assert "1 of the 2 values of cd-sd.proposer.gamma" in counterpart(replace(suite, grid=lines))


def test_only_a_small_version_of_a_bundled_suite_has_a_counterpart():
    suite = read_suite("se-table3-tiny")
    assert counterpart(read_suite("se-table3")) == counterpart(replace(suite, name="mine-tiny")) == ""


@pytest.mark.parametrize("name", [name for name in suites() if name.startswith(("se-table2", "cos-parallel"))])
def test_three_models_have_the_same_draft_lengths_wherever_the_paper_prints_one_cell(name):
    lines = [line for line in read_suite(name).grid if {"qwen-1.5b-3", "tiny-3"} & set(line.pairs)]
    assert bool(lines) == (name != "cos-parallel" + TINY)
    for line in lines:
        assert dict(line.options.over)["we-sd.proposer.gamma"] == [5, 1]


def parallel_run(**placements):
    """Return a run with parallel models on `cuda`, those in `placements` elsewhere."""
    table = spec_table(["we-p"])
    table["methods"]["we-p"] |= {"options": {"name": "parallel"}, "traits": {"roles": ["draft", "target"]}}
    for role, place in placements.items():
        table["pair"]["models"][role] = {**table["pair"]["models"][role], "placement": place}
    table["device"] = "cuda"
    return replace(run_summary(method_summary("we-p")), spec=RunSpec.from_toml(table))


@pytest.mark.parametrize(
    ("placements", "said"),
    [
        ({}, "share one device, cuda:0"),
        ({"target": "cuda:0"}, "share one device, cuda:0"),
        ({"target": "cuda:1"}, "are on 2 devices: draft on cuda:0; target on cuda:1"),
    ],
)
def test_what_parallel_models_can_show_depends_on_their_placement(placements, said):
    run = parallel_run(**placements)
    for lines in (notes(run), common_notes([run, run])):
        (note,) = [line for line in lines if line.startswith(PARALLEL)]
        assert said in note and ("cannot show" in note) == ("share" in said)


def test_a_run_without_parallel_models_has_no_note_about_them():
    assert not [line for line in notes(run_summary(method_summary("sd"))) if PARALLEL in line]
