"""The sampled checks of `specbench verify`: martingale tests of tokens and acceptance, and the control that must fail.

Each sampled token has another distribution pi, given its prefix, so tokens cannot be pooled in one histogram. The tests are
those of `specbench.features.exactness`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.loop import OpenSessions
from specbench.decoding.method import Method, Verification
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import UNENDING
from specbench.decoding.targets import Last
from specbench.features.exactness.acceptance_test import AcceptanceTest
from specbench.features.exactness.evidence import LARGEST_FACTOR
from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.group_tests import GroupTests, worst
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE, MartingaleTest
from specbench.features.exactness.power import Power
from specbench.features.exactness.token_statistics import categories_of
from specbench.features.exactness.token_tests import TokenTests
from specbench.features.exactness.tolerance import Allowed
from specbench.features.verify.case import (
    Case,
    Decoding,
    Output,
    cut_prompts,
    first_tested_tokens,
    generate_outputs,
    no_first_tests,
    reference_logits,
)
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import Chain

NOT_REJECTED = "not enough evidence to reject it; help: larger -n, --repeats or --temperature"
MOST_CATEGORIES = 8192  # of a larger vocabulary, the least likely tokens are one category


class DraftedToken(NamedTuple):
    """A tested token: its index in the output and in the tested tokens of its round, and the model that drew it."""

    position: int
    draft_position: int
    role: str
    token: int
    accepted: bool


def tested_tokens(output: Output, roles: tuple[str, ...]) -> Iterator[DraftedToken]:
    """Yield every tested token that a model of `roles` drew. All tokens before it were committed.

    The token was accepted and committed, or it was rejected, and the output has another token in its place.
    """
    start = 0
    for entry in output.rounds:
        for i, role in enumerate(entry.proposers[: entry.tested]):
            index = entry.untested + i
            if role in roles:
                accepted = i < entry.accepted
                yield DraftedToken(
                    start + index, i, role, entry.tokens[index] if accepted else entry.rejected[0], accepted
                )
        start += len(entry.tokens)


def event_test(happened: list[bool], probabilities: list[float]) -> MartingaleTest:
    """Return a martingale test of events, each of which should happen with the given probability."""
    test = MartingaleTest()
    if happened:
        one = torch.tensor(probabilities, dtype=torch.float64).clamp(0.0, 1.0)
        pi = torch.stack([1.0 - one, one], dim=-1)  # (m, 2)
        test.add(
            torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(len(probabilities), 2),
            Allowed.exactly(pi),
            torch.tensor(happened).long(),
        )
    return test


class SampledStatistics:
    """Tests of sampled outputs against the declared distribution: of tokens by group, and of the acceptance of drafts."""

    def __init__(self, case: Case) -> None:
        self._case, self._sampler = case, Sampler(case.temperature)
        self.tests = GroupTests()
        self._accepted: list[bool] = []
        self._expected: list[float] = []
        self.by_token = AcceptanceTest()

    def add(self, output: Output) -> None:
        """Add the tokens and the acceptance tests of one output."""
        (scorers, target), roles = self._case.declared, self._case.method.roles()
        logits = reference_logits(self._case.reference, roles, output)
        probs = {role: _normalized(self._sampler.probs(rows)) for role, rows in logits.items()}  # (m, V) each
        pi = _normalized(target([logits[role] for role in scorers], self._sampler))  # (m, V)
        x = torch.tensor(output.tokens, device=pi.device)  # (m,)
        others = {role: q for role, q in probs.items() if not (role == scorers[-1] and isinstance(target, Last))}
        few = categories_of(Allowed.exactly(pi), x, others, MOST_CATEGORIES)
        self.tests.add(few, output.ids, output.tokens)
        test = next(iter(self._case.method.verifications()), Verification("", scorers, target))
        for position, role, accepted in first_tested_tokens(output, roles):
            expected = test.expected(probs[role][position], pi[position])
            if expected is not None:
                self._accepted.append(accepted)
                self._expected.append(float(expected))
        for drafted in tested_tokens(output, roles) if not test.tree else ():
            q, p = (float(rows[drafted.position, drafted.token]) for rows in (probs[drafted.role], pi))
            chance = test.token_acceptance(q, p) if q > 0.0 else None  # q = 0: only rounding has drawn it
            if chance is not None:
                self.by_token.add(drafted.draft_position, chance, drafted.accepted)

    @property
    def acceptance(self) -> MartingaleTest:
        """The test of the first tested tokens' acceptance."""
        return event_test(self._accepted, self._expected)

    @property
    def rates(self) -> tuple[float, float]:
        """The measured and the expected acceptance rate of the first tested tokens."""
        n = max(len(self._expected), 1)
        return sum(self._accepted) / n, sum(self._expected) / n


