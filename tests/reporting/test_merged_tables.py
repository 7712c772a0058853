"""Reports of several runs: all rows, titles and CSV lines are different."""

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator

import pytest

from specbench.files import write_sealed
from tests.fixtures.console import specbench

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


def markdown_tables(text: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Every table under its title, rows by their heads."""
    for title, table in re.findall(r"(?:^\*\*(.*)\*\*\n\n)?((?:^\|.*\|\n)+)", text, re.MULTILINE):
        heads, _, *rows = ([cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines())
        yield title, [dict(zip(heads, row, strict=True)) for row in rows]


def only_run(folder):
    (run,) = (path.parent for path in folder.glob("*/samples.jsonl"))
    return run


@pytest.mark.parametrize("column", VARIANTS)
def test_a_difference_between_two_runs_is_a_column_and_in_every_title(results, column):
    runs = [only_run(results / name) for name in ("base", column)]
    shown = specbench("report", *runs, "-f", "md", "--full", cwd=results).stdout
    (_, rows), *each = markdown_tables(shown)
    assert {row[column] for row in rows} == VARIANTS[column][1]
    titles = [title for title, _ in each]
    assert len(titles) == len(set(titles)) >= 10
    latex = specbench("report", *runs, "-f", "latex", "--full", cwd=results).stdout
    captions = re.findall(r"\\caption\{(.*)\}", latex)
    assert len(captions) == len(set(captions)) == len(titles) + 1
    page = specbench("report", *runs, "-f", "html", cwd=results).stdout
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert len({table["title"] for table in data["tables"]}) == len(titles) + 1
    lines = list(csv.DictReader(io.StringIO(specbench("report", *runs, "-f", "csv", cwd=results).stdout)))
    kept = [key for key in lines[0] if key.partition(".")[0] in CONDITIONS]
    places = [tuple(line[key] for key in kept) for line in lines if line["method"] == "sd"]
    assert len(set(places)) == len(places)


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
    write_sealed(copy / "env.json", environment | {"cpu": "Another CPU"})
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
