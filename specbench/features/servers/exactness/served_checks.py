"""Whether served tokens follow the reference: greedy and sampled checks of requests of one kind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from specbench.analysis.significance import fisher
from specbench.features.exactness.departures import Detectable
from specbench.features.exactness.group_tests import GroupTests
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.exactness.token_statistics import categories_of
from specbench.features.exactness.token_tests import TestResult
from specbench.features.servers.exactness.allowed import allowed
from specbench.features.servers.exactness.reference import MISSING
from specbench.features.servers.exactness.seeds import SeedCheck
from specbench.features.servers.request_key import RequestKey, RequestKind, Role
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import ServedSampling, SpeculationCounts, total

EXPECTED_FAULTS = 3.9  # at this expected number, none occurs with a probability of 2 %
MOST_CATEGORIES = 512  # of a larger vocabulary, the least likely tokens are one category
CONTROL = 1.25  # the control scores outputs as if they had been sampled at this multiple of the temperature


@dataclass(frozen=True)
class ReferenceRow:
    """An output with the reference's logits (m, V) of its tokens. `drafts` are the logits of drafting models, (m, V) each."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: Tensor
    drafts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A greedy token other than the reference's most likely one."""

    key: RequestKey
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # up to and including the token that differs
    expected: int
    gap: float  # of the reference's logits


@dataclass(frozen=True)
class GreedyTexts:
    """Greedy texts of a server that were compared with those of another, which was sent each prompt twice.

    Args:
        outputs: Number of prompts.
        differing: Number of prompts whose texts differ.
        off_differing: Number of prompts for which the texts of the other server differ from each other.
    """

    outputs: int
    differing: int
    off_differing: int

    @property
    def p(self) -> float:
        """The p of Fisher's exact test that the share of differences is no larger than that of the other server."""
        return fisher(self.differing, self.off_differing, self.outputs)


@dataclass(frozen=True)
class GreedyCheck:
    """The first difference of each greedy output: near-ties and faults."""

    outputs: int
    tokens: int
    near_ties: tuple[Difference, ...]
    faults: tuple[Difference, ...]

    @property
    def would_show_in_first_tokens(self) -> bool:
        """Whether so many outputs would have a fault at a first token, if first tokens were wrong as often as later ones."""
        later = self.tokens - self.outputs
        return later > 0 and len(self.faults) / later * self.outputs >= EXPECTED_FAULTS


def greedy_check(rows: Iterable[tuple[RequestKey, ReferenceRow]], deviation: float) -> GreedyCheck:
    """Return the first difference of each output. A gap of at most twice the deviation of logits is a near-tie."""
    outputs = tokens = 0
    ties: list[Difference] = []
    faults: list[Difference] = []
    for key, row in rows:
        outputs, tokens = outputs + 1, tokens + len(row.tokens)
        best = row.logits.max(-1)
        gaps = best.values - row.logits.gather(-1, torch.tensor(row.tokens)[:, None])[:, 0]
        differs = [i for i, token in enumerate(row.tokens) if token != int(best.indices[i]) and float(gaps[i]) > 0.0]
        beyond = [i for i in differs if float(gaps[i]) > 2.0 * deviation]
        if differs:
            at = (beyond or differs)[0]
            gap = min(float(gaps[at]), -MISSING)  # a token that the reference excludes
            found = Difference(key, row.prompt, row.tokens[: at + 1], int(best.indices[at]), gap)
            (faults if beyond else ties).append(found)
    return GreedyCheck(outputs, tokens, tuple(ties), tuple(faults))


def again_of(key: RequestKey) -> RequestKey:
    """Return the key of the same request when it is sent a second time."""
    return replace(key, role=Role.again)


def greedy_texts(entries: Sequence[LoggedRequest], of_off: Sequence[LoggedRequest]) -> GreedyTexts:
    """Compare greedy outputs with those of another server, which each request was sent to twice."""
    other = {entry.key: entry for entry in of_off}
    keys = [(entry, replace(entry.key, side="off")) for entry in entries]
    compared = [
        (entry, other[key], other[again_of(key)]) for entry, key in keys if key in other and again_of(key) in other
    ]

    def differ(a: LoggedRequest, b: LoggedRequest) -> bool:
        return a.output != b.output if a.tokens is None or b.tokens is None else a.tokens != b.tokens

    return GreedyTexts(
        len(compared),
        sum(differ(on, off) for on, off, _ in compared),
        sum(differ(off, again) for _, off, again in compared),
    )


class SampledTests(Protocol):
    """Tests of sampled outputs of one kind, apart for first and later tokens, with a control that must be rejected."""

    sampling: ServedSampling
    control_factor: float  # the control is at this multiple of the temperature

    def merge(self, other: Self) -> None:
        """Add the outputs of another check with the same sampling parameters."""

    def fresh(self) -> Self:
        """Return a check of the same sampling parameters, without outputs."""

    def results(self, group: str) -> Mapping[str, TestResult]:
        """Return the tests of a group by name."""

    def number_of_tests(self) -> int:
        """Return the number of tests that could reject."""

    def groups_that_differ(self, tests: int) -> tuple[str, ...]:
        """Return the groups of tokens whose smallest p, times the number of all tests, is at most SIGNIFICANCE."""

    def control_p(self, group: str) -> float:
        """Return the p of the control, over its tests."""

    def detectable(self, group: str, alarm: float) -> list[Detectable]:
        """Return the smallest departures that the tokens of a group would show at this significance level."""

    def would_show_in_first_tokens(self, alarm: float) -> bool:
        """Return whether the first tokens are enough to show a deviation of the size that the later ones have."""


