"""The verdict of `specbench verify`: its greedy checks, which are deterministic, and all checks combined."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import FARTHEST, gaps, rounding_gap
from specbench.verification.case import (
    Case,
    CheckResult,
    Output,
    cut_prompts,
    first_tested_tokens,
    generate_outputs,
    no_first_tests,
    reference_logits,
)
from specbench.verification.sampled import sampled

CHANCE = 1e-6  # probabilities below this are rounding error


def greedy(case: Case, advance: Callable[[], None]) -> list[CheckResult]:
    """Check outputs and acceptance at T = 0.

    Every token must be the target's arg max except at near-ties, and drafts must be accepted accordingly.
    """
    (scorers, target), prompts = case.declared, [*case.prompts, *cut_prompts(case.prompts, 1, case.decoding.seed)]
    equal, outcomes, gap, room = 0, [], [], []
    plain = generate_outputs(case.plain, case.pair, prompts, 0.0, case.decoding)
    for output, baseline in zip(
        generate_outputs(case.method, case.pair, prompts, 0.0, case.decoding), plain, strict=True
    ):
        logits = reference_logits(case.reference, case.method.roles(), output)
        declared = {role: logits[role] for role in scorers}
        equal += output.tokens == baseline.tokens
        gap.append(gaps(target, list(declared.values()), output.tokens))
        room.append(rounding_gap(declared, case.dtype))
        outcomes += list(_greedy_tests(case, output, logits, gap[-1], room[-1]))
        advance()
    off, limit = torch.cat(gap), torch.cat(room)
    ties, beyond = int(((off > 0) & (off <= limit)).sum()), int((off > limit).sum())
    worst = float(off.max())
    tokens = CheckResult(
        "greedy tokens",
        f"{equal} of {len(prompts)} outputs equal the autoregressive method's;"
        f" of {len(off)} tokens {ties} near-ties, {beyond} wrong",
        f"gap {worst:.1e} <= {float(limit.max()):.1e}" if not beyond else f"gap {worst:.2g} > {float(limit.max()):.1e}",
        not beyond,
        {
            "outputs": len(prompts),
            "equal": equal,
            "tokens": len(off),
            "near_ties": ties,
            "wrong": beyond,
            "largest_gap": min(worst, FARTHEST),
        },
    )
    if not outcomes:
        return [tokens, CheckResult("greedy acceptance", no_first_tests(case.method), "", None)]
    wrong = outcomes.count("wrong")
    share = f"{outcomes.count('tie')} near-ties, {wrong} of {len(outcomes)} rounds not as expected"
    rounds: Table = {"rounds": len(outcomes), "near_ties": outcomes.count("tie"), "wrong": wrong}
    return [tokens, CheckResult("greedy acceptance", share, "", not wrong, rounds)]


def _greedy_tests(case: Case, output: Output, logits: dict[str, Tensor], gap: Tensor, room: Tensor) -> Iterator[str]:
    """Yield right, wrong or tie for each round, by whether the arg maxes imply the outcome of its first test.

    Yields nothing for draft trees, whose first depth is accepted if any of its tokens is.
    """
    tests = case.method.verifications()
    if tests and tests[0].tree:
        return
    scorers, target = case.declared
    for at, role, accepted in first_tested_tokens(output, case.method.roles()):
        best = logits[role][at].double().topk(2)
        rows = [logits[scorer][at : at + 1] for scorer in scorers]  # n x (1, V)
        # A lenient target may be random at T = 0 too; then both outcomes are right.
        probability = float(target(rows, Sampler(0.0))[0, best.indices[0]])
        close = bool(best.values[0] - best.values[1] <= rounding_gap({role: logits[role][at : at + 1]}, case.dtype)[0])
        possible = probability > CHANCE if accepted else probability < 1.0 - CHANCE
        yield "right" if possible else "tie" if close or 0 < gap[at] <= room[at] else "wrong"


# The verdict


class VerdictKind(StrEnum):
    """The possible results of a verification."""

    lossless = "lossless"  # follows its baseline's distribution
    declared = "as declared"  # follows the distribution that it declares, which is not its baseline's
    differs = "differs"  # does not follow the distribution that it declares, or accepts too often or too rarely
    inconclusive = "inconclusive"  # every check passed, but the control was not rejected
    undeclared = "no distribution"  # declares no distribution to compare with


@dataclass(frozen=True)
class Verdict:
    """The outcome, a one-line explanation, and the checks that led to it."""

    outcome: VerdictKind
    line: str
    checks: list[CheckResult]


def verify(case: Case, name: str, baseline: Method, advance: Callable[[], None] = lambda: None) -> Verdict:
    """Check a method against the distribution that it must declare.

    The checks are greedy, and also sampled if the case's temperature is above 0.

    The distribution is lossless if `baseline` declares it too. `advance` is called once per output, `outputs` times in
    total.
    """
    checks = greedy(case, advance) + (sampled(case, advance) if case.temperature else [])
    scorers, target = case.declared
    declared = f"the distribution '{target.name}' of {', '.join(scorers)}"
    failed = [check.name for check in checks if check.passed is False and not check.is_control]
    if any("tokens" in title for title in failed):
        return Verdict(
            VerdictKind.differs, f"NOT lossless: {name} departs from {declared}: {', '.join(failed)}", checks
        )
    if failed:
        line = f"NOT as expected: {name} follows {declared}, but its drafts are not accepted as often as they should be"
        return Verdict(VerdictKind.differs, line, checks)
    if any(check.passed is False for check in checks):
        line = f"inconclusive: {name} passed, but the control was not rejected; help: larger -n, --repeats or --temperature"
        return Verdict(VerdictKind.inconclusive, line, checks)
    how = f"greedy and at T = {case.temperature:g}" if case.temperature else "greedy; not sampled"
    if baseline.declared_distribution() == case.method.declared_distribution():
        return Verdict(VerdictKind.lossless, f"lossless: {name} follows {declared}, {how}", checks)
    return Verdict(
        VerdictKind.declared, f"follows its declared distribution, which is lossy: {name}, {declared}, {how}", checks
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
        VerdictKind.undeclared, f"cannot be verified: {name} declares no distribution that its output follows{why}", []
    )
