"""Combines checks into a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from specbench.decoding.method import Method
from specbench.verification.case import Case, Check
from specbench.verification.greedy import greedy
from specbench.verification.sampled import sampled


class Outcome(StrEnum):
    """The possible results of a verification."""

    lossless = "lossless"  # follows its baseline's distribution
    declared = "as declared"  # follows the distribution that it declares, which is not its baseline's
    differs = "differs"  # does not follow the distribution that it declares, or accepts too often or too rarely
    inconclusive = "inconclusive"  # every check passed, but the control was not rejected
    undeclared = "no distribution"  # declares no distribution to compare with


@dataclass(frozen=True)
class Verdict:
    """The outcome, a one-line explanation, and the checks that led to it."""

    outcome: Outcome
    line: str
    checks: list[Check]


def verify(case: Case, name: str, baseline: Method, advance: Callable[[], None] = lambda: None) -> Verdict:
    """Check a method, which must declare a distribution, against it: greedy, and sampled if the case's temperature is
    above 0.

    The distribution is lossless if `baseline` declares it too. `advance` is called once per output, `outputs` times in
    total.
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
    """Return how many outputs a verdict needs, including the controls'."""
    return len(case.prompts) * (2 + (2 * case.cuts if case.temperature else 0))


def undeclared(method: Method, name: str) -> Verdict:
    """Return the verdict on a method that declares no distribution."""
    why = ""
    if getattr(method, "bonus", "") == "paper":
        why = ": its bonus token is the target's, untested, which biases the output (bonus = 'deferred' does not)"
    elif method.greedy_only:
        why = ": it is a greedy heuristic of two models"
    return Verdict(
        Outcome.undeclared, f"cannot be verified: {name} declares no distribution that its output follows{why}", []
    )
