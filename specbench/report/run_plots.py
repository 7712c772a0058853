"""Plots of one run: acceptance by position, tokens per round, time per token, and the ROC of its verifiers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.pair import folder
from specbench.errors import ConfigError
from specbench.files import read_json
from specbench.report import escaping
from specbench.report.figures import LEGEND, MOST_COLUMNS, Panel
from specbench.runs.run_spec import HeadSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def run_panels(summary: RunSummary, title: str = "") -> list[Panel]:
    """Return the panels of a run. `title` distinguishes it from other runs."""
    rows = summary.measured
    drafting = [row for row in rows if row.acceptance_by_position]
    curves = {name: curve for name, head in summary.heads.items() if (curve := _roc_of(head))}
    panels = [
        Panel(
            f"{title or f'{summary.pair}, {summary.task}'}: acceptance by position",
            lambda axes: _positions(axes, drafting),
        ),
        Panel("tokens/round", lambda axes: _lengths(axes, drafting)),
        Panel("time per committed token", lambda axes: _times(axes, rows)),
    ]
    return panels + ([Panel("ROC of the verifiers on unseen texts", lambda axes: _roc(axes, curves))] if curves else [])


def _positions(axes: "Axes", rows: Sequence[MethodSummary]) -> None:
    for row in rows:
        rates = row.acceptance_by_position
        positions = range(1, len(rates) + 1)
        axes.plot(positions, rates, marker="o", markersize=3, linewidth=1, label=escaping.figure(row.label))
    axes.set_ylim(0, 1.05)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("acceptance, given all before")
    if 0 < len(rows) <= MOST_COLUMNS * 2:
        axes.legend(fontsize=LEGEND, frameon=False)


def _lengths(axes: "Axes", rows: Sequence[MethodSummary]) -> None:
    for row in rows:
        counts = row.length_counts
        total = sum(counts.values())
        lengths = range(min(counts), max(counts) + 1)
        shares = [counts.get(n, 0) / total for n in lengths]
        axes.plot(lengths, shares, marker="o", markersize=3, linewidth=1, label=escaping.figure(row.label))
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("tokens/round")
    axes.set_ylabel("share of rounds")


def _times(axes: "Axes", rows: Sequence[MethodSummary]) -> None:
    """Milliseconds per committed token, one bar per method, by model and for the rest (host)."""
    parts = list(dict.fromkeys(part for row in rows for part in row.round_milliseconds))
    left = [0.0] * len(rows)
    labels = [escaping.figure(row.label) for row in rows]
    for part in parts:
        spent = [row.round_milliseconds.get(part, 0.0) / (row.accepted_length or 1.0) for row in rows]
        axes.barh(labels, spent, left=left, height=0.6, label=escaping.figure(part))
        left = [a + b for a, b in zip(left, spent, strict=True)]
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=LEGEND)
    axes.set_xlabel("ms/token")
    axes.legend(fontsize=LEGEND, frameon=False)


class Roc(TypedDict):
    """A verifier's ROC curve in its training report (report.json), and the point of its threshold."""

    curve: list[tuple[float, float]]  # false positive rate, true positive rate
    auc: float
    eta_fp: float
    eta_tp: float


def _roc_of(head: HeadSource) -> Roc | None:
    """Return the ROC of a verifier. None for other heads, and if its report is missing or damaged."""
    place = folder(head.source, Path()) if head.kind == "sprinter" else None
    report = place / "report.json" if place else None
    try:
        return read_json(report, Roc) if report and report.exists() else None
    except ConfigError:
        return None


def _roc(axes: "Axes", curves: Mapping[str, Roc]) -> None:
    for name, roc in curves.items():
        label = escaping.figure(f"{name}: AUC {roc['auc']:.3f}")
        axes.plot(*zip(*roc["curve"], strict=True), linewidth=1, label=label)
        axes.plot([roc["eta_fp"]], [roc["eta_tp"]], "k.", markersize=4)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    axes.set_xlabel("unacceptable tokens accepted (eta_FP)")
    axes.set_ylabel("acceptable tokens accepted (eta_TP)")
    axes.legend(fontsize=LEGEND, frameon=False)
