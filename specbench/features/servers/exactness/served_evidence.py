"""Evidence on a server: what differs, in which kinds of requests, and what was not tested."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from specbench.features.exactness.departures import DepartureKind, Detectable
from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.exactness.power import Power
from specbench.features.servers.exactness.calibration import Deviation
from specbench.features.servers.exactness.kind_checks import TOKENS, checks_of, measured_of
from specbench.features.servers.exactness.kinds import shared_causes
from specbench.features.servers.exactness.served_checks import KindResult, SampledTests, pooled
from specbench.features.servers.request_key import RequestKind
from specbench.features.servers.served import Description


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The results of all kinds of requests, as a `specbench.features.exactness.exactness_verdict.Source`.

    Args:
        description: The server.
        reference: The name of the reference.
        results: The result of each kind of requests.
        deviation: How far the server's logits are from the reference's; None without log-probabilities.
        control_deviation: The same of the server without speculation; None if it was not measured.
        tolerance: The deviation of logits that the tests allow.
        has_drafted: Whether tokens were drafted; True if the server does not say.
        has_died: Whether the server died during a request.
    """

    description: Description
    reference: str
    results: Sequence[KindResult]
    deviation: Deviation | None
    control_deviation: Deviation | None
    tolerance: float
    has_drafted: bool
    has_died: bool

    @cached_property
    def pooled(self) -> list[SampledTests]:
        """One check of all kinds with equal sampling parameters."""
        return pooled(self.results)

    @property
    def sampled(self) -> list[SampledTests]:
        """The tests of sampled outputs: of each kind, and of kinds with equal sampling parameters together."""
        return [*(result.sampled for result in self.results if result.sampled), *self.pooled]

    @cached_property
    def number_of_tests(self) -> int:
        """The number of tests that could reject: of sampled outputs, greedy texts and seeds. They share the level."""
        alone = sum(each.number_of_tests for each in self.results)
        return alone + sum(check.number_of_tests() for check in self.pooled)

    @property
    def alarm(self) -> float:
        """The significance level of each test."""
        return SIGNIFICANCE / max(self.number_of_tests, 1)

    @cached_property
    def differing(self) -> dict[RequestKind, tuple[str, ...]]:
        """The kinds of requests whose outputs differ, with the groups of tokens that do."""
        tests = self.number_of_tests
        return {result.kind: groups for result in self.results if (groups := result.groups_that_differ(tests))}

    @property
    def unseeded(self) -> list[RequestKind]:
        """The kinds of requests whose equal seeds do not repeat outputs although the server promises that."""
        tests = self.number_of_tests
        return [result.kind for result in self.results if result.seeds and result.seeds.do_not_repeat(tests)]

    @property
    def power(self) -> Power:
        """What the tests would have missed."""
        alarm, together = self.alarm, {check.sampling for check in self.pooled}
        whole = [check for check in self.sampled if check in self.pooled or check.sampling not in together]
        greedy = [result.greedy.tokens for result in self.results if result.greedy]
        return Power(
            later=_largest(check.detectable("later", alarm) for check in whole),
            first=_largest(check.detectable("first", alarm) for check in whole),
            alone=_largest(result.sampled.detectable("later", alarm) for result in self.results if result.sampled),
            greedy_share=1.0 - 0.05 ** (1.0 / max(sum(greedy), 1)) if greedy else None,
            is_text=any(result.texts for result in self.results),
        )

    @cached_property
    def checks(self) -> list[Check]:
        """The checks of each kind of requests, of kinds together, of the logits and of the process, and the control."""
        tests, out = self.number_of_tests, list[Check]()
        for result in self.results:
            out += checks_of(result, tests)
        for check in self.pooled:
            differing = check.groups_that_differ(tests)
            for group in GROUPS:
                passed, case = group not in differing, f"all at {check.sampling}"
                measure, numbers = measured_of(check, group, tests)
                found = "all kinds together"
                out.append(Check(CheckKind.tokens, TOKENS[group], found, measure, passed, numbers, case))
        if self.deviation is not None:
            fault = _fault_of_logits(self.deviation, self.control_deviation)
            out.append(Check(CheckKind.logits, "logits", fault or self.deviation.explanation, passed=not fault))
        if self.has_died:
            died = "the server died during a request, which requests.jsonl names last"
            out.append(Check(CheckKind.process, "process", died, passed=False))
        if self.sampled:
            p = min(check.control_p("later") for check in self.sampled)
            is_rejected = p * tests <= SIGNIFICANCE
            said = "rejected" if is_rejected else "not enough evidence to reject it; help: more --outputs"
            found = f"{self.sampled[0].control_factor:g} times the temperature: {said}"
            out.append(Check(CheckKind.control, "control", found, f"p {min(1.0, p * tests):.1g}", is_rejected))
        return out

    @property
    def subject(self) -> str:
        return self.description.label

    claim = proof = ""
    stronger = "more --outputs"

    @property
    def tested(self) -> str:
        greedy = any(result.greedy or result.texts for result in self.results)
        how = "greedy and sampled" if greedy and self.sampled else "greedy" if greedy else "sampled"
        within = f", up to {self.tolerance:.2g} of a logit" if self.deviation else ""
        return f"{how} outputs{within}"

    @property
    def untested(self) -> str:
        kinds = [result.kind.label for result in self.results if not result.is_tested]
        failures = sum(result.failures for result in self.results)
        parts = [f"not tested: {', '.join(kinds)}" if kinds else "", f"{failures} requests failed" if failures else ""]
        return "; ".join(filter(None, parts))

    @property
    def undecided(self) -> str:
        if self.description.speculation.is_on and not self.has_drafted:
            return (
                "no check failed, but nothing was drafted, so speculation was not tested; help: other prompts (-t, --data),"
                " a larger --max-prompt-tokens or --max-new-tokens"
            )
        if not any(result.is_tested for result in self.results):
            return "nothing could be tested"
        texts = [result.texts for result in self.results if result.texts and result.texts.differing]
        is_control_rejected = all(check.passed for check in self.checks if check.kind is CheckKind.control)
        if texts and is_control_rejected:
            count, outputs = sum(each.differing for each in texts), sum(each.outputs for each in texts)
            again = sum(each.off_differing for each in texts)
            return (
                f"{count} of {outputs} greedy texts differ from those of {self.reference}, which differ from themselves in"
                f" {again}; without log-probabilities, near-ties cannot be distinguished from faults; help: --weights FOLDER"
            )
        return ""

    def fault(self, failed: Sequence[Check]) -> str:
        """Return what differs: outputs, with what the kinds that differ have in common, logits, seeds, or the process."""
        others = [check.found for check in failed if check.kind in (CheckKind.logits, CheckKind.process)]
        return "; ".join([*_outputs(self), *_seeds(self), *others])


