"""SPRINTER's verifiers that a suite trained: their results on their test rows, and their thresholds."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.analysis.intervals import Estimate
from specbench.analysis.metric import Clock, Direction, Metric, declare
from specbench.analysis.number_format import HUNDREDTHS, NONE, PERCENT, SCORE, THOUSANDTHS, NumberCell
from specbench.analysis.points import Point, PointValue
from specbench.features.suites.preparation import PreparedHead
from specbench.features.suites.suite import Suite
from specbench.methods.theories.sprinter_theory import expected_drafts
from specbench.reporting.tables import Table
from specbench.runs.settings import setting_of

REPORT = "report.json"
HALF = 0.5  # the threshold tau_inf of the reports
MOST = 20  # tokens of a run, which the authors' code limits
UNKNOWN = "not in its report"  # of a verifier that was trained before its report had the number


@dataclass(frozen=True)
class VerifierReport:
    """A trained verifier on its test rows, and the tokens of a run that it accepted, if measured."""

    pair: str
    task: str
    head: str
    tau: float
    values: dict[str, Any]
    run_length: float | None

    @property
    def theorem_tv(self) -> str:
        """The distance according to Theorem 1, as text. Its eta_FP is against the labels q <= p for any tau_train.

        Older reports have eta_FP against tau_train's labels only, which are the same ones at tau_train = 1.
        """
        return self._distance(self.values.get("ratio_eta_fp", self.values["eta_fp"] if self.tau == 1.0 else None))

    @property
    def labels_tv(self) -> str:
        """The distance that eta_FP against tau_train's labels would give in place of Theorem 1's eta_FP, as text."""
        return self._distance(self.values["eta_fp"])

    def _distance(self, false_positives: float | None) -> str:
        """Return the product of a rate of false positives and the draft's distance from the target as text."""
        if "predicted_tv" not in self.values:  # not trained on sampled tokens, which the theorem describes
            return NONE
        return UNKNOWN if false_positives is None else THOUSANDTHS.text(false_positives * self.values["draft_tv"])

    @property
    def acceptable_run(self) -> float:
        """The mean number of acceptable tokens before the first unacceptable one, if tokens were independent."""
        base = float(self.values["base_rate"])
        return base / (1.0 - base) if base < 1.0 else float(MOST)

    @property
    def predicted_run(self) -> float:
        """E[X] of Theorem 2, averaged over geometric N with the base rate of acceptable tokens, for runs of at most MOST."""
        base, true, false = (float(self.values[key]) for key in ("base_rate", "eta_tp", "eta_fp"))
        probabilities = [base**n * (1.0 - base) for n in range(MOST)]
        probabilities.append(1.0 - sum(probabilities))
        runs = (expected_drafts(n, true, false, MOST + 1) - 1.0 for n in range(MOST + 1))
        return sum(probability * run for probability, run in zip(probabilities, runs, strict=True))


def with_verifier_values(suite: Suite, points: Sequence[Point], reports: Sequence[VerifierReport]) -> list[Point]:
    """Add values of the verifiers that the suite trained to the points that use them. Return all points.

    `auc` has an interval over texts. `predicted_run` is the run length that Theorem 2 predicts for T > 0 and half of the
    probability as threshold.
    """
    by_head = {(report.pair, report.task, report.head): report for report in reports}

    def with_report(point: Point) -> Point:
        head = _head_of(suite, point) if point.method == "sprinter" and not point.group else None
        report = by_head.get((point.pair, point.task, head.name)) if head else None
        if report is None:
            return point
        auc = Estimate(*(float(report.values[key]) for key in ("auc", "auc_low", "auc_high")))
        run = {"predicted_run": report.predicted_run} if point.T > 0.0 and point.x in (None, HALF) else {}
        return replace(point, values={**point.values, "auc": auc, **run})

    return list(map(with_report, points))


def verifier_reports(suite: Suite, results: Path, points: Sequence[Point]) -> list[VerifierReport]:
    """Return the reports of the verifiers that a suite trained in a folder of results."""
    sampled = [p for p in points if p.method == "sprinter" and p.T > 0.0 and not p.group and p.x in (None, HALF)]
    reports: dict[Path, VerifierReport] = {}
    for head, task, file in report_files(suite, results):
        pair = head.pair
        is_only_verifier = (
            sum(len(list(step.heads(pair, task))) for step in suite.prepare if step.kind == "sprinter") == 1
        )
        values = json.loads(file.read_text(encoding="utf-8"))
        here = [p for p in sampled if (p.pair, p.task) == (pair, task)]
        mine = [p for p in here if is_only_verifier or setting_of(p.settings, "head") == head.name]
        length = mine[0].number("verifier_run") if mine else None
        reports[file] = VerifierReport(pair, task, head.name, head.tau, values, length)
    return list(reports.values())