def _normalized(rows: Tensor) -> Tensor:
    """Return rows (m, V) in float64 whose sums are exactly 1."""
    exact = rows.double()
    return exact / exact.sum(-1, keepdim=True)


def control_of(case: Case) -> tuple[str, Method, float]:
    """Return a control that does not follow the declared distribution: its name, method and temperature.

    It is the innermost drafter alone, if that is not the target and can read every prompt. Otherwise, it is the declared
    distribution at a higher temperature. If the tests do not reject the control, a pass of the method says little.
    """
    method, (scorers, target) = case.method, case.declared
    tests, proposer = method.verifications(), getattr(method, "proposer", None)
    while isinstance(proposer, Chain):
        proposer = proposer.proposer
    drafter = proposer.role if proposer else tests[0].proposer if tests else ""
    is_distinct = drafter in method.roles() and not (drafter == scorers[-1] and isinstance(target, Last))
    if is_distinct and all(_has_room(case.pair.open(prompt, UNENDING), drafter) for prompt in case.prompts):
        return f"'{drafter}' alone", Autoregressive(scorers=(drafter,), target=Last()), case.temperature
    warmer = case.temperature * case.warmer
    return f"the declared distribution at T = {warmer:g}", case.plain, warmer


def _has_room(models: OpenSessions, role: str) -> bool:
    """Return whether a model can read a prompt and at least one token after it."""
    return models[role].room(models.ids) > 1


class SampledChecks(NamedTuple):
    """The checks of sampled outputs, what they would have missed, and how many tests share the significance level."""

    checks: list[Check]
    power: Power
    tests: int


def sampled(case: Case, advance: Callable[[], None]) -> SampledChecks:
    """Check at T > 0 that outputs follow the declared distribution, that acceptance is as expected, and the control.

    The control's checks are corrected for the same number of tests as the method's.
    """
    prompts = cut_prompts(case.prompts, case.cuts, case.decoding.seed)
    name, method, temperature = control_of(case)
    other_seed = Decoding(case.decoding.new, case.decoding.seed + 1)
    tested, control = SampledStatistics(case), SampledStatistics(case)
    for output in generate_outputs(case.method, case.pair, prompts, case.temperature, case.decoding):
        tested.add(output)
        advance()
    for output in generate_outputs(method, case.pair, prompts, temperature, other_seed):
        control.add(output)
        advance()
    at = f", T = {case.temperature:g}"
    count = tested.tests.number_of_tests + tested.acceptance.has_varied + tested.by_token.varied
    checks = [_check(f"{group} tokens{at}", tested.tests.by_group[group], count) for group in GROUPS]
    checks.append(_acceptance_check(f"acceptance{at}", tested, case, count))
    controls = {group: _check(group, control.tests.by_group[group], count) for group in GROUPS}
    power = _power(tested, SIGNIFICANCE / max(count, 1))
    return SampledChecks([*checks, _control_check(name, at, controls)], power, count)


