"""Every speed names its clock, decoding or end to end, and follows from the seconds recorded by that clock."""

import csv
import io
import json
import re
from collections import defaultdict

import numpy as np
import pytest

from tests.fixtures.console import specbench
from tests.fixtures.pages import markdown_tables, only_run

CLOCKS = ("decoding", "end to end")
TIMED = re.compile(r"speedup|tokens/s|latency|average|geometric|ms/generation|speed at")
METHODS = ("ar", "sprinter", "adaedl", "sd")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clocks")
    shape = ("-t", "gsm8k", "-n", 5, "--repeats", 2, "--max-new-tokens", 16, "--temperature", 1)
    specbench("run", "-m", ",".join(METHODS[1:]), *shape, cwd=folder)
    return only_run(folder / "results")


def records(folder):
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return {m: {(r["sample"], r["repeat"]): r for r in rows if r["method"] == m} for m in {r["method"] for r in rows}}


def whole(record):
    return record["prefill_seconds"] + record["decode_seconds"]


def reported(folder):
    (summary,) = json.loads(specbench("report", folder, "-f", "json", cwd=folder).stdout)
    return {row["method"]: row for row in summary["methods"]}


def test_every_ratio_of_a_run_follows_from_the_recorded_seconds_of_its_clock(run):
    found, rows = records(run), reported(run)

    def total(method, value):
        return sum(value(record) for record in found[method].values())

    def tokens(method):
        return total(method, lambda record: len(record["tokens"]))

    for method in METHODS[1:]:
        longer = tokens(method) / tokens("ar")
        decoding = total("ar", lambda r: r["decode_seconds"]) / total(method, lambda r: r["decode_seconds"])
        completing = total("ar", whole) / total(method, whole)
        assert rows[method]["speedup"]["value"] == pytest.approx(longer * decoding)
        assert rows[method]["end_to_end_speedup"]["value"] == pytest.approx(longer * completing)
        assert rows[method]["relative_latency"]["value"] == pytest.approx(1 / completing)
    for method in ("ar", "sprinter", "adaedl"):
        assert rows[method]["over_sd"]["value"] == pytest.approx(total("sd", whole) / total(method, whole))


def test_sprinters_speedup_is_the_ratio_of_the_printed_milliseconds(run):
    rows = reported(run)
    slow = rows["sd"]["generation_milliseconds"][0]
    for method in ("ar", "sprinter", "adaedl"):
        exact = slow / rows[method]["generation_milliseconds"][0]
        estimate = rows[method]["over_sd"]
        assert estimate["value"] == pytest.approx(exact)
        assert estimate["low"] <= exact <= estimate["high"]
    shown = specbench("report", run, "-f", "md", "--full", cwd=run).stdout
    printed = next(each for title, each in markdown_tables(shown) if title.endswith("SPRINTER"))
    times = {row["method"]: float(row["ms/generation, end to end"].split()[0]) for row in printed}
    ratios = {row["method"]: float(row["speedup over sd, end to end"].split("x")[0]) for row in printed}
    assert ratios == {method: pytest.approx(times["sd"] / times[method], rel=0.02) for method in METHODS}


def headings_of(text, form):
    if form == "md":
        return [head for _, rows in markdown_tables(text) for head in rows[0]]
    if form == "latex":
        lines = [line.replace(r" \\ ", " ") for line in re.findall(r"\\toprule\n(.*) \\\\", text)]  # wrapped headings
        return [head.strip() for line in lines for head in line.split("&")]
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))
    return [head for table in data["tables"] for head in table["heads"]]


@pytest.mark.parametrize("form", ["md", "latex", "html"])
def test_every_heading_of_a_speed_names_its_clock(run, form):
    for runs in ([run], [run, run]):
        heads = headings_of(specbench("report", *runs, "-f", form, "--full", cwd=run).stdout, form)
        timed = [head for head in heads if TIMED.search(head)]
        assert len(timed) >= 8
        assert [head for head in timed if sum(clock in head for clock in CLOCKS) != 1] == []