def _fault_of_logits(own: Deviation, off: Deviation | None) -> str:
    """Return what is wrong with the logits themselves; empty if they may differ by rounding."""
    if own.fault:
        return own.fault
    if off is not None and own.largest > 2.0 * off.allowed:
        return (
            f"its own logits deviate by up to {own.largest:.2g} from the reference, those of the server without speculation"
            f" by {off.largest:.2g}: {own.explanation}"
        )
    return ""


def _largest(of_checks: Iterable[Sequence[Detectable]]) -> list[Detectable]:
    """Return for each kind of departure the result of the check that shows the least."""
    out: dict[tuple[DepartureKind, str], Detectable] = {}
    for each in (each for detectable in of_checks for each in detectable):
        key = each.kind, each.model
        out[key] = max(out.get(key, each), each, key=_how_large)
    return list(out.values())


def _how_large(detectable: Detectable) -> tuple[bool, float]:
    """Return a key of what is detectable: what exceeds the limit is worse than any size within it."""
    return not detectable.is_within_limit, math.inf if detectable.size is None else detectable.size


def _outputs(evidence: Evidence) -> list[str]:
    """Return which kinds of requests differ, from which token on, and what they have in common."""
    results, differing, tests = evidence.results, evidence.differing, evidence.number_of_tests
    if not differing:
        whole = next((check for check in evidence.pooled if check.groups_that_differ(tests)), None)
        text = f"outputs of all kinds at {whole.sampling} together depart from {evidence.reference}" if whole else ""
        return [text] if text else []
    tested = [r.kind for r in results if r.is_tested and r.kind not in differing]
    where = "from the second token on, where speculation begins"
    pools = [check for check in evidence.pooled if any(check.sampling == kind.sampling for kind in differing)]
    if any("first" in groups for groups in (*differing.values(), *(pool.groups_that_differ(tests) for pool in pools))):
        where = "from the first token on"
    elif not _are_first_tokens_tested([r for r in results if r.kind in differing], pools, evidence.alarm):
        where = "in tokens after the first (too few first tokens to say whether they differ too; help: more --outputs)"
    cause = ", ".join(shared_causes(list(differing), tested))
    share = f"{len(differing)} of {len(differing) + len(tested)} kinds of requests"
    return [f"outputs depart from {evidence.reference} in {share}, {where}{f', {cause}' if cause else ''}"]


def _are_first_tokens_tested(differing: Sequence[KindResult], pools: Sequence[SampledTests], alarm: float) -> bool:
    """Return whether the tests of first tokens would have found what the later tokens show, in each differing kind."""
    pooled = {pool.sampling for pool in pools if pool.would_show_in_first_tokens(alarm)}
    return all(
        result.greedy.would_show_in_first_tokens
        if result.greedy
        else result.sampled is not None
        and (result.kind.sampling in pooled or result.sampled.would_show_in_first_tokens(alarm))
        for result in differing
    )


def _seeds(evidence: Evidence) -> list[str]:
    """Return what is wrong with seeds."""
    found = []
    if evidence.unseeded:
        seeded = [result.kind for result in evidence.results if result.seeds]
        repeating = [kind for kind in seeded if kind not in evidence.unseeded]
        cause = ", ".join(shared_causes(evidence.unseeded, repeating))
        found.append(f"equal seeds do not repeat outputs{f', {cause}' if cause else ''}")
    tests = evidence.number_of_tests
    if ignored := [result.seeds for result in evidence.results if result.seeds and result.seeds.are_ignored(tests)]:
        equal, others = sum(each.others_equal for each in ignored), sum(each.others for each in ignored)
        expected = sum(each.others_expected for each in ignored)
        found.append(f"different seeds give equal outputs, {equal} of {others} where {expected:.2g} are expected")
    return found
