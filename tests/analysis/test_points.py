"""Numbers in the papers' text: the means and ranges of tables, beside the measured ones."""

import pytest

from specbench.analysis.points import SUMMARIES, Point, StatedValue, reference_of, stated_values
from specbench.features.suites.suite import suites
from specbench.features.suites.suite_tables import stated_table
from specbench.vocabulary import Simulation

PAPERS = ["se-table2", "se-table3", "sprinter-table3", "sprinter-table5", "polybasic-table2"]
IN_TEXT_ONLY = ("papers_flops_ratio_sd", "flops_ratio_sd")  # of which the papers print no cells


def point(pair: str, speedup: float | None, **place) -> Point:
    keys = {"task": "gsm8k", "T": 1.0, "method": "we-se", "run": "r", "values": {"papers_speedup": speedup}}
    return Point(**{"pair": pair, **keys, **place})


def stated(**changes) -> StatedValue:
    keys = {"where": "Section 1", "says": "lowest", "method": "we-se", "metric": "papers_speedup", "summary": "min"}
    return StatedValue(**{**keys, **dict.fromkeys(("pair", "task", "T", "groups_of"), ""), "value": 1.34, **changes})


def test_a_summary_is_over_the_best_settings_of_its_pairs_and_tasks():
    points = [
        point("a", 1.2, settings={"gamma": 1}), point("a", 1.5, settings={"gamma": 5}),
        point("b", 1.3, task="cnndm:se-paper"),
        point("c-3", 1.1), point("a", 0.9, method="we-sd"), point("a", 0.8, T=0.0), point("d", None),
    ]  # fmt: skip

    def measured(**changes) -> float:
        each = stated(**{"T": "1", **changes})
        return each.summarize(each.covered(points))

    assert measured() == 1.1
    assert measured(pair="!*-3") == 1.3
    assert measured(task="cnndm") == 1.3
    assert measured(summary="max") == 1.5
    assert measured(summary="mean") == pytest.approx((1.5 + 1.3 + 1.1) / 3)
    assert measured(T="") == 0.8


def test_a_summary_over_groups_takes_tasks_where_there_are_no_groups():
    tasks = [point("a", 1.2), point("a", 1.6, task="wmt")]
    groups = [point("a", 1.1, group="qa", task="spec-bench"), point("a", 1.9, group="rag", task="spec-bench")]
    over = stated(groups_of="spec-bench")
    assert over.summarize(over.covered([*tasks, point("a", 0.5, group="law", task="mmlu")])) == 1.2
    assert over.summarize(over.covered(tasks + groups)) == 1.1
    assert stated().summarize(stated().covered(tasks + groups)) == 1.2


def test_the_table_has_only_what_was_measured_and_labels_simulated_models():
    (table,) = stated_table([stated(), stated(method="cd-se")], [point("a", 1.2, simulated=Simulation.dummy)])
    assert table.title == "Numbers in the paper's text (dummy)"
    assert table.rows == [["Section 1", "papers' average, end to end", "we-se", "lowest", "1.34", "1.20", "1"]]
    assert stated_table([stated(method="cd-se")], [point("a", 1.2)]) == []


def test_the_numbers_in_the_text_are_of_the_suites_tables():
    assert [name for name in suites() if stated_values(name)] == sorted(PAPERS)
    for name in PAPERS:
        cells = reference_of(name)
        for each in stated_values(name):
            assert each.summary in SUMMARIES and each.groups_of in ("", "spec-bench")
            assert each.metric in IN_TEXT_ONLY or any(
                (cell.method, cell.metric) == (each.method, each.metric) for cell in cells
            ), each


def test_the_printed_cells_agree_with_the_text():
    """Section 4.2 of SE: means of Table 2, and its lowest and highest values, rounded to two digits."""
    cells = [cell for cell in reference_of("se-table2") if cell.method == "we-se"]
    points = [point(cell.pair, cell.value, task=cell.task) for cell in cells]
    for each in stated_values("se-table2"):
        assert each.summarize(each.covered(points)) == pytest.approx(each.value, abs=0.006)
