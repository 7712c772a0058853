"""SPRINTER: a learned verifier reads every drafted token, and the target tests only the last token of a run.

A token is acceptable iff the draft gives it at most the probability that the target gives it. eta_tp is the rate at which the
verifier accepts acceptable tokens, eta_fp that at which it accepts the others.

See docs/papers/sprinter.md, Theory.
"""

import math

from specbench.analysis.theory.speculation import Cost, mean_cost


def expected_run(n: int, eta_tp: float, eta_fp: float) -> float:
    """E[X] = eta_tp (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n eta_fp / (1 - eta_fp), Theorem 2; infinite at eta_fp = 1."""
    return expected_drafts(n, eta_tp, eta_fp) - 1.0


def expected_drafts(n: int, eta_tp: float, eta_fp: float, most: int | None = None) -> float:
    """E[X + 1], drafted tokens per run, including the last and rejected one (Theorem 3); infinite at eta_fp = 1.

    (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n / (1 - eta_fp), the sum of P(X >= j). A run has at most `most` tokens.
    """
    if most is not None:
        return sum(eta_tp ** min(j, n) * eta_fp ** max(j - n, 0) for j in range(most))
    reached = eta_tp**n
    rest = reached / (1.0 - eta_fp) if eta_fp < 1.0 else math.inf if reached else 0.0
    return sum(eta_tp**j for j in range(n)) + rest


def forward_flops(layers: int, s: int, d: int, heads: int, d_ff: int, vocabulary: int) -> float:
    """FLOPs of a forward over s positions with hidden size d, as the paper counts them (appendix A.8).

    Per layer: 6 s d^2 queries, keys, values; 2 s^2 d scores; 3 heads s^2 softmax; 2 s^2 d values; 2 s d^2 output; 4 s d d_ff.
    Plus 2 s d |V| for the embedding, which other counts treat as a look-up, and 2 s d |V| for the logits.
    """
    layer = 6 * s * d**2 + 2 * s**2 * d + 3 * heads * s**2 + 2 * s**2 * d + 2 * s * d**2 + 4 * s * d * d_ff
    return float(layers * layer + 4 * s * d * vocabulary)


def speculative_flops(n: float, f_q: float, f_p: float, *, bonus: bool = False) -> float:
    """FLOPs of speculative decoding for n drafted tokens: n F_q + n F_p, and F_p more with a bonus token.

    f_q and f_p are FLOPs per position.
    """
    return n * f_q + (n + bonus) * f_p


def sprinter(
    drafted: float, accepted: float, cost: Cost, baseline: float, *, gate: float = 0.0, bonus: bool = True
) -> float:
    """Long-run speedup of SPRINTER over a baseline that costs `baseline` per token.

    Model 0 drafts, and model 1 is the target. `drafted` is the measured number of drafted tokens per forward of the target.
    The last one is tested, and accepted at the rate `accepted`. All are committed, the last one or its replacement included,
    and a bonus token after an accepted one. The target reads all of them and one token before; without a bonus token, one
    less. The draft reads two tokens after a bonus token. `gate` is the cost of the verifier per token. The result is exact if
    the cost of a block is linear in its length.

    See docs/papers/sprinter.md, Speedup with measured costs.
    """
    tokens, spent = drafted, drafted * (cost(0, 1) + gate)
    if bonus:
        tokens += accepted
        spent += accepted * (cost(0, 2) - cost(0, 1))
    return tokens * baseline / (spent + mean_cost(cost, 1, drafted + bonus))