def test_every_heading_in_the_terminal_names_its_clock(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # no heading is wrapped
    lines = specbench("report", run, "--full", cwd=run).stdout.splitlines()
    heads = [lines[i - 1] for i, line in enumerate(lines) if line.startswith(" ─")]
    timed = [head for line in heads for head in re.split(r" {2,}", line.strip()) if TIMED.search(head)]
    assert len(timed) >= 6
    assert [head for head in timed if not any(clock in head for clock in CLOCKS)] == []


SUITE = """
paper = "A paper"
shows = "Table 1"
description = "two clocks"
[options]
limit = 5
repeats = 1
max_new_tokens = 16
[[grid]]
methods = ["sprinter", "sd"]
pairs = ["tiny"]
tasks = ["gsm8k"]
[[tables]]
rows = ["method"]
columns = ["task"]
values = ["speedup"]
[[tables]]
title = "Latency"
rows = ["method"]
columns = ["task"]
values = ["relative_latency"]
[[tables]]
rows = ["method"]
values = ["generation_milliseconds", "over_sd", "end_to_end_speedup", "papers_speedup", "tokens_per_second"]
[[plots]]
x = "relative_latency"
y = "speedup"
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "mine.toml").write_text(SUITE)
    specbench("run", "--suite", "mine.toml", cwd=folder)
    return folder


def test_headings_titles_and_axes_of_a_suite_name_the_clock(suite):
    shown = specbench("report", "--suite", "mine.toml", "-f", "md", "--plots", "drawn", cwd=suite).stdout
    (first, _), (second, _), (_, rows) = markdown_tables(shown)
    assert first == "speedup, decoding"
    assert second == "Latency: relative latency, end to end"
    assert all(sum(clock in head for clock in CLOCKS) == 1 for head in list(rows[0])[1:])
    drawn = (suite / "drawn" / "mine.svg").read_text()
    assert "speedup over ar, decoding" in drawn
    assert "relative latency, end to end" in drawn


def test_a_suites_speedup_over_sd_is_the_ratio_of_its_milliseconds(suite):
    shown = specbench("report", "--suite", "mine.toml", "-f", "csv", cwd=suite).stdout
    values = {(row["method"], row["metric"]): float(row["value"]) for row in csv.DictReader(io.StringIO(shown))}
    for method in ("ar", "sprinter", "sd"):
        exact = values["sd", "generation_milliseconds"] / values[method, "generation_milliseconds"]
        assert values[method, "over_sd"] == pytest.approx(exact)


QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Say something.", "Say something more, and at length."]},
    {"question_id": 82, "category": "math", "turns": ["How much is 12 + 30?", "And twice that?", "And half of it?"]},
    {"question_id": 200, "category": "qa", "turns": ["Where is the river?"]},
    {"question_id": 201, "category": "qa", "turns": ["Who wrote the letter to the town hall?"]},
]


def test_the_papers_average_counts_a_question_once_however_many_turns_it_has(tmp_path):
    """Spec-Bench's script: tokens and seconds summed over a question's turns, then the mean of the rates."""
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    shape = ("-n", 4, "--repeats", 2, "--max-new-tokens", 12, "--data", "questions.jsonl")
    specbench("run", "-m", "sd", "-t", "spec-bench", *shape, cwd=tmp_path)
    run = only_run(tmp_path / "results")
    found, row = records(run), reported(run)["sd"]

    def rate(method, kept):
        sums = defaultdict(lambda: np.zeros(2))
        for (sample, repeat), record in found[method].items():
            question = int(sample.partition(".")[0])
            if question in kept:
                sums[question, repeat] += (len(record["tokens"]), whole(record))
        assert len(sums) == 2 * len(kept)
        return np.mean([tokens / seconds for tokens, seconds in sums.values()])

    every = {81, 82, 200, 201}
    assert len(found["sd"]) == 2 * 7
    assert row["papers_speedup"]["value"] == pytest.approx(rate("sd", every) / rate("ar", every))
    for group, kept in (("multi-turn", {81, 82}), ("qa", {200, 201})):
        ours = row["groups"][group]["papers_speedup"]["value"]
        assert ours == pytest.approx(rate("sd", kept) / rate("ar", kept))


def test_names_with_dots_are_not_turns_if_no_question_has_turns(tmp_path):
    rows = ({"question_id": name, "category": "qa", "turns": [f"Count to {name}."]} for name in ("1", "1.2"))
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape = ("-n", 2, "--repeats", 1, "--max-new-tokens", 8, "--data", "questions.jsonl")
    specbench("run", "-m", "sd", "-t", "spec-bench", *shape, cwd=tmp_path)
    run = only_run(tmp_path / "results")
    ours, theirs = (np.mean([len(r["tokens"]) / whole(r) for r in records(run)[m].values()]) for m in ("sd", "ar"))
    assert reported(run)["sd"]["papers_speedup"]["value"] == pytest.approx(ours / theirs)
