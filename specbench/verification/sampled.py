"""Floor 4: the sampled checks of `specbench verify`, and the control that they must tell apart."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import Chain
from specbench.verification.case import Case, Check, first_tests, undrafted
from specbench.verification.martingale import Wager, chance
from specbench.verification.reference import Decoding, Output, cut_somewhere, forced, put_out

ALARM = 1e-3  # odds at which any sampled check of a sound method fails
CLIP = 4.0  # nats; of a log-ratio of two laws
FLOOR = 16.0  # nats; a law's logarithm goes no lower
GROUPS = {"first": slice(0, 1), "later": slice(1, None)}  # tokens of an output


class Followed:
    """What sampled outputs say of the declared law: a wager for each statistic, apart for an output's first token."""

    def __init__(self, case: Case) -> None:
        self._case, self._sampler = case, Sampler(case.temperature)
        self.wagers: dict[str, dict[str, Wager]] = {group: {} for group in GROUPS}
        self._happened: list[bool] = []
        self._odds: list[float] = []

    def see(self, output: Output) -> None:
        (scorers, target), roles = self._case.declared, self._case.method.roles()
        logits = forced(self._case.reference, roles, output)
        laws = {role: _law(self._sampler.probs(rows)) for role, rows in logits.items()}
        pi = _law(target([logits[role] for role in scorers], self._sampler))
        x = torch.tensor(output.tokens, device=pi.device)
        for name, g in _statistics(pi, laws).items():
            for group, part in GROUPS.items():
                if len(x[part]):
                    self.wagers[group].setdefault(name, Wager()).add(g[part], pi[part], x[part])
        for at, role, accepted in first_tests(output, roles):
            self._happened.append(accepted)
            self._odds.append(float(torch.minimum(laws[role][at], pi[at]).sum()))

    @property
    def acceptance(self) -> Wager:
        return chance(self._happened, self._odds)

    @property
    def rates(self) -> tuple[float, float]:
        """Of first tested tokens: the share that was accepted, and the share that should be."""
        n = max(len(self._odds), 1)
        return sum(self._happened) / n, sum(self._odds) / n


def _law(rows: Tensor) -> Tensor:
    exact = rows.double()
    return exact / exact.sum(-1, keepdim=True)


def _statistics(pi: Tensor, laws: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is looked at of a token, (m, V) each: functions of its prefix and itself."""
    log_pi = pi.log().clamp_min(-FLOOR)
    ratios = {
        f"log q/pi of {role}": (q.log().clamp_min(-FLOOR) - log_pi).clamp(-CLIP, CLIP) for role, q in laws.items()
    }
    best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0)
    hashed = torch.arange(pi.shape[-1], device=pi.device) * 0x9E3779B97F4A7C1 // 2**32 % 2
    return {**ratios, "log pi": log_pi, "arg max of pi": best, "hash of the token": hashed.double().expand_as(pi)}


def control_of(case: Case) -> tuple[str, Method, float]:
    """What does not follow the law, and must be told apart: its name, the method, and the temperature that it runs at."""
    method, (scorers, target) = case.method, case.declared
    found, proposer = method.verification(), getattr(method, "proposer", None)
    while isinstance(proposer, Chain):
        proposer = proposer.proposer
    drafter = proposer.role if proposer else found[0] if found else ""
    if drafter in method.roles() and not (drafter == scorers[-1] and isinstance(target, Last)):
        return f"'{drafter}' alone", Autoregressive(scorers=(drafter,), target=Last()), case.temperature
    warmer = case.temperature * case.warmer
    return f"the law at T = {warmer:g}", case.plain, warmer


def sampled(case: Case, advance: Callable[[], None]) -> list[Check]:
    """At T > 0: the output follows the law, and drafts are accepted as often as they should; and the control does not."""
    prompts = cut_somewhere(case.prompts, case.cuts, case.decoding.seed)
    name, method, temperature = control_of(case)
    apart = Decoding(case.decoding.new, case.decoding.seed + 1)
    followed, control = Followed(case), Followed(case)
    for output in put_out(case.method, case.pair, prompts, case.temperature, case.decoding):
        followed.see(output)
        advance()
    for output in put_out(method, case.pair, prompts, temperature, apart):
        control.see(output)
        advance()
    accepted, at = followed.acceptance, f", T = {case.temperature:g}"
    tests = sum(wager.varied for group in followed.wagers.values() for wager in group.values()) + accepted.varied
    checks = [_held(f"{group} tokens{at}", followed.wagers[group], tests) for group in GROUPS]
    if accepted.tokens:
        p, (rate, foreseen) = min(1.0, tests * accepted.p), followed.rates
        told = f"{rate:.3f} of {accepted.tokens} first tested tokens, {foreseen:.3f} foreseen; z = {accepted.z:.1f}"
        numbers = {"p": p, "z": accepted.z, "rounds": accepted.tokens, "accepted": rate, "foreseen": foreseen}
        checks.append(Check(f"acceptance{at}", told, f"p {p:.1g}", p >= ALARM, numbers))
    else:
        checks.append(Check(f"acceptance{at}", undrafted(case.method), "", None))
    held = {group: _held(group, control.wagers[group], tests) for group in GROUPS}
    measure = ", ".join(f"{group} {check.measure}" for group, check in held.items())
    blind = [group for group, check in held.items() if check.passed is not False]
    seen = len(blind) < len(held)
    told_apart = {group: check.numbers for group, check in held.items()}
    told = f"{name}: {'rejected' if seen else 'NOT rejected, so a pass would say little'}"
    if seen and blind:
        told += f", but not by its {blind[0]} tokens"
    return [*checks, Check(f"control{at}", told, measure, seen, told_apart, is_control=True)]


def _held(name: str, seen: dict[str, Wager], tests: int) -> Check:
    """The worst of some wagers, for the number of tests that are made in all."""
    wagers = {each: wager for each, wager in seen.items() if wager.varied}
    if not wagers:
        return Check(name, "every law was certain of its token", "", None)
    worst = min(wagers, key=lambda each: (wagers[each].p, -abs(wagers[each].z)))
    wager = wagers[worst]
    p = min(1.0, tests * wager.p)
    told = f"{wager.tokens} tokens, {len(wagers)} statistics; the worst: {worst}, z = {wager.z:.1f}"
    numbers = {
        "p": p,
        "tokens": wager.tokens,
        "worst": worst,
        "statistics": {each: {"z": w.z, "p": w.p} for each, w in wagers.items()},
    }
    return Check(name, told, f"p {p:.1g}", p >= ALARM, numbers)
