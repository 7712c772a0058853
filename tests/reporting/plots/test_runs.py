"""Plots of one run: the kinds that it has data for, their labels and files."""

import itertools
from dataclasses import replace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import LengthPrediction
from specbench.analysis.predictions import BreakEven
from specbench.reporting.plots.figures import selected
from specbench.reporting.plots.run_plots import of_runs, run_plots
from tests.fixtures.summaries import method_summary, run_summary

AR = method_summary("ar", values={"tokens_per_second": 100.0}, round_milliseconds={"target": 9.0, "host": 1.0})


def drafting(name="sd"):
    return method_summary(
        name,
        values={"speedup": Estimate(1.3, 1.2, 1.4), "tokens_per_second": 130.0, "accepted_length": 2.6, "corrected": 1.4,
                "predicted": 1.9},
        acceptance_by_position=[0.8, 0.7],
        length_counts={1: 3, 2: 2, 3: 5},
        round_milliseconds={"draft": 3.0, "target": 12.0, "host": 1.0},
        predicted_lengths=[
            LengthPrediction(k, Estimate(1.0 + k / 10, 0.9, 1.6), Estimate(1.0, 0.9, 1.1)) for k in range(1, 6)
        ],
    )  # fmt: skip


def test_a_run_has_a_picture_of_each_kind_that_it_has_data_for():
    found = run_plots(run_summary(AR, drafting()))
    assert {"speedup", "acceptance", "tokens-per-round", "time"} <= found.keys()
    assert "quality" not in found, "nothing is scored"
    assert "roc" not in found, "the run has no verifier"


def test_a_run_of_a_baseline_alone_has_no_empty_pictures():
    found = run_plots(run_summary(AR))
    assert not {"speedup", "acceptance", "quality", "draft-lengths", "roc"} & found.keys()


def test_the_files_of_a_run_are_named_after_their_kinds(tmp_path):
    drawn = of_runs([run_summary(AR, drafting())], tmp_path, ("svg",))
    kinds = {path.name.removeprefix("run-") for path in drawn}
    assert {"speedup.svg", "acceptance.svg", "tokens-per-round.svg", "time.svg"} <= kinds
    assert all(path.exists() for path in drawn)


def test_the_speedup_chart_shows_the_number_and_hostile_names_as_text(tmp_path):
    of_runs([run_summary(AR, drafting("sd(gamma=$x^2$)"))], tmp_path, ("svg",))
    text = (tmp_path / "run-speedup.svg").read_text()
    assert "1.30x" in text and "gamma=" in text


def test_a_plot_shows_a_setting_of_each_method_if_there_are_too_many():
    rows = [drafting(f"{name}(gamma={k})") for name, k in itertools.product(("sd", "eagle"), range(1, 6))]
    assert [row.method for row in selected(rows, 8)] == ["sd(gamma=1)", "eagle(gamma=1)"]
    assert selected(rows, 10) == rows


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
    of_runs([run_summary(ar, replace(sd, break_even=break_even(acceptance)))], tmp_path, ("svg",))
    text = (tmp_path / "run-break-even.svg").read_text()
    for word in (*words, "as fast as ar", "sd: measured (95 %)"):
        assert word in text
    if acceptance is None:
        assert "break-even at" not in text
