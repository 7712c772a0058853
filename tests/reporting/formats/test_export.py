"""Runs as CSV."""

import csv

from tests.fixtures.console import specbench


def test_csv_reads_back(two_runs):
    folder, runs = two_runs
    text = specbench("report", *runs, "-f", "csv", cwd=folder).stdout
    assert [row["method"] for row in csv.DictReader(text.splitlines())] == ["ar", "sd", "pld"] * 2
