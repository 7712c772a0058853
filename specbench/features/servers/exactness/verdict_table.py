"""The table of a verification of a server."""

from specbench.analysis.number_format import NONE
from specbench.features.exactness.exactness_check import Check
from specbench.features.servers.exactness.kind_checks import SEEDS, TOKENS
from specbench.features.servers.exactness.stored_verdict import KindVerdict, ServerVerification
from specbench.reporting.tables import Table

HEADS = ["requests", "outputs", *TOKENS.values(), SEEDS, "accepted", "verdict"]


def table_of(found: ServerVerification) -> Table:
    """Return the table of a verification: one row for each kind of requests."""
    is_void = found.deviation is not None and found.deviation.measured.is_unexplained
    by_case: dict[str, list[Check]] = {}
    for check in found.checks:
        by_case.setdefault(check.case, []).append(check)
    return Table("", HEADS, [_row(kind, by_case.get(kind.kind.label, []), is_void) for kind in found.kinds])


def facts_of(found: ServerVerification) -> list[str]:
    """Return what was compared with what, and how far the logits are apart."""
    return [
        f"server: {found.subject}",
        f"reference: {found.reference}",
        *(
            f"logits of {each.measured.of}: up to {each.measured.largest:.2g} from the reference's, {each.explanation}; the"
            f" tests allow {each.allowed:.2g}"
            for each in (found.deviation, found.deviation_of_off)
            if each
        ),
        f"tests: {found.tests}, each at a significance level of {found.significance_level:.2g},"
        f" {found.false_alarm_rate:g} together; greedy ids and tokens of probability 0 are compared within the tolerance,"
        " without chance",
    ]


def _row(kind: KindVerdict, checks: list[Check], is_void: bool) -> list[str]:
    outputs = f"{kind.outputs}" + (f", {kind.failures} failed" if kind.failures else "")
    if not kind.is_tested:
        return [kind.kind.label, outputs, NONE, NONE, NONE, NONE, f"not tested: {kind.note}"]
    accepted = NONE
    if kind.acceptance and kind.acceptance.drafted:
        accepted = f"{kind.acceptance.accepted / kind.acceptance.drafted:.0%} of {kind.acceptance.drafted}"
    found = {check.name: check.found for check in checks}
    decided = next((check.word for check in checks if check.is_failed), "passed")
    return [
        kind.kind.label,
        outputs,
        *(found.get(name, NONE) for name in (*TOKENS.values(), SEEDS)),
        accepted,
        "not tested: logits differ" if is_void else decided,
    ]
