"""The table of a suite's verifiers: distances by Theorem 1, and run lengths of the same kind on both sides."""

import json

from specbench.analysis.points import Point
from specbench.config.suite import read_suite
from specbench.report.verifiers import REPORT, UNKNOWN, VerifierReport, verifier_reports, verifier_table

VALUES = {
    "auc": 0.97, "auc_low": 0.96, "auc_high": 0.98, "base_rate": 0.8, "eta_tp": 0.9, "eta_fp": 0.1, "draft_tv": 0.2,
    "predicted_tv": 0.03, "output_tv": 0.03,
}  # fmt: skip


def cells(tau: float, **values) -> dict[str, str]:
    report = VerifierReport("tiny", "xsum", "sprinter", tau, {**VALUES, **values}, None)
    table = verifier_table([report])
    return dict(zip(table.heads, table.rows[0], strict=True))


def test_theorem_1_takes_the_rate_over_tokens_with_q_above_p():
    found = cells(1.2, ratio_eta_fp=0.4, ratio_tv=0.08)
    assert (found["TV by Theorem 1"], found["eta_FP x TV of the draft"]) == ("0.080", "0.020")


def test_an_older_report_has_theorem_1_only_where_its_labels_are_those_of_the_theorem():
    """Older reports hold `theorem_tv`, against the labels of tau_train: at 1.2 it is not the theorem's."""
    assert cells(1.2, theorem_tv=0.02)["TV by Theorem 1"] == UNKNOWN
    assert cells(1.0, theorem_tv=0.02)["TV by Theorem 1"] == "0.020"


def test_theorem_1_has_no_value_for_a_verifier_of_greedy_tokens():
    report = VerifierReport(
        "tiny", "xsum", "sprinter", 1.2, {k: v for k, v in VALUES.items() if k != "predicted_tv"}, None
    )
    assert verifier_table([report]).rows[0][8:11] == ["–", "–", "–"]


def test_a_measured_run_length_counts_what_the_prediction_counts(tmp_path):
    """Theorem 2 is about tokens that the verifier accepted. "Avg tokens" adds those that only the target accepted."""
    suite = read_suite("sprinter-table5-tiny")
    (step,) = suite.prepare
    head = next(iter(step.heads("tiny", "xsum")))
    (file := head.folder(tmp_path) / REPORT).parent.mkdir(parents=True)
    file.write_text(json.dumps(VALUES))
    values = {"average_tokens": 3.4, "verifier_run": 3.1}
    point = Point(
        pair="tiny", task="xsum", T=1.0, method="sprinter", run="r", x=0.5, setting=f"head={head.name}", values=values
    )
    (report,) = verifier_reports(suite, tmp_path, [point])
    assert report.run_length == 3.1
    table = verifier_table([report])
    assert [each for each in table.heads if "run" in each] == ["accepts/run by Theorem 2", "accepts/run at T = 1"]
