"""The table of a suite's verifiers: distances by Theorem 1, and run lengths of the same kind on both sides."""

import json
from pathlib import Path

import pytest

import specbench
from specbench.analysis.points import Point, reference_of
from specbench.features.suites.papers.verifiers import (
    REPORT,
    UNKNOWN,
    VerifierReport,
    verifier_reports,
    verifier_table,
    with_thresholds,
    with_verifier_values,
)
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_tables import pivot

VALUES = {
    "auc": 0.97, "auc_low": 0.96, "auc_high": 0.98, "base_rate": 0.8, "eta_tp": 0.9, "eta_fp": 0.1, "draft_tv": 0.2,
    "predicted_tv": 0.03, "output_tv": 0.03,
}  # fmt: skip


def cells(tau: float, **values) -> dict[str, str]:
    report = VerifierReport("tiny", "xsum", "sprinter", tau, {**VALUES, **values}, None)
    table = verifier_table([report])
    return dict(zip(table.heads, table.rows[0], strict=True))


def test_theorem_1_takes_the_rate_over_tokens_with_q_above_p():
    found = cells(1.2, ratio_eta_fp=0.4)
    assert (found["TV by Theorem 1 (eta_FP where q > p)"], found["eta_FP x TV of the draft"]) == ("0.080", "0.020")


def test_an_older_report_has_theorem_1_only_where_its_labels_are_those_of_the_theorem():
    """Older reports hold `theorem_tv`, against the labels of tau_train: at 1.2 it is not the theorem's."""
    assert cells(1.2, theorem_tv=0.02)["TV by Theorem 1 (eta_FP where q > p)"] == UNKNOWN
    assert cells(1.0, theorem_tv=0.02)["TV by Theorem 1 (eta_FP where q > p)"] == "0.020"


@pytest.mark.parametrize(("name", "theorem"), [("sprinter", "0.108"), ("sprinter-q", "0.071")])
def test_the_bundled_verifiers_have_theorem_1_although_their_tau_train_is_not_1(name, theorem):
    values = json.loads((Path(specbench.__file__).parent / "tiny" / "heads" / name / REPORT).read_text())
    report = VerifierReport("tiny", "", name, values["tau_train"], values, None)
    assert report.tau == 1.2 and report.theorem_tv == theorem


def test_theorem_1_has_no_value_for_a_verifier_of_greedy_tokens():
    report = VerifierReport(
        "tiny", "xsum", "sprinter", 1.2, {k: v for k, v in VALUES.items() if k != "predicted_tv"}, None
    )
    assert verifier_table([report]).rows[0][10:13] == ["–", "–", "–"]


def test_a_split_by_rows_is_labelled_as_leaking():
    assert cells(1.2)["split by"] == "texts"
    assert cells(1.2, split="rows (leaks)")["split by"] == "rows (leaks)"


def test_a_measured_run_length_counts_what_the_prediction_counts(tmp_path):
    """Theorem 2 is about tokens that the verifier accepted. "Avg tokens" adds those that only the target accepted."""
    suite = read_suite("sprinter-table5-tiny")
    (step,) = suite.prepare
    head = next(iter(step.heads("tiny-gpt2", "xsum")))
    (file := head.folder(tmp_path) / REPORT).parent.mkdir(parents=True)
    file.write_text(json.dumps(VALUES))
    values = {"average_tokens": 3.4, "verifier_run": 3.1}
    point = Point(
        pair="tiny-gpt2", task="xsum", T=1.0, method="sprinter", run="r", settings={"head": head.name}, values=values
    )
    (report,) = verifier_reports(suite, tmp_path, [point])
    assert report.run_length == 3.1
    table = verifier_table([report])
    assert [each for each in table.heads if "run" in each] == ["accepts/run by Theorem 2", "accepts/run at T = 1"]


def test_table_5_has_the_measured_best_thresholds_beside_the_printed_ones():
    """Three settings on LM1B. The best has the highest score per second, here tau_train = 1.5 and tau_inf = 0.7."""
    suite = read_suite("sprinter-table5")
    printed = {
        each.metric: each.value for each in reference_of(suite.name) if (each.pair, each.task) == ("gpt2", "lm1b")
    }
    assert printed == {"tau_train": 1.2, "tau_inf": 0.5}

    def point(x: float, tau: str, score: float, ms: float) -> Point:
        return Point(
            pair="gpt2", task="lm1b", T=1.0, method="sprinter", run="r",
            settings={"threshold": x, "head": f"sprinter/{tau}"}, values={"score": score, "generation_milliseconds": ms},
            paper=printed,
        )  # fmt: skip

    points = [point(0.5, "1", 0.2, 500.0), point(0.7, "1.5", 0.2, 400.0), point(0.9, "1.2", 0.3, 700.0)]
    table = pivot(suite.tables[0], with_thresholds(suite, points))
    found = {row[3]: row for row in table.rows}
    assert "(paper" not in " ".join(cell for name, row in found.items() for cell in row if "best" not in name)
    best = dict(zip(table.heads, found["best of 3 †"], strict=True))
    assert best["T = 1, tau_train"] == "1.50 (paper 1.20, +0.30)"
    assert best["T = 1, tau_inf"] == "0.70 (paper 0.50, +0.20)"
    assert best["T = 1, score/s, end to end"] == "50.0"


def test_table_1_is_measured_greedily_too():
    """The authors' sampler is greedy."""
    for name in ("sprinter-table1", "sprinter-table1-tiny"):
        assert [line.options.temperature for line in read_suite(name).grid] == [0.0, 1.0]


def test_a_point_has_the_auc_of_its_own_verifier():
    suite = read_suite("sprinter-table5-tiny")
    reports = [VerifierReport("tiny-gpt2", "xsum", f"sprinter/{tau}", float(tau), {**VALUES, "auc": auc}, None)
               for tau, auc in (("1", 0.9), ("1.5", 0.99))]  # fmt: skip
    place = {"pair": "tiny-gpt2", "task": "xsum", "T": 0.0, "run": "r"}
    found = with_verifier_values(
        suite,
        [
            Point(**place, method="sprinter", settings={"threshold": 0.5, "head": "sprinter/1.5"}),
            Point(**place, method="sprinter", settings={"threshold": 0.5, "head": "sprinter/1.2"}),
            Point(**place, method="sd"),
        ],
        reports,
    )
    assert [point.number("auc") for point in found] == [0.99, None, None]
