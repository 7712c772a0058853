"""Suites: measured run by run, resumed, and reported in the layout of the papers' tables."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Choice, Point, points, reference_of, swept
from specbench.analysis.run_metrics import Spread
from specbench.analysis.run_summary import RunSummary
from specbench.config.suite import TINY, read_suite, suites
from specbench.config.suite_layout import TableSpec
from specbench.errors import ConfigError
from specbench.experiment import runner
from specbench.files import read_toml, write_sealed
from specbench.reporting import reproduction
from specbench.reporting.expectations import outcome_lines, outcomes_of
from specbench.reporting.point_tables import choice_tables, pivot, suite_tables, value_text
from specbench.reporting.reproduction import state_of
from specbench.reporting.suites import without_counterpart
from specbench.runs.suite_index import Index, IndexEntry
from tests.fixtures.console import specbench
from tests.fixtures.summaries import method_summary, run_summary

ROOT = Path(__file__).parents[2]
SUITE = """
paper = "A paper"
shows = "Table 1"
description = "two methods"
[options]
temperature = 1.0
limit = 5
repeats = 1
max_new_tokens = 8
ignore_eos = true
[[grid]]
methods = ["we-sd", "we-se"]
pairs = ["tiny"]
tasks = ["gsm8k"]
over = { "we-se.gamma" = [[1, 1], [2, 1]] }
[[grid]]
methods = ["sd"]
pairs = ["{broken}"]
tasks = ["gsm8k"]
temperature = 0.0
[[tables]]
rows = ["pair", "method", "setting"]
columns = ["task"]
values = ["speedup", "acceptance_rate"]
best = "speedup"
[[expect]]
says = "faster than nothing"
of = { method = "we-se" }
value = "speedup"
at_least = 0.0
[[expect]]
says = "beyond reach"
of = { method = "we-se" }
value = "acceptance_rate"
at_least = 2.0
because = "No rate is above one."
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of a suite with two runs, one of which cannot run."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "gone.toml").write_text(
        '[models.draft]\npath = "nowhere/draft"\n[models.target]\npath = "nowhere/target"\n'
    )
    (folder / "mine.toml").write_text(SUITE.replace("{broken}", "gone.toml"))
    specbench("run", "--suite", "mine.toml", cwd=folder, code=3)
    return folder


def test_every_suite_has_a_tiny_counterpart_with_the_same_tables():
    names = suites()
    papers = [name for name in names if not name.endswith(TINY) and not name.startswith("tiny-")]
    assert len(papers) == 21
    assert {name + TINY for name in papers} == {name for name in names if name.endswith(TINY)}
    for name in papers:
        suite, tiny = read_suite(name), read_suite(name + TINY)
        assert suite.paper == tiny.paper
        assert suite.shows == tiny.shows
        assert [each.rows for each in suite.tables] == [each.rows for each in tiny.tables]


def test_the_values_that_the_papers_print_are_stored():
    known = {name: len(reference_of(name)) for name in suites() if reference_of(name)}
    assert known == {
        "se-table2": 32, "se-table3": 32, "se-table4": 16, "cos-parallel": 96, "cascade-table2": 84,
        "sprinter-table1": 8, "sprinter-table2": 32, "sprinter-table3": 32, "sprinter-table4": 2, "sprinter-table5": 8,
        "polybasic-table1": 6, "polybasic-table2": 84,
    }  # fmt: skip


def test_a_missing_model_is_reported_and_does_not_stop_other_runs(measured):
    index = json.loads((measured / "results/suites/mine/index.json").read_text())
    assert [(run["state"], run["pair"]) for run in index["runs"]] == [("done", "tiny"), ("missing", "gone.toml")]
    assert "nowhere/draft" in index["runs"][1]["why"]


