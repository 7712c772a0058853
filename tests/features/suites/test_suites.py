"""Suites: measured run by run, resumed, and reported in the layout of the papers' tables."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from specbench.analysis.points import reference_of
from specbench.errors import ConfigError
from specbench.experiment import runner
from specbench.features.suites.suite import TINY, read_suite, suites
from tests.fixtures.console import specbench

ROOT = Path(__file__).parents[3]
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
    assert len(papers) == 25
    assert {name + TINY for name in papers} == {name for name in names if name.endswith(TINY)} - {"reasons-tiny"}
    for name in papers:
        suite, tiny = read_suite(name), read_suite(name + TINY)
        assert suite.paper == tiny.paper
        assert suite.shows == tiny.shows
        assert [each.rows for each in suite.tables] == [each.rows for each in tiny.tables]


def test_the_values_that_the_papers_print_are_stored():
    known = {name: len(reference_of(name)) for name in suites() if reference_of(name)}
    assert known == {
        "se-table2": 32, "se-table3": 32, "se-table4": 16, "cos-parallel": 96, "cascade-table2": 84,
        "sprinter-table1": 16, "sprinter-table2": 32, "sprinter-table3": 32, "sprinter-table4": 2, "sprinter-table5": 8,
        "polybasic-table1": 6, "polybasic-table2": 84, "deepspec-table1": 81,
        "spec-bench-leaderboard": 104,
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
    whole = runner.open_recorder

    def prepare(run, *rest):
        if run.spec.task.name == "gsm8k":
            raise RuntimeError("out of something")
        return whole(run, *rest)

    monkeypatch.setattr(runner, "open_recorder", prepare)
    done = specbench("run", "--suite", "mine.toml", cwd=tmp_path, code=3)
    runs = json.loads((tmp_path / "results/suites/mine/index.json").read_text())["runs"]
    assert [(run["state"], run["failed"]) for run in runs] == [
        ("failed", 0), ("failed", 0), ("done", 1), ("done", 0),
    ]  # fmt: skip
    assert runs[0]["why"] == "RuntimeError: out of something"
    assert "RuntimeError" in (tmp_path / "results" / runs[0]["folder"] / "error.log").read_text()
    assert "5 of 5 prompts have more than 1 tokens; the longest has" in runs[1]["why"]
    assert "1 generations failed, the first: PromptTooLong" in done.stderr


def test_a_suite_with_other_options_has_its_own_index(measured):
    shutil.copytree(measured / "results/suites", measured / "other/suites")
    before = (measured / "other/suites/mine/index.json").read_bytes()
    done = specbench("run", "--suite", "mine.toml", "-n", "3", "-o", "other", cwd=measured, code=3)
    assert (measured / "other/suites/mine/index.json").read_bytes() == before
    changed = json.loads((measured / "other/suites/mine/changed.json").read_text())
    assert changed["changes"] == [{"option": "limit", "value": "3"}]
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


def test_expectations_are_confirmed_or_contradicted_with_the_measured_differences(measured):
    done = specbench("report", "--suite", "mine.toml", "-f", "md", cwd=measured)
    assert "- faster than nothing: 2 of 2 confirmed" in done.stdout  # both settings, beyond the noise
    assert "- beyond reach: 2 of 2 contradicted (difference" in done.stdout
    wrong = SUITE.replace('values = ["speedup"', 'values = ["nodes_per_round", "sppeedup"')
    (measured / "wrong.toml").write_text(wrong)
    shutil.copytree(measured / "results/suites/mine", measured / "results/suites/wrong")
    page = specbench("report", "--suite", "wrong.toml", "-f", "md", cwd=measured).stdout
    assert "no value 'sppeedup' (did you mean 'speedup'?)" in page
    assert "no run here has a value 'nodes_per_round'" in page, "a metric that exists, of trees"


def test_a_page_says_if_the_suite_has_changed_since_it_was_measured(measured):
    words, report = "measured with an earlier definition of the suite", ("report", "-f", "md", "--suite")
    assert words not in specbench(*report, "mine.toml", cwd=measured).stdout
    (measured / "later.toml").write_text(SUITE.replace("limit = 5", "limit = 6").replace("{broken}", "gone.toml"))
    shutil.copytree(measured / "results/suites/mine", measured / "results/suites/later")
    assert words in specbench(*report, "later.toml", cwd=measured).stdout


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
        (("at_least = 0.0", ""), "one of at_least, at_most, near"),
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


def test_a_profile_measures_at_one_draft_length(tmp_path):
    """The one that `specbench profile` has, where the suite names none."""
    text = (ROOT / "configs/suites/polybasic-table1-tiny.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("gamma")]
    assert len(lines) == len(text.splitlines()) - 1
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    assert "pending" in specbench("plan", "--suite", "mine.toml", cwd=tmp_path).stdout
    (tmp_path / "mine.toml").write_text("\n".join(lines).replace("[options]", "[options]\ngamma = [1, 2]"))
    assert "one draft length" in specbench("plan", "--suite", "mine.toml", cwd=tmp_path, code=2).stderr
