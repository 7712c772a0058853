"""SPRINTER: a learned verifier reads every drafted token, and the target tests only the last token of a run.

q is the draft's distribution, p the target's. A token is acceptable iff q <= p. eta_tp is the rate at which the verifier
accepts acceptable tokens, eta_fp that at which it accepts the others. fp is eta_fp: one rate for all tokens, or one per
token.

See docs/papers/sprinter.md, Theory.
"""

import math
from collections.abc import Sequence

from specbench.analysis.theory.speculation import Cost, mean_cost

Rates = float | Sequence[float]


def _above(q: Sequence[float], p: Sequence[float], fp: Rates) -> list[tuple[float, float]]:
    """(q - p)+ and the rate of false positives, by token. Raises ValueError if the lengths differ."""
    rates = [fp] * len(q) if isinstance(fp, float | int) else fp
    return [(max(x - y, 0.0), rate) for x, y, rate in zip(q, p, rates, strict=True)]


def sprinter_distribution(q: Sequence[float], p: Sequence[float], fp: Rates) -> list[float]:
    """Return the distribution of an emitted token: (1 - fp) p + fp q if q > p, else q plus a share of the rejected mass.

    With one rate for all tokens it is (1 - fp) p + fp q (Theorem 1). It does not depend on eta_tp: the target accepts
    acceptable tokens that the verifier rejects. A verifier with state features knows only the prefix; the distribution is
    then q or p for each prefix, and this is the mean over prefixes.
    """
    above = _above(q, p, fp)
    distance, rejected = sum(more for more, _ in above), sum((1.0 - rate) * more for more, rate in above)
    return [
        (1.0 - rate) * y + rate * x if more else x + (rejected * (y - x) / distance if distance else 0.0)
        for x, y, (more, rate) in zip(q, p, above, strict=True)
    ]


def sprinter_distance(q: Sequence[float], p: Sequence[float], fp: Rates) -> float:
    """Total variation of SPRINTER's output distribution from p: the sum of fp(x) (q - p)+. With one rate: eta_fp TV(q, p)."""
    return sum(rate * more for more, rate in _above(q, p, fp))


def sprinter_acceptance(q: Sequence[float], p: Sequence[float], fp: Rates) -> float:
    """Return the share of drafted tokens that are kept: 1 - sum (1 - fp(x)) (q - p)+.

    With one rate it is 1 - (1 - eta_fp) TV(q, p) (Theorem 7). At eta_fp = 0 it is that of speculative decoding.
    """
    return 1.0 - sum((1.0 - rate) * more for more, rate in _above(q, p, fp))


def false_positive_rate(q: Sequence[float], p: Sequence[float], fp: Rates) -> float:
    """Return the single rate of Theorem 1: the mean of fp(x) with the weights (q - p)+, not q.

    It is 0 if q = p, since every token is then acceptable.

    See erratum SP-2, docs/papers/sprinter.md, Errata.
    """
    above = _above(q, p, fp)
    distance = sum(more for more, _ in above)
    return sum(rate * more for more, rate in above) / distance if distance else 0.0


def run_odds(k: int, n: int, eta_tp: float, eta_fp: float) -> float:
    """P(X = k) for X tokens in a row that the verifier accepts, if the first n are acceptable and no later one (Theorem 2).

    eta_tp^k (1 - eta_tp) for k < n, and eta_tp^n eta_fp^(k - n) (1 - eta_fp) from n on.
    """
    return eta_tp**k * (1.0 - eta_tp) if k < n else eta_tp**n * eta_fp ** (k - n) * (1.0 - eta_fp)


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


def stopping_time(n: int, eta_tp: float, eta_fp: float, t_q: float, t_v: float = 0.0) -> float:
    """E[T_stop] = (t_q + t_v) E[X + 1], Theorem 3, in the unit of t_q and t_v, the times per token of draft and verifier.

    The paper neglects t_v. The forward of the target is not included; a whole run takes t_p more.
    """
    return (t_q + t_v) * expected_drafts(n, eta_tp, eta_fp)


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


def sprinter_flops(n: float, f_q: float, f_p: float, f_v: float = 0.0, *, read: float = 1.0) -> float:
    """FLOPs of a run of n drafted tokens, n (F_q + F_v) + F_p: the printed count, with one position of the target.

    "8.3x fewer" corresponds to n = 20 and F_p / F_q = 12.5. A target with a cache must read all n tokens: with read = n,
    nothing is saved. SPRINTER saves forwards, not positions.
    """
    return n * (f_q + f_v) + read * f_p


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