def test_a_run_that_fails_in_whole_or_in_part_does_not_stop_others(tmp_path, monkeypatch):
    """The first run raises, the second's prompts are rejected, a later turn of the third is, the last is measured."""
    turns = {"question_id": 81, "category": "writing", "turns": ["Ben has 3 cards.", "1 " * 5000]}
    (tmp_path / "turns.jsonl").write_text(json.dumps(turns) + "\n")
    (tmp_path / "mine.toml").write_text(
        SUITE.partition("[[grid]]")[0]
        + f'data = {{ spec-bench = "{tmp_path}/turns.jsonl" }}\n'
        + '[[grid]]\nmethods = ["ar"]\npairs = ["tiny"]\ntasks = ["gsm8k"]\ntemperature = 0.0\n' * 1
        + '[[grid]]\nmethods = ["ar"]\npairs = ["tiny"]\ntasks = ["wmt"]\nset = { "task.max_prompt_tokens" = 1 }\n'
        + '[[grid]]\nmethods = ["ar"]\npairs = ["tiny"]\ntasks = ["spec-bench"]\n'
        + '[[grid]]\nmethods = ["ar"]\npairs = ["tiny"]\ntasks = ["xsum"]\n'
    )
    whole = runner.prepare

    def prepare(run, *rest):
        if run.spec.task.name == "gsm8k":
            raise RuntimeError("out of something")
        return whole(run, *rest)

    monkeypatch.setattr(runner, "prepare", prepare)
    done = specbench("run", "--suite", "mine.toml", cwd=tmp_path, code=3)
    runs = json.loads((tmp_path / "results/suites/mine/index.json").read_text())["runs"]
    assert [(run["state"], run["failed"]) for run in runs] == [
        ("failed", 0), ("failed", 0), ("done", 1), ("done", 0),
    ]  # fmt: skip
    assert runs[0]["why"] == "RuntimeError: out of something"
    assert "RuntimeError" in (tmp_path / "results" / runs[0]["folder"] / "error.log").read_text()
    assert "5 of 5 prompts have more than 1 tokens; the longest has" in runs[1]["why"]
    assert "1 generations failed, the first: TooLong" in done.stderr


def test_a_suite_with_other_options_has_its_own_index(measured):
    shutil.copytree(measured / "results/suites", measured / "other/suites")
    before = (measured / "other/suites/mine/index.json").read_bytes()
    done = specbench("run", "--suite", "mine.toml", "-n", "3", "-o", "other", cwd=measured, code=3)
    assert (measured / "other/suites/mine/index.json").read_bytes() == before
    changed = json.loads((measured / "other/suites/mine/changed.json").read_text())
    assert changed["changes"] == ["limit = 3"]
    assert changed["runs"][0]["generations"] == 12
    assert "best of 2 †" in done.stdout
    for option in (("--temperature", "0.5"), ("--seed", "3"), ("--ignore-eos",)):
        assert option[0] in specbench("run", "--suite", "mine.toml", *option, cwd=measured, code=2).stderr


def test_a_trial_is_reported_although_the_index_of_another_measurement_is_here(measured):
    """As in a clone, which has the indexes of committed pages without their run folders."""
    fresh = measured / "fresh"
    shutil.copytree(measured / "results/suites", fresh / "suites")
    specbench("run", "--suite", "mine.toml", "-n", "2", "--repeats", "1", "-o", "fresh", cwd=measured, code=3)
    shown = specbench("report", "--suite", "mine.toml", "--from", "fresh", cwd=measured).stdout
    assert "best of 2 †" in shown


def test_a_repeated_command_measures_nothing(measured):
    (run,) = (measured / "results").glob("*/samples.jsonl")
    before = run.read_bytes()
    done = specbench("run", "--suite", "mine.toml", cwd=measured, code=3)
    assert run.read_bytes() == before
    assert "best of 2 †" in done.stdout


def test_a_plan_lists_done_and_missing_runs_and_exits_with_4(measured):
    rows = json.loads(specbench("plan", "--suite", "mine.toml", "--json", cwd=measured, code=4).stdout)
    assert [row["state"] for row in rows] == ["done", "missing"]
    assert rows[0]["done"] == rows[0]["generations"] == 20
    assert rows[0]["least_seconds"] == 0.0
    assert "nowhere/target" in rows[1]["why"]  # every missing model, not the first alone
    rows = json.loads(specbench("plan", "-m", "sd", "-t", "gsm8k", "-n", "2", "--json", cwd=measured).stdout)
    assert [(row["state"], row["generations"]) for row in rows] == [("pending", 12)]
    assert rows[0]["least_seconds"] > 0
    assert rows[0]["bytes"] > 4 * 3_000_000


