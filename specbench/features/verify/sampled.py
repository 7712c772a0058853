"""The sampled checks of `specbench verify`: martingale tests of tokens and acceptance, and the control that must fail.

Each sampled token has another distribution pi, given its prefix, so tokens cannot be pooled in one histogram. A martingale
test multiplies one factor per token, whose expectation under that token's pi is at most 1. By chance alone, the product
reaches 1000 with probability at most 1/1000. If tokens follow another distribution, the product can grow with every token.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.loop import OpenSessions
from specbench.decoding.method import Method, Verification
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import UNENDING
from specbench.decoding.targets import Last
from specbench.features.verify.acceptance_test import EXAMPLE, AcceptanceTest
from specbench.features.verify.case import (
    Case,
    CheckResult,
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

ALARM = 1e-3  # bound for the probability that any sampled check of a sound method fails
CLIP = 4.0  # nats; bound of a log-ratio of two distributions
FLOOR = 16.0  # nats; log-probabilities are clamped from below to its negative
GROUPS = {"first": slice(0, 1), "later": slice(1, None)}  # tokens of an output
LAMBDAS = tuple(sign * 2.0**-k for k in range(5) for sign in (1.0, -1.0))  # from weak to strong deviations


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


# Tests of the output distribution


class MartingaleTest:
    """A martingale test of one statistic g of every token; `p` bounds the probability of a false rejection.

    Each token x multiplies the test martingale by exp(lambda g(x)) / E_pi exp(lambda g). If x follows pi given all tokens
    before it, and g was fixed before x, the expected factor is 1. So the product is a martingale, and its mean over `LAMBDAS`
    is one too. It reaches 1 / p with probability at most p (Ville 1939). The bound holds for any number of tokens, with rare
    events and with optional stopping. With g = log q/pi and lambda = 1, the product is the likelihood ratio of q to pi.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._log_wealth = [0.0] * len(LAMBDAS)  # logarithms
        self._sum = self._variance = 0.0

    def add(self, g: Tensor, pi: Tensor, x: Tensor) -> None:
        """Add tokens x (m,), their distributions pi (m, V), float64, and the statistic g (m, V)."""
        of_x = g.gather(-1, x.unsqueeze(-1)).squeeze(-1)  # (m,)
        mean = (pi * g).sum(-1)
        self.tokens += len(x)
        self._sum += float((of_x - mean).sum())
        self._variance += float((pi * (g - mean.unsqueeze(-1)) ** 2).sum())
        for i, lambda_ in enumerate(LAMBDAS):
            expected = (pi * (lambda_ * g).exp()).sum(-1).log()
            self._log_wealth[i] += float((lambda_ * of_x - expected).sum())

    @property
    def varied(self) -> bool:
        """Whether g varied, so that the test could have rejected."""
        return self._variance > 1e-6  # else g is the same for all tokens, but for rounding

    @property
    def z(self) -> float:
        """The deviation of the sum of g from its expectation, in standard deviations; 0 if g did not vary."""
        return self._sum / math.sqrt(self._variance) if self.varied else 0.0

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a martingale under the null hypothesis."""
        largest = max(self._log_wealth)
        log_mean = largest + math.log(sum(math.exp(wealth - largest) for wealth in self._log_wealth) / len(LAMBDAS))
        return min(1.0, math.exp(min(-log_mean, 0.0)))

    def smallest_shift(self, alarm: float) -> float:
        """Return the smallest shift of the mean of g that reaches p = alarm on average, in standard deviations of one token.

        With the best lambda, the logarithm of the martingale is about n d^2 / 2 after n tokens with a shift d.
        """
        return math.sqrt(2.0 * math.log(len(LAMBDAS) / alarm) / max(self.tokens, 1))


def event_test(happened: list[bool], probabilities: list[float]) -> MartingaleTest:
    """Return a martingale test of events, each of which should happen with the given probability."""
    test = MartingaleTest()
    if happened:
        one = torch.tensor(probabilities, dtype=torch.float64).clamp(0.0, 1.0)
        pi = torch.stack([1.0 - one, one], dim=-1)  # (m, 2)
        test.add(
            torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(len(probabilities), 2),
            pi,
            torch.tensor(happened).long(),
        )
    return test


class SampledStatistics:
    """Martingale tests of sampled outputs against the declared distribution.

    The first tokens of outputs have tests of their own, since the many later tokens would hide an error in them.
    """

    def __init__(self, case: Case) -> None:
        self._case, self._sampler = case, Sampler(case.temperature)
        self.tests: dict[str, dict[str, MartingaleTest]] = {group: {} for group in GROUPS}
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
        for name, g in _statistics(pi, probs).items():
            for group, part in GROUPS.items():
                if len(x[part]):
                    self.tests[group].setdefault(name, MartingaleTest()).add(g[part], pi[part], x[part])
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


def _statistics(pi: Tensor, probs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tested statistics by name, (m, V) each: functions of a token and its prefix.

    `log q/pi` deviates if outputs are too close to a drafter's distribution, `log pi` if the temperature is wrong,
    `arg max of pi` if outputs are too greedy, and `hash of the token` if an error does not depend on probabilities.
    """
    log_pi = pi.log().clamp_min(-FLOOR)
    ratios = {
        f"log q/pi of {role}": (q.log().clamp_min(-FLOOR) - log_pi).clamp(-CLIP, CLIP) for role, q in probs.items()
    }
    best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0)
    hashed = torch.arange(pi.shape[-1], device=pi.device) * 0x9E3779B97F4A7C1 // 2**32 % 2  # (V,)
    return {**ratios, "log pi": log_pi, "arg max of pi": best, "hash of the token": hashed.double().expand_as(pi)}


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