def _power(tested: SampledStatistics, alarm: float) -> Power:
    """Return what tests at this significance level would have missed."""
    acceptance, later = tested.by_token, tested.tests.by_group["later"].departures
    needed = acceptance.tokens_needed(alarm) if acceptance.tokens else None
    times = max(later.times_needed(alarm), needed / acceptance.tokens if needed else 0.0)
    return Power(
        factor=acceptance.smallest_factor(alarm) if acceptance.tokens else None,
        tested=acceptance.tokens,
        later=later.detectable(alarm),
        first=tested.tests.detectable("first", alarm),
        times=times if math.isfinite(times) else None,
    )


def _acceptance_check(name: str, tested: SampledStatistics, case: Case, count: int) -> Check:
    """Return the check of acceptance.

    First tested tokens are compared with the acceptance rate that q and pi imply, and all tested tokens with their acceptance
    probabilities.
    """
    kind, first, every = CheckKind.acceptance, tested.acceptance, tested.by_token
    if not first.tokens:
        return Check(kind, name, no_first_tests(case.method), "", None)
    if not (first.has_varied or every.varied):
        return Check(kind, name, "every outcome was certain", "", None)
    p, (rate, expected) = min(1.0, count * min(first.p, every.p)), tested.rates
    factor, needed = every.smallest_factor(SIGNIFICANCE / count), every.tokens_needed(SIGNIFICANCE / count)
    power = f"smallest detectable factor: {factor:g}" if factor else "no detectable factor up to 2"
    if needed and (factor is None or factor > LARGEST_FACTOR):
        power += f" ({LARGEST_FACTOR} needs --repeats {math.ceil(case.cuts * needed / every.tokens)})"
    details = (
        f"{rate:.3f} of {first.tokens} first tested tokens, {expected:.3f} expected; z = {first.z:.1f};"
        f" {every.tokens} tested tokens against their acceptance probabilities: z = {every.z:.1f}; {power}"
    )
    numbers = {
        "p": p, "z": first.z, "rounds": first.tokens, "accepted": rate, "expected": expected, "z_by_token": every.z,
        "tested": every.tokens, "certain": every.certain, "smallest_factor": factor, "tokens_for_1.05": needed,
    }  # fmt: skip
    return Check(kind, name, details, f"p {p:.1g}", p >= SIGNIFICANCE, {**numbers})


def _control_check(name: str, at: str, checks: dict[str, Check]) -> Check:
    """Return the control's check.

    The control must be rejected: it passes if the check of at least one token group fails.
    """
    measure = ", ".join(f"{group} {check.measure}" for group, check in checks.items())
    passed = [group for group, check in checks.items() if check.passed is not False]
    is_rejected = len(passed) < len(checks)
    details = f"{name}: {'rejected' if is_rejected else NOT_REJECTED}"
    if is_rejected and passed:
        details += f"; its {passed[0]} tokens alone do not reject it"
    numbers = {group: check.numbers for group, check in checks.items()}
    return Check(CheckKind.control, f"control{at}", details, measure, is_rejected, {**numbers})


def _check(name: str, tests: TokenTests, count: int) -> Check:
    """Return the check with the lowest p of these tests, corrected for `count` tests in total."""
    varied = tests.results
    found = worst(varied)
    if found is None:
        return Check(CheckKind.tokens, name, "every distribution was one-hot")
    statistic, test = found
    p = min(1.0, count * test.p)
    one = tests.by_statistic.get(statistic)
    shift = one.smallest_shift(SIGNIFICANCE / count) if one else None
    details = f"{test.tokens} tokens, {len(varied)} tests; the worst: {statistic}, z = {test.z:.1f}"
    if shift is not None:
        details += f"; smallest detectable shift: {shift:.2g} standard deviations"
    statistics = {name: {"z": other.z, "p": other.p} for name, other in varied.items()}
    detectable = [asdict(each) for each in tests.departures.detectable(SIGNIFICANCE / count)]
    numbers = {
        "p": p, "tokens": test.tokens, "worst": statistic, "smallest_shift": shift, "statistics": statistics,
        "detectable": detectable,
    }  # fmt: skip
    return Check(CheckKind.tokens, name, details, f"p {p:.1g}", p >= SIGNIFICANCE, numbers)
