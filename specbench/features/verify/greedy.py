"""Greedy checks of `specbench verify`: every token is the target's arg max, and drafts are accepted accordingly."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import FARTHEST, gaps, rounding_gap
from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.verify.case import (
    Case,
    Output,
    cut_prompts,
    first_tested_tokens,
    generate_outputs,
    no_first_tests,
    reference_logits,
)

CHANCE = 1e-6  # probabilities below this are rounding error


def greedy(case: Case, advance: Callable[[], None]) -> list[Check]:
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
    tokens = _tokens_check(torch.cat(gap), torch.cat(room), {"outputs": len(prompts), "equal": equal})
    if not outcomes:
        return [tokens, Check(CheckKind.acceptance, "greedy acceptance", no_first_tests(case.method), "", None)]
    wrong = outcomes.count("wrong")
    share = f"{outcomes.count('tie')} near-ties, {wrong} of {len(outcomes)} rounds not as expected"
    rounds: Table = {"rounds": len(outcomes), "near_ties": outcomes.count("tie"), "wrong": wrong}
    return [tokens, Check(CheckKind.acceptance, "greedy acceptance", share, "", not wrong, rounds)]


def _tokens_check(gap: Tensor, room: Tensor, counts: Table) -> Check:
    """Return the check of all tokens: each token's gap (n,) to the arg max, and the gap (n,) that rounding explains."""
    ties, wrong = int(((gap > 0) & (gap <= room)).sum()), int((gap > room).sum())
    worst, limit = float(gap.max()), float(room.max())
    return Check(
        CheckKind.tokens,
        "greedy tokens",
        f"{counts['equal']} of {counts['outputs']} outputs equal the autoregressive method's;"
        f" of {len(gap)} tokens {ties} near-ties, {wrong} wrong",
        f"gap {worst:.2g} > {limit:.1e}" if wrong else f"gap {worst:.1e} <= {limit:.1e}",
        not wrong,
        {**counts, "tokens": len(gap), "near_ties": ties, "wrong": wrong, "largest_gap": min(worst, FARTHEST)},
    )


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
