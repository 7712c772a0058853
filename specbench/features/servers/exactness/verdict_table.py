"""The table and the JSON of a verification of a server."""

import dataclasses
from typing import Any

from specbench.features.servers.exactness.calibration import Deviation
from specbench.features.servers.exactness.served_checks import ALARM, GROUPS, KindResult, worst
from specbench.features.servers.exactness.server_verdict import ServerVerification
from specbench.features.servers.served_results import VERIFICATION_KIND
from specbench.reporting.column import NONE
from specbench.reporting.tables import Table

HEADS = ["requests", "outputs", "first token", "later tokens", "seeds", "accepted", "verdict"]


def table_of(verification: ServerVerification) -> Table:
    """Return the table of a verification: one row for each kind of requests."""
    evidence = verification.evidence
    is_void = evidence.deviation is not None and evidence.deviation.is_unexplained
    return Table("", HEADS, [_row(result, evidence.number_of_tests, is_void) for result in evidence.results])


def facts_of(verification: ServerVerification) -> list[str]:
    """Return what was compared with what, and how far the logits are apart."""
    evidence = verification.evidence
    deviations = [evidence.deviation, evidence.control_deviation]
    return [
        f"server: {evidence.description.label}",
        f"reference: {evidence.reference}",
        *(
            f"logits of {each.of}: up to {each.largest:.2g} from the reference's, {each.explanation}; the tests allow"
            f" {each.allowed:.2g}"
            for each in deviations
            if each
        ),
        f"tests: {evidence.number_of_tests}, with a false alarm rate of {ALARM:g} together",
    ]


def _row(result: KindResult, tests: int, is_void: bool) -> list[str]:
    outputs = f"{result.outputs}" + (f", {result.failures} failed" if result.failures else "")
    if result.greedy is None and result.texts is None and result.sampled is None:
        return [result.kind.label, outputs, NONE, NONE, NONE, NONE, f"not tested: {result.note}"]
    accepted = NONE
    if result.acceptance and result.acceptance[1]:
        accepted = f"{result.acceptance[0] / result.acceptance[1]:.0%} of {result.acceptance[1]}"
    seeds = NONE
    if result.seeds:
        seeds = f"{result.seeds.equal} of {result.seeds.pairs} equal"
    failed = bool(result.groups_that_differ(tests)) or bool(result.seeds and result.seeds.holds is False)
    return [
        result.kind.label,
        outputs,
        _found(result, "first", tests),
        _found(result, "later", tests),
        seeds,
        accepted,
        "not tested: other logits" if is_void else "DIFFERS" if failed else "follows",
    ]


def _found(result: KindResult, group: str, tests: int) -> str:
    """Return what was found for the first or the later tokens."""
    if result.greedy:
        faults = [fault for fault in result.greedy.faults if (len(fault.tokens) == 1) is (group == "first")]
        ties = [tie for tie in result.greedy.near_ties if (len(tie.tokens) == 1) is (group == "first")]
        if faults:
            return f"{len(faults)} faults, gap up to {max(fault.gap for fault in faults):.2g}"
        return f"equal, {len(ties)} near-ties" if ties else "equal"
    if result.texts:
        if group == "first":
            return NONE
        texts = result.texts
        return f"{texts.differing} of {texts.outputs} texts differ, off from itself {texts.off_differing}"
    assert result.sampled is not None
    found = worst(result.sampled, group)
    if found is None:
        return "certain"
    name, test = found
    if test.is_impossible:
        return "a token of probability 0"
    return f"p = {min(1.0, test.p * tests):.2g} ({name}, z = {test.z:+.1f})"


def json_of(verification: ServerVerification) -> dict[str, Any]:
    """Return the verification as JSON."""
    smallest, evidence = verification.smallest, verification.evidence
    return {
        "kind": VERIFICATION_KIND,
        "command": list(verification.command),
        "outcome": verification.outcome.value,
        "line": verification.line,
        "description": dataclasses.asdict(evidence.description),
        "reference": evidence.reference,
        "false_alarm_rate": ALARM,
        "tests": evidence.number_of_tests,
        "deviation": _deviation(evidence.deviation),
        "deviation_of_off": _deviation(evidence.control_deviation),
        "kinds": [_kind(result, evidence.number_of_tests) for result in evidence.results],
        "notes": [note.line for note in verification.notes],
        "smallest_request": smallest
        and {
            "path": smallest.path, "body": smallest.body, "times": smallest.times, "p": smallest.p,
            "expected": smallest.expected, "found": smallest.found,
        },
    }  # fmt: skip


def _deviation(deviation: Deviation | None) -> dict[str, Any] | None:
    if deviation is None:
        return None
    return {**dataclasses.asdict(deviation), "allowed": deviation.allowed, "explanation": deviation.explanation}


def _kind(result: KindResult, tests: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": result.kind.label, "outputs": result.outputs, "failures": result.failures, "note": result.note,
        "differs": list(result.groups_that_differ(tests)),
    }  # fmt: skip
    if result.acceptance:
        out |= {"accepted": result.acceptance[0], "drafted": result.acceptance[1]}
    if result.greedy:
        out |= {
            "tokens": result.greedy.tokens,
            "near_ties": len(result.greedy.near_ties),
            "faults": [
                {"request": fault.key.label, "position": len(fault.tokens) - 1, "expected": fault.expected,
                 "found": fault.tokens[-1], "gap": fault.gap}
                for fault in result.greedy.faults
            ],
        }  # fmt: skip
    if result.texts:
        out["texts"] = {**dataclasses.asdict(result.texts), "p": result.texts.p}
    if result.sampled:
        out["tests"] = {
            group: {
                name: {"tokens": test.tokens, "z": test.z, "p": test.p, "impossible": test.is_impossible}
                for name, test in result.sampled.results(group).items()
            }
            for group in GROUPS
        }
        out["control_p"] = {group: result.sampled.control_p(group) for group in GROUPS}
        out["smallest_temperature"] = result.sampled.smallest_temperature(ALARM / max(tests, 1))
    if result.seeds:
        out["seeds"] = {**dataclasses.asdict(result.seeds), "holds": result.seeds.holds}
    return out
