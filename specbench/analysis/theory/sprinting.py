"""SPRINTER: a learned verifier reads every drafted token, the target only the last one of a run.

q is the draft's distribution, p the target's. A token is acceptable iff q <= p. eta_tp is how often the verifier accepts
acceptable tokens, eta_fp how often it accepts the others. fp is the latter rate: one for all tokens, or one per token.

See docs/papers/sprinter.md, Theory.
"""

import math
from collections.abc import Sequence

from specbench.analysis.theory.speculation import Cost, price

Rates = float | Sequence[float]


def _above(q: Sequence[float], p: Sequence[float], fp: Rates) -> list[tuple[float, float]]:
    """(q - p)+ and the rate of false positives, token by token. Raises ValueError where lengths differ."""
    rates = [fp] * len(q) if isinstance(fp, float | int) else fp
    return [(max(x - y, 0.0), rate) for x, y, rate in zip(q, p, rates, strict=True)]


def sprinter_distribution(q: Sequence[float], p: Sequence[float], fp: Rates) -> list[float]:
    """The distribution of an emitted token: (1 - fp) p + fp q where q > p, elsewhere q and a share of what these tokens lost.

    With one rate for all tokens it is (1 - fp) p + fp q everywhere, Theorem 1. eta_tp does not matter: what it wrongly sends
    to the target is accepted there. With state features the verifier knows the prefix alone: the distribution of each prefix
    is then q or p, and this is the mean over prefixes.
    """
    above = _above(q, p, fp)
    distance, rejected = sum(more for more, _ in above), sum((1.0 - rate) * more for more, rate in above)
    return [
        (1.0 - rate) * y + rate * x if more else x + (rejected * (y - x) / distance if distance else 0.0)
        for x, y, (more, rate) in zip(q, p, above, strict=True)
    ]


def sprinter_distance(q: Sequence[float], p: Sequence[float], fp: Rates) -> float:
    """Total variation of that distribution from p: the sum of fp(x) (q - p)+. With one rate, eta_fp TV(q, p) (Theorem 1)."""
    return sum(rate * more for more, rate in _above(q, p, fp))


def sprinter_acceptance(q: Sequence[float], p: Sequence[float], fp: Rates) -> float:
    """How often a drafted token is kept: 1 - sum (1 - fp(x)) (q - p)+.

    With one rate 1 - (1 - eta_fp) TV(q, p), Theorem 7; speculative decoding's at 0.
    """
    return 1.0 - sum((1.0 - rate) * more for more, rate in _above(q, p, fp))


def false_positive_rate(q: Sequence[float], p: Sequence[float], fp: Rates) -> float:
    """The one rate that Theorem 1 needs: the mean of fp(x) by the weights (q - p)+, and not by q.

    0 where q = p, of which every token is acceptable.

    See erratum SP-2, docs/papers/sprinter.md, Errata.
    """
    above = _above(q, p, fp)
    distance = sum(more for more, _ in above)
    return sum(rate * more for more, rate in above) / distance if distance else 0.0


def run_odds(k: int, n: int, eta_tp: float, eta_fp: float) -> float:
    """P(X = k), X tokens accepted by the verifier in a row, of which the first n are acceptable and no later one (Theorem 2).

    eta_tp^k (1 - eta_tp) for k < n, and eta_tp^n eta_fp^(k - n) (1 - eta_fp) from n on.
    """
    return eta_tp**k * (1.0 - eta_tp) if k < n else eta_tp**n * eta_fp ** (k - n) * (1.0 - eta_fp)


def expected_run(n: int, eta_tp: float, eta_fp: float) -> float:
    """E[X] = eta_tp (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n eta_fp / (1 - eta_fp), Theorem 2. Infinite at eta_fp = 1."""
    return expected_drafts(n, eta_tp, eta_fp) - 1.0


def expected_drafts(n: int, eta_tp: float, eta_fp: float, most: int | None = None) -> float:
    """E[X + 1], drafted tokens of a run, its last and rejected one included (Theorem 3); infinite at eta_fp = 1.

    (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n / (1 - eta_fp), the sum of P(X >= j). A run of `most` tokens ends there.
    """
    if most is not None:
        return sum(eta_tp ** min(j, n) * eta_fp ** max(j - n, 0) for j in range(most))
    reached = eta_tp**n
    rest = reached / (1.0 - eta_fp) if eta_fp < 1.0 else math.inf if reached else 0.0
    return sum(eta_tp**j for j in range(n)) + rest


def stopping_time(n: int, eta_tp: float, eta_fp: float, t_q: float, t_v: float = 0.0) -> float:
    """E[T_stop] = (t_q + t_v) E[X + 1], Theorem 3, in the unit of t_q and t_v, a draft's and the verifier's time a token.

    The paper neglects t_v. The target's forward is not in it: a whole run takes t_p more.
    """
    return (t_q + t_v) * expected_drafts(n, eta_tp, eta_fp)


def forward_flops(layers: int, s: int, d: int, heads: int, d_ff: int, vocabulary: int) -> float:
    """FLOPs of a forward over s positions, of hidden size d, by the paper's count (appendix A.8).

    A layer: 6 s d^2 queries, keys, values; 2 s^2 d scores; 3 heads s^2 softmax; 2 s^2 d values; 2 s d^2 output; 4 s d d_ff.
    Besides 2 s d |V| for the embedding, which is a look-up elsewhere, and as many for the logits.
    """
    layer = 6 * s * d**2 + 2 * s**2 * d + 3 * heads * s**2 + 2 * s**2 * d + 2 * s * d**2 + 4 * s * d * d_ff
    return float(layers * layer + 4 * s * d * vocabulary)


def speculative_flops(n: float, f_q: float, f_p: float, *, bonus: bool = False) -> float:
    """FLOPs of n drafted tokens by speculative decoding, n F_q + n F_p, and a position more of the target with a bonus.

    f_q and f_p are FLOPs of a position.
    """
    return n * f_q + (n + bonus) * f_p


def sprinter_flops(n: float, f_q: float, f_p: float, f_v: float = 0.0, *, read: float = 1.0) -> float:
    """FLOPs of a run of n drafted tokens, n (F_q + F_v) + F_p: the printed count, which has one position of the target.

    "8.3x fewer" is n = 20 and F_p / F_q = 12.5. But a target that keeps a cache must read all n: at read = n the saving is
    gone, for what SPRINTER saves is forwards, not positions.
    """
    return n * (f_q + f_v) + read * f_p


def sprinter(
    drafted: float, accepted: float, cost: Cost, baseline: float, *, gate: float = 0.0, bonus: bool = True
) -> float:
    """Long-run speedup of SPRINTER over a baseline that costs `baseline` per token.

    Model 0 drafts, model 1 is the target. `drafted` tokens, measured, go to a forward of the target, the last of them is
    tested and `accepted` at that rate; all are committed, that one or its replacement, and after an accepted one a bonus.
    The target reads all of them and one before, or one less if there is no bonus token. The draft reads two tokens after a
    bonus token. `gate` is what the verifier costs a token. Exact where the price of a block is linear in its length.

    See docs/papers/sprinter.md, Speedup with measured prices.
    """
    tokens, spent = drafted, drafted * (cost(0, 1) + gate)
    if bonus:
        tokens += accepted
        spent += accepted * (cost(0, 2) - cost(0, 1))
    return tokens * baseline / (spent + price(cost, 1, drafted + bonus))