def report_files(suite: Suite, results: Path) -> Iterator[tuple[PreparedHead, str, Path]]:
    """Yield the verifiers that a suite trained in a folder of results, the measured task, and the file of their report."""
    for _, pair, task in suite.parts():
        for step in suite.prepare:
            for head in step.heads(pair, task):
                file = head.folder(results) / REPORT
                if step.kind == "sprinter" and file.exists():
                    yield head, task, file


def with_thresholds(suite: Suite, points: Sequence[Point]) -> list[Point]:
    """Add the values of SPRINTER's Table 5 to its points whose verifiers the suite trained. Return all points.

    The values are the thresholds `tau_train` and `tau_inf`, and `score_per_second`: the main score divided by the seconds of
    a generation. The best setting is chosen by the latter.
    """
    return [
        _with_thresholds(suite, point) if point.method == "sprinter" and not point.group else point for point in points
    ]


def _head_of(suite: Suite, point: Point) -> PreparedHead | None:
    """Return the verifier of a point of SPRINTER, if the suite trained it."""
    heads = [head for step in suite.prepare if step.kind == "sprinter" for head in step.heads(point.pair, point.task)]
    if len(heads) > 1:
        heads = [head for head in heads if setting_of(point.settings, "head") == head.name]
    return heads[0] if heads else None


def _with_thresholds(suite: Suite, point: Point) -> Point:
    head = _head_of(suite, point)
    if head is None:
        return point
    score, time = point.number("score"), point.number("generation_milliseconds")
    values: dict[str, PointValue] = {"tau_train": head.tau, "tau_inf": HALF if point.x is None else point.x}
    if score is not None and time:
        values["score_per_second"] = score / time * 1e3
    return replace(point, values={**point.values, **values})


def verifier_table(reports: Sequence[VerifierReport]) -> Table:
    """Return the reports as a table."""
    heads = [
        "pair", "task", "verifier", "tau_train", "split by", "AUC", "acceptable tokens", "eta_TP", "eta_FP",
        "TV of the draft", "TV by Theorem 1 (eta_FP where q > p)", "eta_FP x TV of the draft", "TV by token",
        "TV of the output", "accepts/run by Theorem 2", "accepts/run at T = 1",
    ]  # fmt: skip
    rows = []
    for report in reports:
        values = report.values
        rows.append([
            report.pair, report.task, report.head, NumberCell(report.tau, f"{report.tau:g}"),
            str(values.get("split", "texts")),
            THOUSANDTHS.text(Estimate(values["auc"], values["auc_low"], values["auc_high"])),
            *(PERCENT.text(values[key]) for key in ("base_rate", "eta_tp", "eta_fp")),
            THOUSANDTHS.text(values.get("draft_tv")), report.theorem_tv, report.labels_tv,
            *(THOUSANDTHS.text(values.get(key)) for key in ("predicted_tv", "output_tv")),
            HUNDREDTHS.text(report.predicted_run), HUNDREDTHS.text(report.run_length),
        ])  # fmt: skip
    return Table("Verifiers on their test rows; eta_FP is of tokens with q > tau_train p", heads, rows)


for _about in (
    Metric(name="tau_train", definition="The threshold of the labels that SPRINTER's verifier was trained on."),
    Metric(name="tau_inf", definition="The score from which SPRINTER's verifier accepts a token."),
    Metric(
        name="predicted_run", heading="predicted run length", unit="tokens/run", is_exact=True,
        definition="The tokens of a run that Theorem 2 of SPRINTER predicts from the verifier's error rates.",
    ),
    Metric(
        name="score_per_second", heading="score/s", format=SCORE, clock=Clock.end_to_end, better=Direction.higher,
        definition="The main score / the mean seconds of a generation: quality over latency, by which the best thresholds"
        " are chosen. The paper does not state its criterion.",
    ),
):  # fmt: skip
    declare(_about)