class SampledCheck:
    """Martingale tests of sampled outputs of one kind, apart for first and later tokens, and their control."""

    control_factor = CONTROL

    def __init__(self, sampling: ServedSampling, deviation: float) -> None:
        self.sampling, self.deviation = sampling, deviation
        self.tests, self.control = GroupTests(), GroupTests(has_departures=False)
        self.outputs = 0

    def add(self, row: ReferenceRow) -> None:
        """Add an output."""
        self.outputs += 1
        hotter = ServedSampling(
            temperature=self.sampling.temperature * CONTROL,
            top_k=self.sampling.top_k, top_p=self.sampling.top_p, min_p=self.sampling.min_p,
        )  # fmt: skip
        for sampling, tests in ((self.sampling, self.tests), (hotter, self.control)):
            within = allowed(row.logits, sampling, self.deviation)
            drafts = {name: (logits / sampling.temperature).softmax(-1) for name, logits in row.drafts.items()}
            few = categories_of(within, torch.tensor(row.tokens), drafts, MOST_CATEGORIES)
            tests.add(few, row.prompt, row.tokens)

    def merge(self, other: "SampledCheck") -> None:
        """Add the outputs of another check with the same sampling parameters."""
        self.outputs += other.outputs
        self.tests.merge(other.tests)
        self.control.merge(other.control)

    def number_of_tests(self) -> int:
        """Return the number of tests that could reject."""
        return self.tests.number_of_tests

    def fresh(self) -> "SampledCheck":
        """Return a check of the same sampling parameters, without outputs."""
        return SampledCheck(self.sampling, self.deviation)

    def results(self, group: str) -> Mapping[str, TestResult]:
        """Return the tests of a group that could reject, by name."""
        return self.tests.results(group)

    @property
    def log_wealth(self) -> float:
        """The largest logarithm of a martingale: how much these outputs contradict the reference."""
        return self.tests.log_wealth

    def groups_that_differ(self, tests: int) -> tuple[str, ...]:
        """Return the groups of tokens whose smallest p, times the number of all tests, is at most SIGNIFICANCE."""
        return self.tests.groups_that_differ(tests)

    def control_p(self, group: str) -> float:
        """Return the p of the control, over its tests."""
        tests = self.control.results(group).values()
        return min((min(1.0, test.p * len(tests)) for test in tests), default=1.0)

    def would_show_in_first_tokens(self, alarm: float) -> bool:
        """Return whether a first-token test would find what a later-token test shows.

        It reaches `alarm` on average at the same shift, or would have EXPECTED_FAULTS impossible tokens at the same rate.
        """
        for name, test in self.tests.by_group["later"].by_statistic.items():
            first = self.tests.by_group["first"].by_statistic.get(name)
            if first is None:
                continue
            needed = first.smallest_shift(alarm)
            if needed is not None and abs(test.shift) >= needed:
                return True
            if test.impossible / (test.impossible + test.tokens) * first.tokens >= EXPECTED_FAULTS:
                return True
        return False

    def detectable(self, group: str, alarm: float) -> list[Detectable]:
        """Return the smallest known departures that the tokens of a group would show in 19 of 20 cases."""
        return self.tests.detectable(group, alarm)


@dataclass(frozen=True)
class KindResult:
    """The result for one kind of requests. If it could not be tested, `note` says why."""

    kind: RequestKind
    outputs: int = 0
    failures: int = 0
    greedy: GreedyCheck | None = None
    texts: GreedyTexts | None = None
    sampled: SampledTests | None = None
    seeds: SeedCheck | None = None
    acceptance: SpeculationCounts | None = None
    note: str = ""

    @property
    def is_tested(self) -> bool:
        """Whether its outputs were compared with the reference."""
        return self.greedy is not None or self.texts is not None or self.sampled is not None

    @property
    def number_of_tests(self) -> int:
        """The number of tests with a chance of a false alarm. Comparisons of greedy ids have none within the tolerance."""
        sampled = self.sampled.number_of_tests() if self.sampled else 0
        return sampled + bool(self.texts) + (self.seeds.number_of_tests if self.seeds else 0)

    def groups_that_differ(self, tests: int) -> tuple[str, ...]:
        """Return the groups of tokens that depart from the reference, if p is multiplied by the number of all tests."""
        if self.greedy:
            firsts = any(len(fault.tokens) == 1 for fault in self.greedy.faults)
            laters = any(len(fault.tokens) > 1 for fault in self.greedy.faults)
            return tuple(group for group, has in zip(GROUPS, (firsts, laters), strict=True) if has)
        if self.texts:
            return ("later",) if self.texts.p * max(tests, 1) <= SIGNIFICANCE else ()
        return self.sampled.groups_that_differ(tests) if self.sampled else ()


def pooled(results: Sequence[KindResult]) -> list[SampledTests]:
    """Return one check of all kinds with equal sampling parameters, if several have them: it shows smaller deviations."""
    by_sampling: dict[ServedSampling, list[SampledTests]] = {}
    for result in results:
        if result.sampled:
            by_sampling.setdefault(result.kind.sampling, []).append(result.sampled)
    out = []
    for checks in by_sampling.values():
        if len(checks) > 1:
            whole = checks[0].fresh()
            for check in checks:
                whole.merge(check)
            out.append(whole)
    return out


def counts_of(entries: Sequence[LoggedRequest]) -> SpeculationCounts | None:
    """Return the sum of the speculation of requests; None if the server does not report it."""
    return total([entry.speculation for entry in entries if entry.speculation is not None])
