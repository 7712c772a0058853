"""The greedy checks of `specbench verify`, which are deterministic."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import FARTHEST, allowed, gaps
from specbench.verification.case import Case, Check, first_tested_tokens, no_first_tests
from specbench.verification.reference import Output, cut_prompts, generate_outputs, reference_logits

CHANCE = 1e-6  # probabilities below this are rounding error


def greedy(case: Case, advance: Callable[[], None]) -> list[Check]:
    """Check at T = 0 that the output is the target's arg max everywhere except at near-ties, and that drafts are
    accepted accordingly.
    """
    (scorers, target), prompts = case.declared, [*case.prompts, *cut_prompts(case.prompts, 1, case.decoding.seed)]
    equal, found, gap, room = 0, [], [], []
    plain = generate_outputs(case.plain, case.pair, prompts, 0.0, case.decoding)
    for output, baseline in zip(
        generate_outputs(case.method, case.pair, prompts, 0.0, case.decoding), plain, strict=True
    ):
        logits = reference_logits(case.reference, case.method.roles(), output)
        declared = {role: logits[role] for role in scorers}
        equal += output.tokens == baseline.tokens
        gap.append(gaps(target, list(declared.values()), output.tokens))
        room.append(allowed(declared, case.dtype))
        found += list(_greedy_tests(case, output, logits, gap[-1], room[-1]))
        advance()
    off, limit = torch.cat(gap), torch.cat(room)
    ties, beyond = int(((off > 0) & (off <= limit)).sum()), int((off > limit).sum())
    worst = float(off.max())
    tokens = Check(
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
    if not found:
        return [tokens, Check("greedy acceptance", no_first_tests(case.method), "", None)]
    wrong = found.count("wrong")
    share = f"{found.count('tie')} near-ties, {wrong} of {len(found)} rounds not as expected"
    rounds: Table = {"rounds": len(found), "near_ties": found.count("tie"), "wrong": wrong}
    return [tokens, Check("greedy acceptance", share, "", not wrong, rounds)]


def _greedy_tests(case: Case, output: Output, logits: dict[str, Tensor], gap: Tensor, room: Tensor) -> Iterator[str]:
    """Yield right, wrong or tie for each round: whether its first tested token was accepted as the two arg maxes imply."""
    scorers, target = case.declared
    for at, role, accepted in first_tested_tokens(output, case.method.roles()):
        best = logits[role][at].double().topk(2)
        rows = [logits[each][at : at + 1] for each in scorers]  # n x (1, V)
        # A lenient target may be random at T = 0 too; then both outcomes are right.
        odds = float(target(rows, Sampler(0.0))[0, best.indices[0]])
        close = bool(best.values[0] - best.values[1] <= allowed({role: logits[role][at : at + 1]}, case.dtype)[0])
        possible = odds > CHANCE if accepted else odds < 1.0 - CHANCE
        yield "right" if possible else "tie" if close or 0 < gap[at] <= room[at] else "wrong"