def test_expectations_are_confirmed_or_contradicted_with_place_and_reason(measured):
    done = specbench("report", "--suite", "mine.toml", "-f", "md", cwd=measured)
    assert "- faster than nothing: 2 of 2 confirmed" in done.stdout  # both settings, beyond the noise
    assert "- beyond reach: 2 of 2 contradicted" in done.stdout
    assert "No rate is above one." in done.stdout
    (measured / "wrong.toml").write_text(SUITE.replace('values = ["speedup"', 'values = ["sppeedup"'))
    shutil.copytree(measured / "results/suites/mine", measured / "results/suites/wrong")
    page = specbench("report", "--suite", "wrong.toml", "-f", "md", cwd=measured).stdout
    assert "no value 'sppeedup' (did you mean 'speedup'?)" in page


def test_a_suite_is_reported_in_every_format(measured):
    rows = list(
        csv.DictReader(io.StringIO(specbench("report", "--suite", "mine.toml", "-f", "csv", cwd=measured).stdout))
    )
    speedups = {(row["method"], row["setting"]) for row in rows if row["metric"] == "speedup"}
    assert speedups == {("we", ""), ("we-sd", ""), ("we-se", "gamma=[1, 1]"), ("we-se", "gamma=[2, 1]")}
    found = json.loads(specbench("report", "--suite", "mine.toml", "-f", "json", cwd=measured).stdout)
    assert {point["method"] for point in found} == {"we", "we-sd", "we-se"}
    latex = specbench("report", "--suite", "mine.toml", "-f", "latex", cwd=measured).stdout
    assert r"\toprule" in latex
    assert r"acceptance\_rate" not in latex
    lines = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(lines) > 4
    assert {line.count("&") for line in lines if "multicolumn" not in line} == {5}  # five columns, one with intervals
    assert latex.count(r"\multicolumn{2}{c}") == 1


def test_plots_are_drawn_as_png_and_svg(measured):
    done = specbench("report", "--suite", "mine.toml", "--plots", "drawn", cwd=measured)
    drawn = {path.name for path in (measured / "drawn").iterdir()}
    assert {"mine.svg", "mine.png", "mine-explained-tiny.svg", "mine-explained-tiny.png"} == drawn
    assert "drawn/mine.svg" in done.stdout


def test_a_suite_defines_its_methods(tmp_path):
    assert "leave out -m" in specbench("run", "--suite", "se-table2-tiny", "-m", "sd", cwd=tmp_path, code=2).stderr
    assert "did you mean 'se-table2'" in specbench("plan", "--suite", "se-table22", cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[[grid]]", "[[gird]]"), "needs a [[grid]]"),
        (('rows = ["pair", "method", "setting"]', 'rows = ["pear"]'), "did you mean 'pair'"),
        (("limit = 5", "limt = 5"), "did you mean 'limit'"),
        (('pairs = ["tiny"]', ""), "'pairs' is missing"),
        (("at_least = 0.0", ""), "one of at_least, at_most and equals"),
        (("limit = 5", 'limit = "5"'), "must be of type int"),
        (('of = { method = "we-se" }', 'of = { methd = "we-se" }'), "did you mean 'method'"),
        (('rows = ["pair", "method", "setting"]', 'rows = ["pair", "method"]'), "put 'setting' or 'variant' into rows"),
        (('shows = "Table 1"', 'shows = "Table 1"\njudge = { name = "likelihood" }'), "'against' is missing"),
    ],
)
def test_an_error_in_a_suite_names_its_place(tmp_path, change, message):
    path = tmp_path / "mine.toml"
    path.write_text(SUITE.replace(*change))
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        read_suite(str(path))
    assert message in str(error.value)


def test_a_setting_is_split_into_its_number_and_the_rest():
    assert swept("alpha=0.3") == (0.3, "")
    assert swept("weights=[0.1, 0.9], models=['math', 'code']") == (0.1, "models=['math', 'code']")
    assert swept("gamma=[5, 1]") == (5.0, "")
    assert swept("head=sprinter") == (None, "head=sprinter")


