"""The table of a verification of a server."""

from specbench.analysis.number_format import NONE
from specbench.features.exactness.martingales import SIGNIFICANCE
from specbench.features.servers.exactness.served_checks import KindResult, worst
from specbench.features.servers.exactness.server_verdict import ServerVerification
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
        f"tests: {evidence.number_of_tests}, each at a significance level of {evidence.alarm:.2g}, {SIGNIFICANCE:g} together;"
        " greedy ids and tokens of probability 0 are compared within the tolerance, without chance",
    ]


def _row(result: KindResult, tests: int, is_void: bool) -> list[str]:
    outputs = f"{result.outputs}" + (f", {result.failures} failed" if result.failures else "")
    if result.greedy is None and result.texts is None and result.sampled is None:
        return [result.kind.label, outputs, NONE, NONE, NONE, NONE, f"not tested: {result.note}"]
    accepted = NONE
    if result.acceptance and result.acceptance.drafted:
        accepted = f"{result.acceptance.accepted / result.acceptance.drafted:.0%} of {result.acceptance.drafted}"
    seeds = NONE
    if result.seeds:
        promise = "" if result.seeds.is_promised else ", not judged"
        seeds = f"{result.seeds.equal} of {result.seeds.pairs} repeated{promise}"
        if result.seeds.others:
            seeds += f"; other seeds: {result.seeds.others_equal} of {result.seeds.others} equal"
    failed = bool(result.groups_that_differ(tests)) or bool(
        result.seeds and (result.seeds.do_not_repeat(tests) or result.seeds.are_ignored(tests))
    )
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
        own = f"the reference differs from its own rerun in {texts.off_differing}"
        return f"{texts.differing} of {texts.outputs} texts differ; {own}"
    assert result.sampled is not None
    found = worst(result.sampled, group)
    if found is None:
        return "certain"
    name, test = found
    if test.is_impossible:
        return "a token of probability 0"
    return f"p = {min(1.0, test.p * tests):.2g} ({name}, z = {test.z:+.1f})"
