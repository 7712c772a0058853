"""Tables of points: settings, values beside those that a paper prints, sweeps and choices."""

from dataclasses import replace

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import Spread
from specbench.analysis.points import Point, points, reference_of
from specbench.features.suites.suite import TableSpec, read_suite
from specbench.features.suites.suite_report import without_counterpart
from specbench.features.suites.suite_tables import choice_tables, pivot, suite_tables, value_text
from specbench.runs.settings import label_of, settings_in, swept_number
from tests.fixtures.summaries import llama_vicuna_run


def test_a_setting_is_split_into_its_number_and_the_rest():
    assert swept_number({"target.alpha": 0.3}) == (0.3, "alpha", {})
    assert swept_number({"weights": [0.1, 0.9], "models": ["math"]}) == (0.1, "weights", {"models": ["math"]})
    assert swept_number({"gamma": [5, 1]}) == (5.0, "gamma", {})
    assert swept_number({"head": "sprinter"}) == (None, "head", {"head": "sprinter"})


def test_labels_show_settings_and_old_folders_are_read_by_them():
    settings = {"proposer.gamma": [5, 1], "target.name": "chow", "deferred": True, "head": "sprinter/1.5"}
    label = label_of("sd", settings)
    assert label == "sd(gamma=[5, 1], target=chow, deferred=true, head=sprinter/1.5)"
    assert settings_in(label) == {"gamma": [5, 1], "target": "chow", "deferred": True, "head": "sprinter/1.5"}
    assert label_of("sd", settings_in(label)) == label and settings_in("sd") == {}


def last_text(found: list[Point]) -> str:
    """The last text in the first row of SE's Table 2."""
    return suite_tables(read_suite("se-table2"), found)[0].rows[0][-1]


def test_the_papers_value_is_shown_only_for_the_papers_models():
    """SE Table 2, Llama-Vicuna, GSM8K: 1.44."""
    place = ("llama-vicuna", "we-se", "gsm8k:se-paper")
    paper = next(r.value for r in reference_of("se-table2") if (r.pair, r.method, r.task) == place)
    shown = last_text(points([llama_vicuna_run()], reference_of("se-table2")))
    assert f"paper {paper:.2f}, {1.5 - paper:+.2f}" in shown
    others = (
        llama_vicuna_run(pair="tiny"),
        llama_vicuna_run(simulated="dummy synthetic"),
        llama_vicuna_run(data="synthetic"),
        llama_vicuna_run(task="gsm8k"),
    )
    for other in others:
        assert "paper" not in last_text(points([other], reference_of("se-table2")))


def test_each_group_of_questions_has_its_own_paper_value():
    """Polybasic, Table 2: Vicuna 7B, c = 3.77 on MT-bench and 3.16 overall."""
    groups = {"multi-turn": {"accepted_length": 9.0}}
    whole = llama_vicuna_run(
        pair="vicuna-7b-polybasic", task="spec-bench", methods=("polybasic-eagle2",), groups=groups
    )
    found = points([whole], reference_of("polybasic-table2"))
    assert [point.paper["papers_speedup"] for point in found] == [3.16, 3.77]


def test_suite_tables_label_models_that_are_not_real():
    found = points([llama_vicuna_run(simulated="dummy synthetic")], [])
    assert suite_tables(read_suite("se-table2"), found)[0].rows[0][1] == "we-se (dummy) (synthetic)"
    found = points([llama_vicuna_run(simulated="dummy", methods=("we-se(weights=[0.1, 0.9], gamma=[1, 1])",))], [])
    assert "(dummy)" in suite_tables(read_suite("se-fig4"), found)[0].title  # no row tells the method there


def test_the_papers_value_is_shown_only_next_to_the_best_setting():
    two = llama_vicuna_run(methods=("we-se(gamma=[5, 1])", "we-se(gamma=[1, 1])"))
    rows = suite_tables(read_suite("se-table2"), points([two], reference_of("se-table2")))[0].rows
    assert [("paper" in row[-1]) for row in rows] == [False, False, True]


def test_printed_values_beside_no_measured_one_are_listed():
    """SE Table 2, of which one cell was measured; a run without times has no value beside the printed ones."""
    suite, printed = read_suite("se-table2"), reference_of("se-table2")
    timed = without_counterpart(suite, points([llama_vicuna_run()], printed))
    cell = {(row.pair, row.method, row.task) for row in printed} - {(row.pair, row.method, row.task) for row in timed}
    assert cell == {("llama-vicuna", "we-se", "gsm8k:se-paper")}
    untimed = points([llama_vicuna_run(values={"papers_speedup": None})], printed)
    assert without_counterpart(suite, untimed) == printed


def test_a_share_is_compared_in_percent():
    """SPRINTER, Table 1: GPT-Neo wins 45.2 % on Wiki-Summary."""
    judged = llama_vicuna_run(pair="gpt-neo", methods=("sprinter",), task="wiki-summary", values={"wins": 0.5})
    shown = suite_tables(read_suite("sprinter-table1"), points([judged], reference_of("sprinter-table1")))[0].rows[0][2]
    assert shown == "50.0% (paper 45.2%, +4.8%)"


def test_a_list_of_rates_is_not_shown_as_a_mean_with_a_deviation():
    values = {"acceptance_by_position": [0.9, 0.8, 0.7], "generation_milliseconds": Spread(12.0, 3.0)}
    point = Point(pair="tiny", task="gsm8k", T=1.0, method="sd", run="run", values=values)
    assert value_text(point, "acceptance_by_position") == "0.90 0.80 0.70"
    assert value_text(point, "generation_milliseconds") == "12.0 ± 3.0"


def swept_points(*settings: str) -> list[Point]:
    places = {"pair": "tiny", "task": "gsm8k", "T": 0.0, "method": "cd-se", "run": "r"}
    return [
        Point(**places, settings=settings_in(f"cd-se({each})"), values={"speedup": 1.0 + i})
        for i, each in enumerate(settings)
    ]


def test_columns_of_a_sweep_name_the_number_and_rows_have_no_empty_columns():
    spec = TableSpec(rows=("pair", "method", "variant"), columns=("x",), values=("speedup",))
    table = pivot(spec, swept_points("mu=0.1", "mu=0.5"))
    assert table.heads == ["pair", "method", "mu = 0.1", "mu = 0.5"]
    assert table.rows == [["tiny", "cd-se", "1.00x", "2.00x"]]
    table = pivot(spec, swept_points("mu=0.1, gamma=[5, 1]", "alpha=0.5"))
    assert table.heads == ["pair", "method", "variant", "0.1", "0.5"]


def test_the_settings_that_summaries_chose_are_a_table():
    best = CurveChoice(0.5, 0.4, 0.6, "alpha=0.3", holdout_value=0.45, holdout_rate=0.5, reach_rate=1.0)
    (point,) = swept_points("alpha=0.3")
    (table,) = choice_tables(
        [replace(point, label="lossy", values={"matching": CurveChoice(None, None, None), "best": best})]
    )
    assert [row[2:] for row in table.rows] == [
        ["lossy", "speed at the large model's quality", "not reached", "–", "–", "–"],
        ["lossy", "best quality within its latency", "alpha=0.3", "100%", "45.0", "50%"],
    ]
    assert choice_tables([point]) == []