def summary(
    pair: str = "llama-vicuna", simulated: str = "", value: float = 1.5, data: str = "hub", task: str = "gsm8k:se-paper",
    methods: tuple[str, ...] = ("we-se",), **changes,
) -> RunSummary:  # fmt: skip
    """A run of these methods, all with one speedup; `changes` are of the methods."""
    values = {
        "speedup": Estimate(value, value - 0.1, value + 0.1),
        "papers_speedup": Estimate(value, value - 0.1, value + 0.1),
        **changes.pop("values", {}),
    }
    rows = [method_summary(each, values=values, **changes) for each in methods]
    return run_summary(*rows, pair=pair, simulated=simulated, data=data, task=task, baseline="we")


def last_text(found: list[Point]) -> str:
    """The last text in the first row of SE's Table 2."""
    return suite_tables(read_suite("se-table2"), found)[0].rows[0][-1]


def test_the_papers_value_is_shown_only_for_the_papers_models():
    """SE Table 2, Llama-Vicuna, GSM8K: 1.44."""
    place = ("llama-vicuna", "we-se", "gsm8k:se-paper")
    paper = next(r.value for r in reference_of("se-table2") if (r.pair, r.method, r.task) == place)
    shown = last_text(points([summary()], reference_of("se-table2")))
    assert f"paper {paper:.2f}, {1.5 - paper:+.2f}" in shown
    others = (
        summary(pair="tiny"),
        summary(simulated="dummy synthetic"),
        summary(data="synthetic"),
        summary(task="gsm8k"),
    )
    for other in others:
        assert "paper" not in last_text(points([other], reference_of("se-table2")))


def test_each_group_of_questions_has_its_own_paper_value():
    """Polybasic, Table 2: Vicuna 7B, c = 3.77 on MT-bench and 3.16 overall."""
    groups = {"multi-turn": {"accepted_length": 9.0}}
    whole = summary(pair="vicuna-7b-polybasic", task="spec-bench", methods=("polybasic",), groups=groups)
    found = points([whole], reference_of("polybasic-table2"))
    assert [point.paper["papers_speedup"] for point in found] == [3.16, 3.77]


def test_suite_tables_label_models_that_are_not_real():
    found = points([summary(simulated="dummy synthetic")], [])
    assert suite_tables(read_suite("se-table2"), found)[0].rows[0][1] == "we-se (dummy) (synthetic)"
    found = points([summary(simulated="dummy", methods=("we-se(weights=[0.1, 0.9], gamma=[1, 1])",))], [])
    assert "(dummy)" in suite_tables(read_suite("se-fig4"), found)[0].title  # no row tells the method there


def test_the_papers_value_is_shown_only_next_to_the_best_setting():
    two = summary(methods=("we-se(gamma=[5, 1])", "we-se(gamma=[1, 1])"))
    rows = suite_tables(read_suite("se-table2"), points([two], reference_of("se-table2")))[0].rows
    assert [("paper" in row[-1]) for row in rows] == [False, False, True]


def test_printed_values_beside_no_measured_one_are_listed():
    """SE Table 2, of which one cell was measured; a run without times has no value beside the printed ones."""
    suite, printed = read_suite("se-table2"), reference_of("se-table2")
    timed = without_counterpart(suite, points([summary()], printed))
    cell = {(row.pair, row.method, row.task) for row in printed} - {(row.pair, row.method, row.task) for row in timed}
    assert cell == {("llama-vicuna", "we-se", "gsm8k:se-paper")}
    untimed = points([summary(values={"papers_speedup": None})], printed)
    assert without_counterpart(suite, untimed) == printed


def test_a_share_is_compared_in_percent():
    """SPRINTER, Table 1: GPT-Neo wins 45.2 % on Wiki-Summary."""
    judged = summary(pair="gpt-neo", methods=("sprinter",), task="wiki-summary", values={"wins": 0.5})
    shown = suite_tables(read_suite("sprinter-table1"), points([judged], reference_of("sprinter-table1")))[0].rows[0][2]
    assert shown == "50.0% (paper 45.2%, +4.8%)"


