"""LaTeX tables: alignment, intervals, captions, labels, columns that fit, and compilation."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.analysis.intervals import Estimate, Spread
from specbench.analysis.number_format import COUNT, HUNDREDTHS, NONE, PERCENT, TENTHS, TIMES
from specbench.analysis.points import points, reference_of
from specbench.features.suites.suite import TableSpec
from specbench.features.suites.suite_tables import paper_tables, pivot
from specbench.note import warning
from specbench.reporting.formats.latex import Captioned, latex
from specbench.reporting.formats.writers import RUN_WRITERS, runs_text
from specbench.reporting.tables import Table
from tests.fixtures.console import specbench
from tests.fixtures.summaries import method_summary, run_summary, summary_of_all_metrics


def table_of(*rows: list[str], heads: tuple[str, ...] = ("method", "value")) -> str:
    return latex([Captioned(Table("A title", list(heads), list(rows)))])


def test_a_number_and_its_interval_are_two_columns():
    speedup = TIMES.text(Estimate(10.25, 9.5, 11.0))
    rows = [["ar", TIMES.text(1.0), COUNT.text(1)], ["sd", speedup, COUNT.text(2)], ["we", NONE, COUNT.text(3)]]
    text = table_of(*rows, heads=("method", "value", "n"))
    assert r"\begin{tabular}{lr@{\hspace{0.4em}}lr}" in text
    assert r"method & \multicolumn{2}{c}{value} & n \\" in text
    assert r"sd & 10.25$\times$ & {\footnotesize [9.50, 11.00]} & 2 \\" in text
    assert r"ar & 1.00$\times$ &  & 1 \\" in text
    assert r"we & -- &  & 3 \\" in text


def test_numbers_are_aligned_right_and_texts_left():
    rows = [
        ["ar", TENTHS.text(-1.5), "5, 1", PERCENT.text(0.5)],
        ["sd", TENTHS.text(2.0), "up to 5", PERCENT.text(0.05)],
    ]
    text = table_of(*rows, heads=("method", "a", "b", "c"))
    assert r"\begin{tabular}{lrlr}" in text
    assert r"ar & $-$1.5 & 5, 1 & 50\% \\" in text


def test_a_deviation_and_the_papers_value_follow_a_number():
    compared = TIMES.cell(1.47, "[1.37, 1.57]").followed_by("(paper 1.44, -0.03)")
    text = table_of(["sd", HUNDREDTHS.text(Spread(1.2, 0.3))], ["we", compared])
    assert r"1.20 & {\footnotesize $\pm$ 0.30}" in text
    assert r"{\footnotesize [1.37, 1.57] (paper 1.44, $-$0.03)}" in text


def test_special_characters_are_escaped_in_cells_headings_captions_and_names():
    table = Table("50 % of_it", ["a&b", "c#"], [["{x}", "~^\\"]])
    text = latex([Captioned(table, "pair $x", "my_suite")])
    assert r"\caption{50 \% of\_it. Pair \$x.}" in text
    assert r"\label{tab:my-suite-50-of-it}" in text
    assert r"a\&b & c\# \\" in text
    assert r"\{x\} & \textasciitilde{}\textasciicircum{}\textbackslash{} \\" in text


def test_captions_end_with_a_stop_and_have_the_sign_of_the_table():
    each = Captioned(
        Table("A title", ["a"], [["1.5x"]]), "pair x, 3 prompts x 3 repeats", conclusion="sd x2 is 1.50x [1.2, 1.6]."
    )
    assert r"\caption{A title. sd x2 is 1.50$\times$ [1.2, 1.6]. Pair x, 3 prompts $\times$ 3 repeats.}" in latex(
        [each]
    )


def test_a_long_table_is_split_into_pages_with_one_layout_and_one_note():
    rows = [[f"m{i}", "1.5"] for i in range(60)] + [["a very long name of a method", "1.5 [1.0, 2.0]"]]
    text = latex([Captioned(Table("A title", ["method", "value"], rows), warnings=[warning("odd", "odd")])])
    tables = text.split("\\begin{table}")[1:]
    assert len(tables) == 2 and sum(text.count(f"m{i} &") for i in range(60)) == 60
    assert len({*re.findall(r"begin\{tabular\}\{(.*)\}", text)}) == 1
    assert text.count("Note: ") == 1 and "Note: " in tables[1] and "Continued, 2 of 2." in tables[1]
    assert re.findall(r"\\label\{(.*)\}", text) == ["tab:a-title", "tab:a-title-2"]


def test_labels_are_short_and_differ_where_long_names_differ_at_the_end():
    texts = [latex([Captioned(Table("Title", ["a"], [["1"]]), name=f"{'word ' * 30}{end}")]) for end in "ab"]
    labels = [re.findall(r"\\label\{tab:(.*)\}", text)[0] for text in texts]
    assert labels[0] != labels[1] and max(map(len, labels)) <= 60


def test_every_label_is_unique():
    tables = [Captioned(Table(title, ["a"], [["1"]])) for title in ("Same", "Same", "", "")]
    labels = re.findall(r"\\label\{(.*)\}", latex(tables))
    assert labels == ["tab:same", "tab:same-2", "tab:table", "tab:table-2"]


def test_a_caption_has_the_conditions_of_the_run():
    text = RUN_WRITERS["latex"]([summary_of_all_metrics()])
    for word in (
        "Pair tiny",
        "task gsm8k@2-A",
        "T = 1",
        r"3 prompts (hub) $\times$ 3 repeats",
        "engine lean",
        "cpu float32",
    ):
        assert word in text
    assert "speedups by decoding time" in text


def test_one_table_is_written_by_default_and_all_with_full():
    text, full = (
        runs_text([summary_of_all_metrics()], "latex"),
        runs_text([summary_of_all_metrics()], "latex", full=True),
    )
    assert text.count(r"\begin{table}") == 1 and full.count(r"\begin{table}") > 3
    for each in (text, full):
        assert each.count("sd and ar cannot be distinguished in this run") == 1, "in the first caption"


def test_doubts_and_warnings_are_a_note_below_the_table():
    text = runs_text([summary_of_all_metrics(data="hub")], "latex")
    (note,) = re.findall(r"\\end\{tabular\}\}\n.*parbox.*Note: (.*)\}\n\\end\{table\}", text)
    assert "Intervals need at least 5 different prompts" in note
    assert "help:" not in note


def test_the_best_value_of_a_ranked_column_is_bold_within_a_temperature():
    def run(temperature, *speedups):
        rows = [
            method_summary(f"sd{i}", values={"speedup": Estimate(each, 0.5, 3.0), "tokens_per_second": each})
            for i, each in enumerate(speedups)
        ]
        found = run_summary(method_summary("ar", values={"tokens_per_second": 1.0}), *rows)
        decoding = replace(found.spec.decoding, temperature=temperature)
        return replace(found, spec=replace(found.spec, decoding=decoding))

    text = runs_text([run(0.0, 1.5, 1.7), run(1.0, 1.2, 1.1)], "latex")
    assert re.findall(r"textbf\{([\d.]+)", text) == ["1.70", "1.20"]
    table = run(0.0, 1.5, 1.7)
    assert re.findall(r"textbf\{([\d.]+)", runs_text([table], "latex")) == ["1.70"]
    assert "textbf" not in runs_text([run(0.0, 1.0, 1.0)], "latex"), "equal values"


def test_labels_of_two_runs_differ():
    texts = [
        runs_text([replace(summary_of_all_metrics(), run=name)], "latex", full=True) for name in ("sd_1a", "sd_1b")
    ]
    labels = [label for text in texts for label in re.findall(r"\\label\{(.*)\}", text)]
    assert len(set(labels)) == len(labels) > 6


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_every_kind_of_table_compiles(tmp_path):
    runs = [summary_of_all_metrics("a"), summary_of_all_metrics("b")]
    spec = TableSpec(rows=("pair", "method"), columns=("task",), values=("speedup", "papers_speedup"))
    found = points(runs, reference_of("se-table2"))
    spread = Spread(1.0, 0.5)
    odd = Table("–†±×", ["a", "b"], [["α_β", str(spread.mean)], ["[x]", "1 ± 2"]])
    tables = [pivot(spec, found), *paper_tables(reference_of("se-table2")), odd]
    runs[0] = replace(runs[0], complete=False)
    parts = [
        runs_text(runs, "latex", full=True),
        runs_text(runs, "latex", ["speedup", "score", "acceptance_by_position"]),
        latex(Captioned(table, "conditions", "suite") for table in tables),
    ]
    document = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n%s\n\\end{document}\n"
    (tmp_path / "x.tex").write_text(document % "\n".join(parts), encoding="ascii")
    done = subprocess.run(["pdflatex", "-halt-on-error", "x.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert Path(tmp_path / "x.pdf").stat().st_size > 0
    assert "Overfull" not in done.stdout, "every table fits the text width"


def test_a_name_at_the_start_of_a_note_is_not_capitalized():
    warnings = [
        warning("a", "ar reaches 12% of the measured copy bandwidth; a faster engine helps"),
        warning("b", "outputs cut: ar 5%"),
    ]
    text = latex([Captioned(Table("", ["method", "value"], [["ar", "1"]]), warnings=warnings)])
    assert r"Note: ar reaches 12\% of the measured copy bandwidth; a faster engine helps. Outputs cut: ar 5\%." in text


def test_a_wide_table_names_the_columns_that_it_leaves_out_and_is_scaled_by_latex():
    runs = [summary_of_all_metrics("a"), summary_of_all_metrics("b", task="wmt")]
    text = runs_text(runs, "latex")
    head = text.partition("\\toprule\n")[2].partition("\n")[0]
    assert "speedup, \\\\ decoding" in head, "headings have a line for each part"
    left_out = re.search(r"left out, as the table would be too wide: ([^,.]+)", text)[1]
    assert left_out and left_out not in head
    chosen = runs_text(runs, "latex", ["speedup", "speedup_at_limit", "acceptance_rate"])
    assert "roofline bound" in chosen and "left out" not in chosen, "chosen columns stay"
    assert "\\linewidth\\else\\width\\fi}{!}{%\n\\begin{tabular}" in text and "\\end{tabular}}" in text


def test_a_comment_names_the_packages_and_the_option_for_fewer_columns():
    text = runs_text([summary_of_all_metrics()], "latex", ["speedup"])
    assert text.startswith("% Requires \\usepackage{booktabs,graphicx}.") and "--columns" in text
    assert r"\begin{tabular}{lr@{\hspace{0.4em}}l}" in text


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_of_several_reports_compiles_in_one_document(two_runs):
    folder, runs = two_runs
    parts = [specbench("report", *each, "-f", "latex", cwd=folder).stdout for each in (runs[:1], runs[1:], runs)]
    document = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n%s\n\\end{document}\n"
    (folder / "x.tex").write_text(document % "\n".join(parts), encoding="ascii")
    done = subprocess.run(["pdflatex", "-halt-on-error", "x.tex"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "multiply defined" not in done.stdout
