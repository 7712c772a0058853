"""A verification of a server as it is stored: the content of verdict.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.features.exactness.departures import Detectable
from specbench.features.exactness.exactness_verdict import ExactnessResult, verdict_on
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.exactness.token_tests import TestResult
from specbench.features.servers.exactness.calibration import Deviation
from specbench.features.servers.exactness.seeds import SeedCheck
from specbench.features.servers.exactness.served_checks import (
    Difference,
    GreedyCheck,
    GreedyTexts,
    KindResult,
    SampledTests,
)
from specbench.features.servers.exactness.served_evidence import Evidence
from specbench.features.servers.exactness.smallest import SmallestRequest
from specbench.features.servers.exactness.verify_request import ServerVerifyRequest
from specbench.features.servers.request_key import RequestKind
from specbench.features.servers.served import Description, SpeculationCounts

VERIFICATION_KIND = "server verification"


@dataclass(frozen=True, kw_only=True)
class StoredDeviation:
    """How far logits are from the reference's, why, and what the tests allow."""

    measured: Deviation
    allowed: float
    explanation: str


@dataclass(frozen=True, kw_only=True)
class StoredGreedy:
    """Greedy outputs: the tokens that were compared, the number of near-ties, and the faults."""

    tokens: int
    near_ties: int
    faults: Sequence[Difference]


@dataclass(frozen=True, kw_only=True)
class StoredSampled:
    """Tests of sampled outputs by group of tokens, the p of the control, and the smallest departures that they would find."""

    tests: Mapping[str, Mapping[str, TestResult]]
    control_p: Mapping[str, float]
    detectable: Mapping[str, Sequence[Detectable]]


@dataclass(frozen=True, kw_only=True)
class KindVerdict:
    """The verdict on one kind of requests. `differs` are the groups of tokens that differ from the reference."""

    kind: RequestKind
    outputs: int
    differs: Sequence[str]
    is_tested: bool = True
    failures: int = 0
    note: str = ""
    acceptance: SpeculationCounts | None = None
    greedy: StoredGreedy | None = None
    texts: GreedyTexts | None = None
    sampled: StoredSampled | None = None
    seeds: SeedCheck | None = None
    are_seeds_repeated: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ServerVerification(ExactnessResult):
    """The verdict on a server, with what led to it.

    Args:
        description: The server.
        kinds: The results by kind of requests.
        deviation: How far the server's logits are from the reference's; None without log-probabilities.
        deviation_of_off: The same of the server without speculation; None if it was not measured.
        smallest_request: The smallest request that shows a difference; None without.
        request: The request, to verify the server again; None in results of earlier revisions.
    """

    kind: str = VERIFICATION_KIND
    description: Description
    kinds: Sequence[KindVerdict]
    deviation: StoredDeviation | None = None
    deviation_of_off: StoredDeviation | None = None
    smallest_request: SmallestRequest | None = None
    request: ServerVerifyRequest | None = None

    @property
    def name(self) -> str:
        """What was verified, in a few words."""
        return f"{self.description.backend} {self.description.model}"


def verification_of(evidence: Evidence) -> ServerVerification:
    """Return the verdict on a server, without notes."""
    outcome, line = verdict_on(evidence)
    return ServerVerification(
        outcome=outcome,
        line=line,
        subject=evidence.subject,
        reference=evidence.reference,
        checks=evidence.checks,
        power=evidence.power,
        missed=evidence.power.missed,
        tests=evidence.number_of_tests,
        significance_level=evidence.alarm,
        description=evidence.description,
        kinds=[_kind(result, evidence.number_of_tests) for result in evidence.results],
        deviation=_deviation(evidence.deviation),
        deviation_of_off=_deviation(evidence.control_deviation),
    )


def _deviation(found: Deviation | None) -> StoredDeviation | None:
    if found is None:
        return None
    return StoredDeviation(measured=found, allowed=found.allowed, explanation=found.explanation)


def _kind(result: KindResult, tests: int) -> KindVerdict:
    return KindVerdict(
        kind=result.kind,
        is_tested=result.is_tested,
        outputs=result.outputs,
        differs=result.groups_that_differ(tests),
        failures=result.failures,
        note=result.note,
        acceptance=result.acceptance,
        greedy=_greedy(result.greedy) if result.greedy else None,
        texts=result.texts,
        sampled=_sampled(result.sampled, tests) if result.sampled else None,
        seeds=result.seeds,
        are_seeds_repeated=not result.seeds.do_not_repeat(tests) if result.seeds and result.seeds.pairs else None,
    )


def _greedy(check: GreedyCheck) -> StoredGreedy:
    return StoredGreedy(tokens=check.tokens, near_ties=len(check.near_ties), faults=check.faults)


def _sampled(check: SampledTests, tests: int) -> StoredSampled:
    return StoredSampled(
        tests={group: check.results(group) for group in GROUPS},
        control_p={group: check.control_p(group) for group in GROUPS},
        detectable={group: check.detectable(group, SIGNIFICANCE / max(tests, 1)) for group in GROUPS},
    )