def test_a_list_of_rates_is_not_shown_as_a_mean_with_a_deviation():
    values = {"acceptance_by_position": [0.9, 0.8, 0.7], "generation_milliseconds": Spread(12.0, 3.0)}
    point = Point(pair="tiny", task="gsm8k", T=1.0, method="sd", run="run", values=values)
    assert value_text(point, "acceptance_by_position") == "0.90 0.80 0.70"
    assert value_text(point, "generation_milliseconds") == "12.0 ± 3.0"


def test_a_profile_measures_at_one_draft_length(tmp_path):
    """The one that `specbench profile` has, where the suite names none."""
    text = (ROOT / "configs/suites/polybasic-table1-tiny.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("gamma")]
    assert len(lines) == len(text.splitlines()) - 1
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    assert "pending" in specbench("plan", "--suite", "mine.toml", cwd=tmp_path).stdout
    (tmp_path / "mine.toml").write_text("\n".join(lines).replace("[options]", "[options]\ngamma = [1, 2]"))
    assert "one draft length" in specbench("plan", "--suite", "mine.toml", cwd=tmp_path, code=2).stderr


def test_a_curve_that_never_reaches_the_quality_ranks_below_one_that_does():
    suite = read_suite("cascade-table2")
    reached, not_reached = Choice(1.2, 1.1, 1.3), Choice(None, 0.0, 0.0)

    def point(method: str, matching: Choice) -> Point:
        place = {"pair": "t5", "task": "wmt", "T": 1.0, "method": method, "run": "run", "variant": "bonus=deferred"}
        return Point(**place, values={"matching": matching})

    lower = point("cascade-opt", not_reached)
    assert "contradicted" in outcome_lines(outcomes_of(suite, [lower, point("cascade-diff", reached)]))[0]
    (both, *_) = outcome_lines(outcomes_of(suite, [lower, point("cascade-diff", not_reached)]))
    assert "contradicted" not in both
    assert "confirmed" not in both


def test_an_expectation_within_the_noise_is_neither_confirmed_nor_contradicted():
    suite = read_suite("se-table2")
    method = ("we-se(gamma=[1, 1])",)
    below = points([summary(value=0.95, methods=method)])  # 0.85 to 1.05
    assert outcome_lines(outcomes_of(suite, below))[0].partition(";")[0].endswith("on the other side within the noise")
    above = points([summary(value=1.05, methods=method)])
    assert (
        outcome_lines(outcomes_of(suite, above))[0].partition(";")[0].endswith("on the expected side within the noise")
    )
    far = points([summary(value=0.8, methods=method)])
    assert "contradicted" in outcome_lines(outcomes_of(suite, far))[0]


def test_reproduce_shows_the_models_of_each_table(measured):
    items = json.loads(specbench("reproduce", "--status", "--json", cwd=measured).stdout)
    assert {item["state"] for item in items} == {"not yet", "by tests", "explained", "shown"}
    for name, runs, state in (
        ("se-table2-tiny", [{"simulated": "", "state": "done"}], "tiny"),
        ("se-table3", [{"simulated": "dummy", "state": "done"}], "dummy + synthetic"),
        (
            "se-table4",
            [{"simulated": "", "state": "done"}, {"simulated": "", "state": "missing"}],
            "the paper's weights, in part",
        ),
    ):
        folder = measured / "results/suites" / name
        folder.mkdir(parents=True)
        rows = [{"key": str(i), "seconds": 1.0, **run} for i, run in enumerate(runs)]
        write_sealed(folder / "index.json", {"suite": name, "runs": rows, "definition": read_suite(name).definition})
        states = {
            (item["paper"], item["shows"]): item["state"]
            for item in json.loads(specbench("reproduce", "--json", cwd=measured).stdout)
        }
        assert states["Speculative Ensemble", f"Table {name[8]}"] == state


def test_reproduce_says_that_a_suite_measured_something_else(measured):
    path = measured / "results/suites/se-table2-tiny/index.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, {"suite": "se-table2-tiny", "runs": [{"key": "0", "state": "done"}], "definition": "earlier"})
    (state,) = {
        item["state"]
        for item in json.loads(specbench("reproduce", "--json", cwd=measured).stdout)
        if item["paper"] == "Speculative Ensemble" and item["shows"] == "Table 2"
    }
    assert state == "tiny, with an earlier definition"


def test_reproduce_finds_the_checkouts_results_from_anywhere(tmp_path, monkeypatch):
    states = json.loads(specbench("reproduce", "--json", cwd=tmp_path).stdout)
    assert "tiny" in {item["state"] for item in states}
    monkeypatch.setattr(reproduction, "PACKAGE", tmp_path / "specbench")  # as an installed package
    done = specbench("reproduce", "--status", cwd=tmp_path).stdout
    assert "no results here" in done and "--from FOLDER" in done
    assert "no such folder" in specbench("reproduce", "--from", "nowhere", cwd=tmp_path, code=2).stderr


def numbers_in(text):
    """The numbers that a cell of the checklist lists: `1 to 3, 5 (a sketch)` is 1, 2, 3 and 5."""
    found = []
    for part in re.sub(r"\(.*?\)", "", text).split(","):
        first, _, last = part.strip().partition(" to ")
        found += range(int(first), int(last or first) + 1) if first.isdigit() else []
    return [str(number) for number in found]


def test_papers_toml_is_complete():
    design = ROOT.parent / "shared/design/experiments.md"
    if not design.is_file():
        pytest.skip("the checklist of the papers is not here")
    names = {
        "SE": "Speculative Ensemble",
        "SpecCascade": "SpecCascade",
        "SPRINTER": "SPRINTER",
        "Polybasic": "Polybasic",
    }
    items = read_toml(ROOT / "configs/papers.toml")["item"]
    lines = design.read_text().split("for configs/papers.toml)")[1].splitlines()
    rows = {
        cells[0]: cells
        for line in lines
        if line.startswith("|") and (cells := [c.strip() for c in line.split("|")[1:-1]])
    }
    for short, paper in names.items():
        for kind, cell in zip(("table", "figure", "algorithm"), rows[short][1:4], strict=True):
            ours = [item["shows"] for item in items if (item["paper"], item["kind"]) == (paper, kind)]
            assert ours == numbers_in(cell), (paper, kind)
        theorems = [each["shows"] for each in items if (each["paper"], each["kind"]) == (paper, "theorem")]
        counted = 0
        for group in rows[short][4].split(";"):
            word, _, rest = group.strip().partition(" ")
            several = numbers_in(rest) or [each.strip() for each in rest.split(",")]
            counted += len(several)
            stem = {"Corollaries": "Corollary", "Lemmas": "Lemma"}.get(word, word.removesuffix("s")).title()
            assert {f"{stem} {number}" for number in several} <= set(theorems), (paper, group)
        assert counted == len(theorems), paper


def test_runs_with_other_models_do_not_count_as_reproduction(tmp_path):
    run = IndexEntry(key="0", seconds=1.0, state="done")
    for changes, state in ((["limit = 3"], "the paper's weights, in part"), (["data = synthetic"], "not yet")):
        index = Index.of("se-table2", tmp_path, changed=True)
        index.runs, index.changes = {"0": run}, changes
        index.keep(["0"])
        assert state_of("se-table2", tmp_path)[0] == state


def swept_points(*settings: str) -> list[Point]:
    places = {"pair": "tiny", "task": "gsm8k", "T": 0.0, "method": "cd-se", "run": "r"}
    return [
        Point(**places, setting=each, x=swept(each)[0], variant=swept(each)[1], values={"speedup": 1.0 + i})
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
    best = Choice(0.5, 0.4, 0.6, "alpha=0.3", unseen=0.45, held=0.5, reached=1.0)
    (point,) = swept_points("alpha=0.3")
    (table,) = choice_tables(
        [replace(point, label="lossy", values={"matching": Choice(None, None, None), "best": best})]
    )
    assert [row[2:] for row in table.rows] == [
        ["lossy", "speed at the large model's quality", "not reached", "–", "–", "–"],
        ["lossy", "best quality within its latency", "alpha=0.3", "100%", "45.0", "50%"],
    ]
    assert choice_tables([point]) == []