def sampled(case: Case, advance: Callable[[], None]) -> list[CheckResult]:
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
    count = sum(test.varied for group in tested.tests.values() for test in group.values())
    count += tested.acceptance.varied + tested.by_token.varied
    checks = [_check(f"{group} tokens{at}", tested.tests[group], count) for group in GROUPS]
    checks.append(_acceptance_check(f"acceptance{at}", tested, case, count))
    return [*checks, _control_check(name, at, {g: _check(g, control.tests[g], count) for g in GROUPS})]


def _acceptance_check(name: str, tested: SampledStatistics, case: Case, count: int) -> CheckResult:
    """Return the check of acceptance.

    First tested tokens are compared with the acceptance rate that q and pi imply, and all tested tokens with their acceptance
    probabilities.
    """
    first, every = tested.acceptance, tested.by_token
    if not first.tokens:
        return CheckResult(name, no_first_tests(case.method), "", None)
    if not (first.varied or every.varied):
        return CheckResult(name, "every outcome was certain", "", None)
    p, (rate, expected) = min(1.0, count * min(first.p, every.p)), tested.rates
    factor, needed = every.smallest_factor(ALARM / count), every.tokens_needed(ALARM / count)
    power = f"smallest detectable factor: {factor:g}" if factor else "no detectable factor up to 2"
    if needed and (factor is None or factor > EXAMPLE):
        power += f" ({EXAMPLE} needs --repeats {math.ceil(case.cuts * needed / every.tokens)})"
    details = (
        f"{rate:.3f} of {first.tokens} first tested tokens, {expected:.3f} expected; z = {first.z:.1f};"
        f" {every.tokens} tested tokens against their acceptance probabilities: z = {every.z:.1f}; {power}"
    )
    numbers = {
        "p": p, "z": first.z, "rounds": first.tokens, "accepted": rate, "expected": expected, "z_by_token": every.z,
        "tested": every.tokens, "certain": every.certain, "smallest_factor": factor, "tokens_for_1.05": needed,
    }  # fmt: skip
    return CheckResult(name, details, f"p {p:.1g}", p >= ALARM, {**numbers})


def _control_check(name: str, at: str, checks: dict[str, CheckResult]) -> CheckResult:
    """Return the control's check.

    The control must be rejected: it passes if the check of at least one token group fails.
    """
    measure = ", ".join(f"{group} {check.measure}" for group, check in checks.items())
    passed = [group for group, check in checks.items() if check.passed is not False]
    is_rejected = len(passed) < len(checks)
    details = f"{name}: {'rejected' if is_rejected else 'NOT rejected, so a pass would say little'}"
    if is_rejected and passed:
        details += f", but not by its {passed[0]} tokens"
    numbers = {group: check.numbers for group, check in checks.items()}
    return CheckResult(f"control{at}", details, measure, is_rejected, {**numbers}, is_control=True)


def _check(name: str, tests: dict[str, MartingaleTest], count: int) -> CheckResult:
    """Return the check with the lowest p of these tests, corrected for `count` tests in total."""
    varied = {statistic: test for statistic, test in tests.items() if test.varied}
    if not varied:
        return CheckResult(name, "every distribution was one-hot", "", None)
    worst = min(varied, key=lambda statistic: (varied[statistic].p, -abs(varied[statistic].z)))
    test = varied[worst]
    p = min(1.0, count * test.p)
    shift = test.smallest_shift(ALARM / count)
    details = (
        f"{test.tokens} tokens, {len(varied)} statistics; the worst: {worst}, z = {test.z:.1f};"
        f" smallest detectable shift: {shift:.2g} standard deviations"
    )
    statistics = {statistic: {"z": other.z, "p": other.p} for statistic, other in varied.items()}
    numbers = {"p": p, "tokens": test.tokens, "worst": worst, "smallest_shift": shift, "statistics": statistics}
    return CheckResult(name, details, f"p {p:.1g}", p >= ALARM, {**numbers})
