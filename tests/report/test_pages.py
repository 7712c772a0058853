"""Pages and tables of a run in every format: what stands where, what is left out, and the files of plots."""

import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.predictions import BreakEven
from specbench.report import plots
from specbench.report.conditions import methods
from specbench.report.notes import short_notes
from specbench.report.tables import across, tables
from tests.fixtures.console import specbench
from tests.fixtures.summaries import method_summary, run_summary


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    run = ("-m", "sd,pld", "-t", "gsm8k,wmt", "-n", "5", "--repeats", "1", "--max-new-tokens", "24", "--out", "mine")
    specbench("run", *run, cwd=folder)
    return folder, sorted((folder / "mine").glob("*_gsm8k_*")) + sorted((folder / "mine").glob("*_wmt_*"))


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_markdown_begins_with_title_conclusion_warnings_conditions_and_methods(measured, full):
    folder, runs = measured
    text = specbench("report", runs[0], "-f", "md", *full, cwd=folder).stdout
    title, verdict, warnings, about, methods, table, *_ = text.split("\n\n")
    assert title == "# tiny: gsm8k"
    assert re.match(r"measured on \d{4}-\d\d-\d\d; models draft .*; T = 0; 5 prompts .* x 1 repeat$", about)
    assert [line.partition(":")[0] for line in methods.splitlines()] == ["- ar", "- sd", "- pld"]
    assert "sd (draft length 5)" in verdict and verdict.count("\n") == 0
    assert warnings.startswith("- ! ") and table.startswith("**tiny, gsm8k@")
    assert text.count("outputs cut by the length limit") == 1


def test_a_method_that_declares_no_distribution_is_listed_as_undeclared():
    found = run_summary(method_summary("sd"))
    assert [line.rpartition("; ")[2] for line in methods(run_of(found, None))][1] == "undeclared"
    assert [line.rpartition("; ")[2] for line in methods(run_of(found, False))][1] == "not lossless"


def run_of(summary, lossless):
    """Return a run, as a list, in which `sd` declares this."""
    spec = {**summary.spec.methods, "sd": replace(summary.spec.methods["sd"], lossless=lossless)}
    return [replace(summary, spec=replace(summary.spec, methods=spec))]


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


def rows_of(table):
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def test_no_row_and_no_column_of_a_table_has_only_dashes(measured):
    folder, runs = measured
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


def test_a_chosen_column_without_a_value_is_named_and_not_shown(measured):
    folder, runs = measured
    for form in ("table", "md"):
        done = specbench("report", runs[0], "-f", form, "--columns", "speedup,rollbacks", cwd=folder)
        assert "! no method has a value of: rollbacks" in done.stdout
        assert done.stdout.count("rollbacks") == 1


def test_plots_have_plain_names_and_the_chosen_formats(measured):
    folder, runs = measured
    assert "+" in runs[0].name
    specbench("report", *runs, "--plots", "plots", "--plot-format", "pdf,svg", cwd=folder)
    names = [path.name for path in (folder / "plots").iterdir()]
    assert {name.rpartition(".")[2] for name in names} == {"pdf", "svg"}
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)
    assert (folder / "plots" / f"{runs[0].name.replace('+', '-')}-speedup.pdf").read_bytes().startswith(b"%PDF")


def test_an_unknown_format_of_plots_is_an_error(measured):
    folder, runs = measured
    done = specbench("report", runs[0], "--plots", "plots", "--plot-format", "jpg", cwd=folder, code=2)
    assert "--plot-format jpg" in done.stderr and "pdf" in done.stderr
    done = specbench("report", runs[0], "--plot-format", "pdf", cwd=folder, code=2)
    assert "help: --plots FOLDER" in done.stderr


@pytest.mark.parametrize("count", [2, 4])
def test_help_for_a_full_report_is_about_the_reported_runs(tmp_path, count):
    """More than three folders are not named: the same command shows all tables."""
    drifts = {f"sd{i}": {"drift": 0.5, "cut_prompts": 0.5, "cut_by_length": 0.5} for i in range(2)}
    cuts = dict.fromkeys("abc", 0.2)
    rows = [
        method_summary(name, values=values, window_cuts=cuts, failed=1, first_error="x")
        for name, values in drifts.items()
    ]
    runs = [replace(run_summary(*rows), folder=f"{tmp_path}/else where/{i}", complete=False) for i in range(count)]
    (rest,) = (note.partition("help: ")[2] for note in short_notes(runs) if "more warning" in note)
    named = " ".join(f"'{each.folder}'" for each in runs)
    assert rest == ("specbench report FOLDERS --full" if count > 3 else f"specbench report {named} --full")


def break_even(acceptance):
    curve = [0.5 + 0.01 * step for step in range(51)] if acceptance is None else [0.5 + 0.02 * i for i in range(51)]
    return BreakEven(
        gamma=5, acceptance=acceptance, measured_acceptance=0.8, cost_ratio=None, measured_cost_ratio=0.2, curve=curve
    )


@pytest.mark.parametrize(
    ("acceptance", "words"), [(None, ["no break-even"]), (0.5, ["break-even at 0.50", ">break-even 0.50<"])]
)
def test_the_break_even_plot_labels_its_parts(tmp_path, acceptance, words):
    ar, sd = method_summary("ar"), method_summary("sd", values={"speedup": Estimate(1.2, 1.1, 1.3)})
    plots.of_runs([run_summary(ar, replace(sd, break_even=break_even(acceptance)))], tmp_path, ("svg",))
    text = (tmp_path / "run-break-even.svg").read_text()
    for word in (*words, "as fast as ar", "sd: measured (95 %)"):
        assert word in text
    if acceptance is None:
        assert "break-even at" not in text


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_of_several_reports_compiles_in_one_document(measured):
    folder, runs = measured
    parts = [specbench("report", *each, "-f", "latex", cwd=folder).stdout for each in (runs[:1], runs[1:], runs)]
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n%s\n\\end{document}\n"
    (folder / "x.tex").write_text(document % "\n".join(parts), encoding="ascii")
    done = subprocess.run(["pdflatex", "-halt-on-error", "x.tex"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "multiply defined" not in done.stdout


def test_csv_reads_back(measured):
    folder, runs = measured
    text = specbench("report", *runs, "-f", "csv", cwd=folder).stdout
    assert [row["method"] for row in csv.DictReader(text.splitlines())] == ["ar", "sd", "pld"] * 2


def test_a_merged_table_of_one_task_names_it_in_its_title_alone():
    one = [run_summary(method_summary("sd", values={"acceptance_rate": 0.5}), pair=pair) for pair in "ab"]
    table = across(one)
    assert table.title == "2 runs, gsm8k@2-A" and "task" not in table.heads and table.places == 2
    other = run_summary(method_summary("sd", values={"acceptance_rate": 0.5}), task="wmt")
    assert "task" in across([*one, other]).heads


def test_the_table_of_acceptance_keeps_its_column_on_every_width():
    summary = run_summary(
        method_summary("sd", values={"acceptance_rate": 0.5, "accepted_length": 2.0, "cost_ratio": 0.1})
    )
    (table,) = (each for each in tables(summary) if "Acceptance" in each.title)
    hidden = table.dropped(table.droppable, lambda shown: False)
    assert [head for i, head in enumerate(table.heads) if i not in hidden] == ["method", "acceptance"]
