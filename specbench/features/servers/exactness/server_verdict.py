"""The verdict on a server: what differs, in which kinds of requests, and what was not tested."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from specbench.features.exactness.departures import DepartureKind, Detectable
from specbench.features.exactness.evidence import LARGEST_VARIATION
from specbench.features.exactness.martingales import SIGNIFICANCE
from specbench.features.exactness.outcome import Outcome
from specbench.features.exactness.power import missed_alone
from specbench.features.servers.exactness.calibration import Deviation
from specbench.features.servers.exactness.kinds import shared_cause
from specbench.features.servers.exactness.served_checks import KindResult, SampledTests, pooled
from specbench.features.servers.exactness.smallest import SmallestRequest
from specbench.features.servers.request_key import RequestKind
from specbench.features.servers.served import Description
from specbench.note import Note


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found.

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
    def checks(self) -> list[SampledTests]:
        """All checks of sampled outputs."""
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
    def power(self) -> "ServedPower":
        """What the tests would have missed."""
        alarm, together = self.alarm, {check.sampling for check in self.pooled}
        whole = [check for check in self.checks if check in self.pooled or check.sampling not in together]
        greedy = [result.greedy.tokens for result in self.results if result.greedy]
        return ServedPower(
            later=_largest(check.detectable("later", alarm) for check in whole),
            first=_largest(check.detectable("first", alarm) for check in whole),
            alone=_largest(result.sampled.detectable("later", alarm) for result in self.results if result.sampled),
            greedy_share=1.0 - 0.05 ** (1.0 / max(sum(greedy), 1)) if greedy else None,
            is_text=any(result.texts for result in self.results),
        )


@dataclass(frozen=True, kw_only=True)
class ServedPower:
    """What the tests of a server would have missed, for the sampling parameters with the least power.

    Args:
        later: Departures of all but first tokens that occur in all kinds of requests with equal sampling parameters.
        first: The same of the first tokens of outputs.
        alone: Departures of all but first tokens that occur in one kind of requests alone.
        greedy_share: The share of faulty greedy tokens of which one would be seen in 19 of 20 cases; None without greedy ids.
        is_text: Whether greedy texts were compared, whose differences may be rounding.
    """

    later: Sequence[Detectable]
    first: Sequence[Detectable]
    alone: Sequence[Detectable]
    greedy_share: float | None
    is_text: bool

    @property
    def meets_limits(self) -> bool:
        """Whether departures above LARGEST_VARIATION in all kinds of requests would have been found."""
        has_evidence = bool(self.later) or self.greedy_share is not None
        is_greedy_shown = self.greedy_share is None or self.greedy_share <= LARGEST_VARIATION
        return (
            has_evidence and is_greedy_shown and not self.is_text and all(each.is_within_limit for each in self.later)
        )

    @property
    def missed(self) -> list[str]:
        """What would have been missed, in words."""
        share = self.greedy_share or 0.0
        greedy = [f"faults in less than {share:.1%} of greedy tokens"] if share > LARGEST_VARIATION else []
        return [
            *greedy,
            *(each.missed for each in self.later if not each.is_within_limit),
            *missed_alone("at first tokens alone", self.first),
            *missed_alone("in one kind of requests alone", self.alone),
        ]


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


@dataclass(frozen=True, kw_only=True)
class ServerVerification:
    """The verdict on a server, and what led to it."""

    outcome: Outcome
    line: str
    evidence: Evidence
    notes: list[Note] = field(default_factory=list)
    smallest: SmallestRequest | None = None
    folder: Path = Path()
    command: tuple[str, ...] = ()


def verdict_of(evidence: Evidence) -> tuple[Outcome, str]:
    """Return the outcome, and a line that says why."""
    label = evidence.description.label
    if found := [*_outputs(evidence), *_logits(evidence), *_seeds(evidence), *_death(evidence)]:
        return Outcome.differs, f"NOT exact: {label}: {'; '.join(found)}"
    if why := _undecided(evidence):
        return Outcome.inconclusive, f"inconclusive: {label}: {why}"
    greedy = any(result.greedy or result.texts for result in evidence.results)
    sampled = bool(evidence.checks)
    how = "greedy and sampled" if greedy and sampled else "greedy" if greedy else "sampled"
    within = f", up to {evidence.tolerance:.2g} of a logit" if evidence.deviation else ""
    power, untested = evidence.power, _untested(evidence)
    missed = f" (would have missed {'; '.join(power.missed)})" if power.missed else ""
    if power.meets_limits:
        return Outcome.exact, f"exact: {label}: {how} outputs follow {evidence.reference}{within}{missed}{untested}"
    line = f"no departure found: {label}: {how} outputs from {evidence.reference}{within}{missed}{untested}"
    return Outcome.unfound, f"{line}; help: more --outputs"


def _outputs(evidence: Evidence) -> list[str]:
    """Return which kinds of requests differ, from which token on, and what they have in common."""
    results, differing, tests = evidence.results, evidence.differing, evidence.number_of_tests
    if not differing:
        whole = next((check for check in evidence.pooled if check.groups_that_differ(tests)), None)
        text = f"outputs of all kinds at {whole.sampling} together depart from {evidence.reference}" if whole else ""
        return [text] if text else []
    tested = [r.kind for r in results if (r.greedy or r.texts or r.sampled) and r.kind not in differing]
    where = "from the second token on, where speculation begins"
    pools = [check for check in evidence.pooled if any(check.sampling == kind.sampling for kind in differing)]
    if any("first" in groups for groups in (*differing.values(), *(pool.groups_that_differ(tests) for pool in pools))):
        where = "from the first token on"
    elif not _are_first_tokens_tested([r for r in results if r.kind in differing], pools, evidence.alarm):
        where = "in tokens after the first (too few first tokens to say whether they differ too; help: more --outputs)"
    cause = shared_cause(list(differing), tested)
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


def _logits(evidence: Evidence) -> list[str]:
    """Return what is wrong with the logits themselves."""
    own, off = evidence.deviation, evidence.control_deviation
    if own is None:
        return []
    if own.fault:
        return [own.fault]
    if off is not None and own.largest > 2.0 * off.allowed:
        return [
            f"its own logits deviate by up to {own.largest:.2g} from the reference, those of the server without"
            f" speculation by {off.largest:.2g}: {own.explanation}"
        ]
    return []


def _seeds(evidence: Evidence) -> list[str]:
    found = []
    if evidence.unseeded:
        seeded = [result.kind for result in evidence.results if result.seeds]
        repeating = [kind for kind in seeded if kind not in evidence.unseeded]
        cause = shared_cause(evidence.unseeded, repeating)
        found.append(f"equal seeds do not repeat outputs{f', {cause}' if cause else ''}")
    tests = evidence.number_of_tests
    if ignored := [result.seeds for result in evidence.results if result.seeds and result.seeds.are_ignored(tests)]:
        equal, others = sum(each.others_equal for each in ignored), sum(each.others for each in ignored)
        expected = sum(each.others_expected for each in ignored)
        found.append(f"different seeds give equal outputs, {equal} of {others} where {expected:.2g} are expected")
    return found


def _death(evidence: Evidence) -> list[str]:
    return ["the server died during a request, which requests.jsonl names last"] if evidence.has_died else []


def _undecided(evidence: Evidence) -> str:
    """Return why the verdict is inconclusive although no check failed; empty otherwise."""
    if evidence.description.speculation.is_on and not evidence.has_drafted:
        return (
            "no check failed, but nothing was drafted, so speculation was not tested; help: other prompts (-t, --data), a"
            " larger --max-prompt-tokens or --max-new-tokens"
        )
    if not evidence.checks and not any(result.greedy or result.texts for result in evidence.results):
        return "nothing could be tested"
    checks, tests = evidence.checks, evidence.number_of_tests
    if checks and not any(check.control_p("later") * tests <= SIGNIFICANCE for check in checks):
        factor = checks[0].control_factor
        return (
            f"no check failed, but the control, at {factor:g} times the temperature, was not rejected either; help: more"
            " --outputs"
        )
    if texts := [result.texts for result in evidence.results if result.texts and result.texts.differing]:
        count, outputs = sum(each.differing for each in texts), sum(each.outputs for each in texts)
        again = sum(each.off_differing for each in texts)
        return (
            f"{count} of {outputs} greedy texts differ from those of {evidence.reference}, which differ from themselves in"
            f" {again}; without log-probabilities, near-ties cannot be distinguished from faults; help: --weights FOLDER"
        )
    return ""


def _untested(evidence: Evidence) -> str:
    """Return which kinds of requests were not tested and how many requests failed, in words; empty if none."""
    kinds = [result.kind.label for result in evidence.results if not (result.greedy or result.texts or result.sampled)]
    failures = sum(result.failures for result in evidence.results)
    words = f"; not tested: {', '.join(kinds)}" if kinds else ""
    return words + (f"; {failures} requests failed" if failures else "")
