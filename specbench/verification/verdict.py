"""Floor 4: from checks to a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from specbench.decoding.method import Method
from specbench.verification.case import Case, Check
from specbench.verification.greedy import greedy
from specbench.verification.sampled import sampled


class Outcome(StrEnum):
    lossless = "lossless"  # it follows its baseline's law
    declared = "as declared"  # it follows the law that it declares, which is not its baseline's
    differs = "differs"  # it does not follow the law that it declares, or does not accept as it should
    inconclusive = "inconclusive"  # nothing was found, and a control that should have failed did not
    undeclared = "no distribution"  # nothing to compare with


@dataclass(frozen=True)
class Verdict:
    """The outcome, in one line for people, and the checks that led to it."""

    outcome: Outcome
    line: str
    checks: list[Check]


def verify(case: Case, name: str, baseline: Method, advance: Callable[[], None] = lambda: None) -> Verdict:
    """Hold a method, which must declare a law, against it: greedy, and where the case's temperature is above 0, sampled.

    `baseline` tells whether that law is lossless. `advance` is called once an output, `outputs` times.
    """
    checks = greedy(case, advance) + (sampled(case, advance) if case.temperature else [])
    scorers, target = case.declared
    declared = f"the distribution '{target.name}' of {', '.join(scorers)}"
    failed = [check.name for check in checks if check.passed is False and not check.is_control]
    if any("tokens" in each for each in failed):
        return Verdict(Outcome.differs, f"NOT lossless: {name} departs from {declared}: {', '.join(failed)}", checks)
    if failed:
        line = f"NOT as expected: {name} follows {declared}, but its drafts are not accepted as often as they should be"
        return Verdict(Outcome.differs, line, checks)
    if any(check.passed is False for check in checks):
        line = f"inconclusive: {name} passed, but the control was not rejected; help: larger -n, --repeats or --temperature"
        return Verdict(Outcome.inconclusive, line, checks)
    how = f"greedy and at T = {case.temperature:g}" if case.temperature else "greedy; not sampled"
    if baseline.declared_distribution() == case.method.declared_distribution():
        return Verdict(Outcome.lossless, f"lossless: {name} follows {declared}, {how}", checks)
    return Verdict(
        Outcome.declared, f"follows its declared distribution, which is lossy: {name}, {declared}, {how}", checks
    )


def outputs(case: Case) -> int:
    """How many outputs a verdict takes, the controls' included."""
    return len(case.prompts) * (2 + (2 * case.cuts if case.temperature else 0))


def undeclared(method: Method, name: str) -> Verdict:
    """The verdict on a method that declares no law."""
    why = ""
    if getattr(method, "bonus", "") == "paper":
        why = ": its bonus token is the target's, untested, which biases the output (bonus = 'deferred' does not)"
    elif method.greedy_only:
        why = ": it is a greedy heuristic of two models"
    return Verdict(
        Outcome.undeclared, f"cannot be verified: {name} declares no distribution that its output follows{why}", []
    )
