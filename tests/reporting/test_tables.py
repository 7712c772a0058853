"""Tables of runs: merged, pooled and with chosen columns. All rows, titles and CSV lines of several runs are different."""

import csv
import io
import json
import re
import shutil

import pytest

from specbench.errors import ConfigError
from specbench.files import write_with_checksum
from specbench.reporting.tables import across, chosen_table, tables
from specbench.runs.run_folder import ENVIRONMENT
from tests.fixtures.console import specbench
from tests.fixtures.pages import markdown_tables, only_run
from tests.fixtures.summaries import method_summary, run_summary, summary_of_all_metrics

RUN = {"-m": "sd", "-p": "tiny", "-t": "gsm8k", "-n": 2, "--repeats": 1, "--max-new-tokens": 6, "--temperature": 1}
CONDITIONS = ("pair", "task", "method", "data", "decoding", "engine", "models", "config")  # of a line of CSV
VARIANTS = {  # by the column that has to appear, what is changed and what the column has to say
    "pair": ({"-p": "tiny-polybasic"}, {"tiny", "tiny-polybasic"}),
    "T": ({"--temperature": 0.5}, {"1", "0.5"}),
    "seed": ({"--seed": 3}, {"0", "3"}),
    "repeats": ({"--repeats": 2}, {"1", "2"}),
    "samples": ({"-n": 3}, {"2", "3"}),
    "max_new_tokens": ({"--max-new-tokens": 7}, {"6", "7"}),
    "ignore_eos": ({"--ignore-eos": None}, {"no", "yes"}),
    "draft lengths": ({"--gamma": 3}, {"–", "3", "5"}),
    "task.shots": ({"--set": "task.shots=1"}, {"0", "1"}),
    "dtype": ({"--dtype": "bfloat16"}, {"float32", "bfloat16"}),
    "engine": ({"--engine": "eager"}, {"lean", "eager"}),
    "data": ({"--data": "rows.jsonl"}, {"synthetic", "rows.jsonl"}),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with one run, and one for every variant under its name."""
    folder = tmp_path_factory.mktemp("merged")
    (folder / "rows.jsonl").write_text('{"question": "How much is 1 + 1?", "answer": "It is 2. #### 2"}\n' * 2)
    for name, (changes, _) in {"base": ({}, set()), **VARIANTS}.items():
        options = RUN | changes | {"--out": name}
        specbench("run", *(word for pair in options.items() for word in pair if word is not None), cwd=folder)
    return folder


@pytest.mark.parametrize("column", VARIANTS)
def test_a_difference_between_two_runs_is_a_column_and_in_every_title(results, column):
    runs = [only_run(results / name) for name in ("base", column)]
    shown = specbench("report", *runs, "-f", "md", "--full", cwd=results).stdout
    (_, rows), *each = markdown_tables(shown)
    assert {row[column] for row in rows} == VARIANTS[column][1]
    titles = [title for title, _ in each]
    assert len(titles) == len(set(titles)) >= 10
    lines = list(csv.DictReader(io.StringIO(specbench("report", *runs, "-f", "csv", cwd=results).stdout)))
    kept = [key for key in lines[0] if key.partition(".")[0] in CONDITIONS]
    places = [tuple(line[key] for key in kept) for line in lines if line["method"] == "sd"]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("column", ["pair", "draft lengths", "data"])
def test_captions_and_titles_of_other_formats_differ_too(results, column):
    """They are those of Markdown: what differs is a pair, a method or the task."""
    runs = [only_run(results / name) for name in ("base", column)]
    shown = specbench("report", *runs, "-f", "md", "--full", cwd=results).stdout
    titles = [title for title, _ in markdown_tables(shown)][1:]
    latex = specbench("report", *runs, "-f", "latex", "--full", cwd=results).stdout
    captions = re.findall(r"\\caption\{(.*)\}", latex)
    assert len(captions) == len(set(captions)) == len(titles) + 1
    page = specbench("report", *runs, "-f", "html", cwd=results).stdout
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert len({table["title"] for table in data["tables"]}) == len(titles) + 1


def test_all_rows_of_many_runs_are_different(results):
    runs = [only_run(results / name) for name in ("base", *VARIANTS)]
    shown = specbench("report", *runs, "-f", "md", "--full", cwd=results).stdout
    (_, rows), *_ = markdown_tables(shown)
    heads = list(rows[0])
    places = [tuple(row[head] for head in heads[: heads.index("tokens/s, decoding")]) for row in rows]
    assert len(places) == 2 * len(runs) == len(set(places))


def test_defaults_of_a_task_are_not_columns(tmp_path):
    specbench("run", "-m", "ar", "-t", "mmlu,wmt", "-n", 2, "--repeats", 1, cwd=tmp_path)
    runs = sorted(path.parent for path in tmp_path.glob("results/*/samples.jsonl"))
    (_, rows), *_ = markdown_tables(specbench("report", *runs, "-f", "md", "--full", cwd=tmp_path).stdout)
    assert list(rows[0])[:3] == ["task", "method", "tokens/s, decoding"]


def test_one_run_on_two_machines_names_the_machine(results, tmp_path):
    run = only_run(results / "base")
    copy = tmp_path / "elsewhere" / run.name
    shutil.copytree(run, copy)
    environment = json.loads((copy / "env.json").read_text())
    del environment["sha256"]
    write_with_checksum(copy / "env.json", environment | {"cpu": "Another CPU"})
    shown = specbench("report", run, copy, "-f", "md", "--full", cwd=results).stdout
    (_, rows), *_ = markdown_tables(shown)
    assert "Another CPU" in {row["machine"] for row in rows}
    assert "run" not in rows[0]


def test_otherwise_equal_runs_are_distinguished_by_folder(results, tmp_path):
    run = only_run(results / "base")
    renamed, copied = tmp_path / "renamed", tmp_path / run.name
    for copy in (renamed, copied):
        shutil.copytree(run, copy)
    (_, rows), *each = markdown_tables(specbench("report", run, renamed, "-f", "md", "--full", cwd=results).stdout)
    assert {row["run"] for row in rows} == {run.name, "renamed"}
    assert len(each) == len({title for title, _ in each})
    (_, rows), *_ = markdown_tables(specbench("report", run, copied, "-f", "md", "--full", cwd=results).stdout)
    assert {row["run"] for row in rows} == {str(run), str(copied)}
    specbench("report", run, copied, "--plots", tmp_path / "plots", cwd=results)
    speedups = sorted(path.name for path in (tmp_path / "plots").glob("*-speedup.svg"))
    assert len(speedups) == 2, "folders with one name have plots of their own"


SUITE = """
paper = "A paper"
shows = "Table 1"
description = "two settings of each method"
[options]
limit = 2
repeats = 1
max_new_tokens = 6
temperature = 1.0
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k"]
over = { "sd.proposer.gamma" = [2, 3] }
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k"]
seed = 5
over = { "sd.proposer.gamma" = [2, 3] }
[[tables]]
rows = ["pair"]
columns = ["task"]
values = ["acceptance_rate", "tokens_per_second"]
"""


def test_a_suite_table_does_not_merge_different_points(tmp_path):
    """Two seeds of two settings and two baselines: six rows, though the suite names the pair alone."""
    (tmp_path / "mine.toml").write_text(SUITE)
    specbench("run", "--suite", "mine.toml", cwd=tmp_path)
    shown = specbench("report", "--suite", "mine.toml", "-f", "md", cwd=tmp_path).stdout
    (_, rows), *_ = markdown_tables(shown)
    assert {"method", "setting", "run"} <= rows[0].keys()
    assert len({(row["method"], row["setting"], row["run"]) for row in rows}) == len(rows) == 6
    points = list(
        csv.DictReader(io.StringIO(specbench("report", "--suite", "mine.toml", "-f", "csv", cwd=tmp_path).stdout))
    )
    keys = [key for key in points[0] if key not in ("value", "low", "high", "paper")]
    assert len({tuple(point[key] for key in keys) for point in points}) == len(points)


def rows_of(table):
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def test_no_row_and_no_column_of_a_table_has_only_dashes(two_runs):
    folder, runs = two_runs
    for which in (runs[:1], runs):
        page = specbench("report", *which, "-f", "html", cwd=folder).stdout
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
        text = specbench("report", *which, "-f", "md", "--full", cwd=folder).stdout
        blocks = [rows_of(block.splitlines()) for block in text.split("\n\n") if block.startswith("| ")]
        tables = [(table["heads"], table["rows"]) for table in data["tables"]]
        tables += [(heads, rows) for heads, _, *rows in blocks]
        assert len(tables) > 10
        for heads, rows in tables:
            for row in rows:
                assert set(row[heads.index("method") + 1 :]) != {"–"}, (heads, row)
            for head, *cells in zip(heads, *rows, strict=True):
                assert set(cells) != {"–"}, head


def test_a_chosen_column_without_a_value_is_named_and_not_shown(two_runs):
    folder, runs = two_runs
    for form in ("table", "md"):
        done = specbench("report", runs[0], "-f", form, "--columns", "speedup,rollbacks", cwd=folder)
        assert "! no method has a value of: rollbacks" in done.stdout
        assert done.stdout.count("rollbacks") == 1


def test_a_merged_table_of_one_task_names_it_in_its_title_alone():
    one = [run_summary(method_summary("sd", values={"acceptance_rate": 0.5}), pair=pair) for pair in "ab"]
    table = across(one)
    assert table.title == "2 runs, gsm8k@2-A" and "task" not in table.heads and table.label_columns == 2
    other = run_summary(method_summary("sd", values={"acceptance_rate": 0.5}), task="wmt")
    assert "task" in across([*one, other]).heads


def test_the_table_of_acceptance_keeps_its_column_on_every_width():
    summary = run_summary(
        method_summary("sd", values={"acceptance_rate": 0.5, "accepted_length": 2.0, "cost_ratio": 0.1})
    )
    (table,) = (each for each in tables(summary) if "Acceptance" in each.title)
    hidden = table.dropped(table.droppable, lambda shown: False)
    assert [head for i, head in enumerate(table.heads) if i not in hidden] == ["method", "acceptance"]


def test_chosen_columns_are_shown_in_their_order_and_in_every_run():
    one = chosen_table([summary_of_all_metrics()], ["acceptance_rate", "speedup"])
    assert one.heads == ["method", "acceptance", "speedup over ar, decoding"]
    both = chosen_table([summary_of_all_metrics("a"), summary_of_all_metrics("b")], ["speedup", "speedup"])
    assert both.heads == ["pair", "task", "method", "speedup, decoding"]
    assert len(both.rows) == 4


def test_an_unknown_column_names_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'speedup'"):
        chosen_table([summary_of_all_metrics()], ["speedups"])


def test_a_metric_of_a_run_without_scores_is_not_taken_for_another_column():
    with pytest.raises(ConfigError, match="no run here has a score") as raised:
        chosen_table([summary_of_all_metrics()], ["strict"])
    assert "did you mean" not in str(raised.value)


def test_columns_need_a_format_of_tables(tmp_path):
    done = specbench("report", "run", "-f", "csv", "--columns", "speedup", cwd=tmp_path, code=2)
    assert "--columns applies to table, md, latex" in done.stderr


TWO_TASKS = """
paper = "own"
shows = "Table 1"
description = "two tasks"
[options]
limit = 2
repeats = 1
max_new_tokens = 8
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k", "xsum"]
[[tables]]
rows = ["method"]
columns = ["task"]
values = ["speedup"]
"""


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    (folder / "own.toml").write_text(TWO_TASKS)
    specbench("run", "--suite", "own.toml", cwd=folder)
    return folder


@pytest.fixture
def mixed(two_tasks, tmp_path):
    """The suite's results, as if one run had been measured on a GPU."""
    folder = shutil.copytree(two_tasks, tmp_path / "mixed")
    path = next(folder.glob(f"results/*xsum*/{ENVIRONMENT}"))
    table = json.loads(path.read_text())
    del table["sha256"]
    write_with_checksum(path, table | {"gpu": {"name": "NVIDIA H200"}})
    return folder


def run_folders(folder):
    return sorted(path.parent for path in folder.glob("results/*/run.toml"))


def test_the_hardware_of_every_run_is_named(two_tasks, mixed):
    command = ("report", "--suite", "own.toml", "-f", "md")
    alike = specbench(*command, cwd=two_tasks).stdout
    assert "Hardware" not in alike and "kinds of machines" not in alike
    page = specbench(*command, cwd=mixed).stdout
    hardware = page.partition("Hardware")[2]
    assert "measured on 2 kinds of machines" in page
    assert "NVIDIA H200" in hardware and all(run.name in hardware for run in run_folders(mixed))


def test_runs_of_one_machine_are_pooled(two_tasks):
    table = specbench("report", *run_folders(two_tasks), "--pooled", cwd=two_tasks).stdout
    of_suite = specbench("report", "--suite", "own.toml", "--pooled", "-f", "md", cwd=two_tasks).stdout
    (line,) = [line for line in of_suite.splitlines() if line.startswith("| sd ")]
    assert [each.strip() for each in line.split("|")][2:6] == ["tiny", "0", "2", "4"]
    assert "All runs together" in table and "sd" in table


def test_times_of_two_machines_are_not_pooled(mixed):
    done = specbench("report", "--suite", "own.toml", "--pooled", cwd=mixed, code=6)
    assert "gpu: none | NVIDIA H200" in done.stderr and "their times are not pooled" in done.stderr
    specbench("report", *run_folders(mixed), "--pooled", cwd=mixed, code=6)


def test_a_prompt_counts_once(two_tasks, tmp_path):
    run = run_folders(two_tasks)[0]
    copy = shutil.copytree(run, tmp_path / run.name.replace("sd", "again"))
    done = specbench("report", run, copy, "--pooled", cwd=two_tasks, code=6)
    assert "contain the same prompt" in done.stderr


def test_pooling_needs_two_runs(two_tasks):
    done = specbench("report", run_folders(two_tasks)[0], "--pooled", cwd=two_tasks, code=2)
    assert "at least two run folders" in done.stderr
