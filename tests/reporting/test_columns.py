"""The registry of columns: one entry per column, in every format, and in the documentation."""

import json
import re
from importlib import import_module

import pytest

from scripts.reference_tables import DOCS, TABLES_OF, with_table
from specbench.analysis import metric as metrics
from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import Estimate, Spread
from specbench.analysis.method_records import token_count
from specbench.analysis.metric import METRICS, Metric
from specbench.analysis.number_format import HUNDREDTHS, PERCENT, SCORE, TIMES, Format
from specbench.analysis.summary import summarize
from specbench.reporting import columns
from specbench.reporting.column import SPEED, Column
from specbench.reporting.columns import BY_KEY, COLUMNS
from specbench.reporting.formats.writers import RUN_WRITERS
from tests.fixtures.console import specbench
from tests.fixtures.summaries import method_summary, run_summary


@pytest.mark.parametrize("name", TABLES_OF)
def test_the_documentation_has_every_column_and_architecture_as_the_registries_define_them(name):
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == with_table(name, page), "run: python -m scripts.reference_tables"


def test_every_column_and_metric_has_a_definition_of_whole_sentences():
    keys = [column.key for column in COLUMNS]
    assert len(keys) == len(set(keys))
    for text in [
        *(column.metric.definition for column in COLUMNS),
        *(metric.definition for metric in METRICS.values()),
    ]:
        assert re.fullmatch(r"[A-Z0-9(`gs].*\.", text), text


@pytest.mark.parametrize("form", ["md", "latex", "html"])
def test_an_entry_in_the_registry_adds_a_column_to_every_format(monkeypatch, form):
    added = Column(
        key="letters", tables=(SPEED,), value=lambda run, row: float(len(row.method)),
        about=Metric(
            name="letters", heading="letters/method", format=Format("{:.1f}", suffix="!"), definition="Letters of the name."
        ),
    )  # fmt: skip
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, added))
    monkeypatch.setattr(import_module("specbench.reporting.formats.html"), "browsed", lambda summaries: ([], 0))
    summary = run_summary(method_summary("ar", values=dict.fromkeys(METRICS)), method_summary("sd"))
    monkeypatch.setattr(import_module("specbench.reporting.formats.html"), "plots_of_runs", lambda *rest: [])
    text = RUN_WRITERS[form]([summary])
    assert "letters/method" in text
    assert "2.0!" in text


def test_a_registered_function_is_a_value_of_every_method(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(METRICS))

    @metrics.metric(Metric(unit="tokens"))
    def twice_the_tokens(rows) -> float:
        """Tokens, counted twice."""
        return 2.0 * token_count(rows)

    specbench("run", "-m", "sd", "-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 6, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    summary = summarize(folder)
    assert [row.value("twice_the_tokens") for row in summary.methods] == [2.0 * row.tokens for row in summary.methods]
    (table,) = json.loads(RUN_WRITERS["json"]([summary]))
    assert [row["twice_the_tokens"] for row in table["methods"]] == [2.0 * row.tokens for row in summary.methods]


def test_values_are_written_with_their_interval_or_spread():
    assert TIMES.text(Estimate(1.5, 1.25, 1.75)) == "1.50x [1.25, 1.75]"
    assert TIMES.text(Estimate(1.5, None, None)) == "1.50x"
    assert SCORE.text(Estimate(0.5, 0.25, 0.75)) == "50.0 [25.0, 75.0]"
    assert HUNDREDTHS.text(Spread(1.0, 0.5)) == "1.00 ± 0.50"
    assert HUNDREDTHS.text({"draft": 1.0, "target": 0.25}) == "draft 1.00 target 0.25"
    assert HUNDREDTHS.text([0.5, 0.25]) == "0.50 0.25"
    assert TIMES.text(CurveChoice(None, 0.0, 0.0)) == "not reached"
    assert PERCENT.text(None) == "–"
    assert PERCENT.number(0.25, signed=True) == "+25%"


def test_a_ratio_to_the_baseline_is_one_in_the_row_of_the_baseline():
    run = run_summary(method_summary("ar"), method_summary("sd", values={"speedup": Estimate(2.0, None, None)}))
    assert [BY_KEY["speedup"].text(run, row) for row in run.methods] == ["1.00x", "2.00x"]
    assert [BY_KEY["over_sd"].text(run, row) for row in run.methods] == ["–", "1.00x"]


def test_a_method_without_a_complete_generation_shows_how_many_failed():
    failed = method_summary("sd", generations=0, failed=4, first_error="ValueError: no")
    run = run_summary(method_summary("ar"), failed)
    assert "| sd | all 4 failed |" in RUN_WRITERS["md"]([run])
    assert "| sd | all 4 failed |" in RUN_WRITERS["md"]([run, run_summary(method_summary("ar"), failed, pair="other")])
