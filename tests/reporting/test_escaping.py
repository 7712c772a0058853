"""Names, paths and subjects with any characters break no format and cannot act on the program that opens it."""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest

from tests.fixtures.console import specbench
from tests.fixtures.pages import markdown_tables, only_run

SUBJECTS = [
    "[/b] ~~x~~ https://a.org www.b.org",
    "[red]a|b[/red]",
    "<script>alert(1)</script>",
    "esc\x1b[31m and \u202eoverride",
    "two\nlines\\",
    "100 % of_it & $x$ #1 {~^}",
    "=HYPERLINK(1)",
    "Ångström 日本 \ud83d\ude00",
]
FOLDER = "runs[red]"
DATA = "=1+1[red].jsonl"
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A run on categories, from a file and into a folder with special characters in their names."""
    folder = tmp_path_factory.mktemp("escaping")
    rows = ({"category": each, "turns": [f"Count to {i}."]} for i, each in enumerate(SUBJECTS))
    (folder / DATA).write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape = ("-n", len(SUBJECTS), "--repeats", 1, "--max-new-tokens", 6, "--data", DATA, "--out", FOLDER)
    done = specbench("run", "-m", "sd", "-t", "spec-bench", *shape, "--full", cwd=folder)
    (folder / "shown.txt").write_text(done.stdout)
    return folder


def report(where, form, *more):
    run = only_run(where / FOLDER).relative_to(where)
    return specbench("report", run, "-f", form, "--full", *more, cwd=where).stdout


def test_a_run_shows_brackets_as_they_are_and_prints_its_folder(where):
    shown = (where / "shown.txt").read_text()
    assert str(only_run(where / FOLDER).relative_to(where)) in shown.splitlines()
    for text in (shown, report(where, "table")):
        assert "[/b]" in text
        assert DATA in text.replace("\n", "")
        assert not HARMFUL.search(text)


def test_the_terminal_shows_hidden_characters_as_escapes(where):
    assert r"\x1b" in report(where, "table")
    assert r"\u202e" in report(where, "table")


def test_markdown_has_no_html_and_its_tables_keep_their_columns(where):
    text = report(where, "md")
    assert not HARMFUL.search(text)
    assert "<script" not in text
    for line in text.splitlines():
        if line.startswith("| ar ") or line.startswith("| sd "):
            assert line.endswith(" |")
    heads = next(rows[0] for title, rows in markdown_tables(text) if "by group" in title)
    assert r"[red]a\|b[/red]" in heads
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in heads
    assert r"[/b] \~\~x\~\~ https\://a.org www\.b.org" in heads
    assert len(heads) == 1 + len(SUBJECTS)
    assert any("two lines" in head for head in heads)


def test_latex_is_ascii_with_every_special_character_escaped(where):
    text = report(where, "latex")
    assert text.isascii()
    assert not HARMFUL.search(text)
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    group = next(table for table in text.split("\n\n") if "HYPERLINK" in table)
    heads = re.search(r"\\toprule\n(.*)", group)[1]
    shown, dropped = len(re.findall(r"(?<!\\)&", heads)), "as the table would be too wide: " in group
    assert 0 < shown <= len(SUBJECTS) and dropped == (shown < len(SUBJECTS)), "each is a heading, or named as left out"
    group = group.replace(r" \\ ", " ")  # lines of a heading
    assert r"100 \% of\_it \& \$x\$ \#1 \{\textasciitilde{}\textasciicircum{}\}" in group
    assert r"\r{A}ngstr\"{o}m \texttt{U+65E5}" in group
    assert not any(line.startswith(("[", "*")) for line in lines), "which would be an argument of the line before"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_compiles(where, tmp_path):
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n%s\n\\end{document}\n"
    (tmp_path / "x.tex").write_text(document % report(where, "latex"))
    subprocess.run(["pdflatex", "-halt-on-error", "x.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_csv_cells_are_never_formulas(where):
    text = report(where, "csv")
    assert not HARMFUL.search(text)
    rows = list(csv.reader(io.StringIO(text)))
    for cell in (cell for row in rows for cell in row):
        if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
            float(cell)
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {line["data"] for line in lines} == {f"'{DATA}"}
    drift = [float(line["first_token_seconds"]) for line in lines]
    assert all(value > 0 for value in drift), "numbers stay numbers"


def test_json_returns_the_original_texts(where):
    text = report(where, "json")
    assert not HARMFUL.search(text)
    (summary,) = json.loads(text)
    assert set(summary["methods"][1]["groups"]) == set(SUBJECTS[:-1]) | {"Ångström 日本 😀"}


def test_html_holds_names_as_text(where):
    text = report(where, "html")
    assert "<script>alert" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))
    heads = {head for table in data["tables"] for head in table["heads"]}
    assert {SUBJECTS[0], "<script>alert(1)</script>", r"esc\x1b[31m and \u202eoverride"} <= heads


SUITE = """
paper = "A {{data}} paper"
shows = "Table <1>"
description = "{{data}}</script><script>alert(1)</script> [/b] \\u202e"
[options]
limit = 2
repeats = 1
max_new_tokens = 6
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k"]
[[tables]]
title = "a|b [/b] <b>"
rows = ["method"]
values = ["acceptance_rate"]
[[expect]]
says = "=1+1 <script>alert(2)</script> [/b]"
of = { method = "sd" }
value = "acceptance_rate"
at_least = 0.0
"""


def test_texts_of_a_suite_are_escaped_in_every_format(tmp_path):
    (tmp_path / "mine.toml").write_text(SUITE)
    shown = specbench("run", "--suite", "mine.toml", cwd=tmp_path).stdout
    assert "a|b [/b] <b>" in shown
    texts = {
        form: specbench("report", "--suite", "mine.toml", "-f", form, cwd=tmp_path).stdout
        for form in ("table", "md", "latex", "csv", "json", "html")
    }
    for form in ("table", "md", "latex", "csv"):
        assert not HARMFUL.search(texts[form])
    assert "<script>" not in texts["md"]
    assert "<b>" not in texts["md"]
    assert "<script>alert" not in texts["html"]
    assert texts["html"].count('id="data"') == 1
    (title,) = re.findall(r"<h1>(.*?)</h1>", texts["html"], re.DOTALL)
    assert title.startswith("A {{data}} paper, Table &lt;1&gt;: {{data}}&lt;/script&gt;")
    assert json.loads(re.search(r'id="data">(.*?)</script>', texts["html"], re.DOTALL).group(1))["tables"]


@pytest.mark.parametrize("form", ["table", "md"])
def test_verdicts_show_the_names_of_folders_as_they_are(where, form):
    run = only_run(where / FOLDER).relative_to(where)
    shown = specbench("compare", run, run, "-f", form, "--exit-zero", cwd=where).stdout
    assert str(run) in shown.replace("\n", " ")
    assert not HARMFUL.search(shown)


def test_plots_show_dollar_signs_as_text(tmp_path):
    (tmp_path / "$x_{$.jsonl").write_text('{"prompt": "Count."}\n' * 2)
    (tmp_path / "odd$_{$.toml").write_text('name = "prompts"\n')
    run = ("run", "-m", "sd", "-t", "odd$_{$.toml", "--data", "$x_{$.jsonl", "-n", 2, "--repeats", 1)
    specbench(*run, "--max-new-tokens", 6, cwd=tmp_path)
    specbench("report", only_run(tmp_path / "results"), "--plots", "drawn", cwd=tmp_path)
    assert "odd$_{$" in next((tmp_path / "drawn").glob("*.svg")).read_text()
