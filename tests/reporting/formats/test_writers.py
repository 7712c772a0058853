"""Runs as Markdown and as CSV."""

import csv
import re

import pytest

from specbench.reporting.formats.writers import runs_text
from tests.fixtures.console import specbench
from tests.fixtures.summaries import summary_of_all_metrics


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_markdown_begins_with_title_conclusion_warnings_conditions_and_methods(two_runs, full):
    folder, runs = two_runs
    text = specbench("report", runs[0], "-f", "md", *full, cwd=folder).stdout
    title, verdict, warnings, about, methods, table, *_ = text.split("\n\n")
    assert title == "# tiny: gsm8k"
    assert re.match(r"measured on \d{4}-\d\d-\d\d; models draft .*; T = 0; 5 prompts .* x 1 repeat$", about)
    assert [line.partition(":")[0] for line in methods.splitlines()] == ["- ar", "- sd", "- pld"]
    assert re.search(r"\b(ar|sd|pld)\b", verdict) and verdict.count("\n") == 0  # which one depends on the clock
    assert warnings.startswith("- ! ") and table.startswith("**tiny, gsm8k@")
    assert text.count("outputs cut by the length limit") == 1


def test_a_suites_markdown_has_warnings_below_its_conclusion(tmp_path):
    suite = tmp_path / "mine.toml"
    grid = 'methods = ["sd"]\npairs = ["tiny"]\ntasks = ["gsm8k"]\n'
    table = 'rows = ["method"]\nvalues = ["speedup"]\n'
    suite.write_text(
        f'paper = "A"\nshows = "B"\ndescription = "C"\n[[grid]]\n{grid}[[tables]]\n{table}', encoding="utf-8"
    )
    few = ("--max-new-tokens", "8", "-n", "2", "--repeats", "1")
    specbench("run", "--suite", suite, *few, cwd=tmp_path)
    text = specbench("report", "--suite", suite, "-f", "md", cwd=tmp_path).stdout
    assert text.index("Intervals need at least 5") < text.index("\n- ! ") < text.index("- sd: ") < text.index("\n| ")


def test_markdown_with_chosen_columns_has_the_conditions_below():
    text = runs_text([summary_of_all_metrics()], "md", ["speedup"])
    assert "| method | speedup over ar, decoding |" in text
    assert "T = 1" in text


def test_csv_reads_back(two_runs):
    folder, runs = two_runs
    text = specbench("report", *runs, "-f", "csv", cwd=folder).stdout
    assert [row["method"] for row in csv.DictReader(text.splitlines())] == ["ar", "sd", "pld"] * 2
