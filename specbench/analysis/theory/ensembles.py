"""Speculative Ensemble: its exact long-run speedup, and the statements of its paper."""

from collections.abc import Sequence

from specbench.analysis.theory.speculation import Cost

NEGLIGIBLE = 1e-12
MOST_TOKENS = 20_000  # the longest run without rejections that is followed


def speculative_ensemble(a: Sequence[float], gamma: Sequence[int], cost: Cost) -> float:
    """Return the exact long-run speedup of Speculative Ensemble over the sequential ensemble of the same models.

    a[i] is the acceptance rate of model i's proposals. After every rejection, all models lack one token and model 0 proposes
    again. So runs between rejections are independent and identically distributed, and without a rejection the sequence of
    forwards is fixed. Weighting each forward by the probability that a run reaches it gives the expected tokens and the
    expected cost of a run. For two models the result equals the closed form with three types of cycles.

    See docs/papers/speculative-ensemble.md, Long-run speedup.
    """
    n = len(a)
    pending: list[int] = []  # owners of B
    scored = [0] * n  # |C_i|
    alive, tokens, spent = 1.0, 0.0, 0.0

    def draw(i: int) -> None:
        nonlocal spent
        spent += alive * cost(i, len(pending) - scored[i] + 1)  # the unread tokens of B, and one token before
        pending.append(i)
        scored[i] = len(pending)

    while alive > NEGLIGIBLE and tokens < MOST_TOKENS:
        i = min(range(n), key=lambda j: scored[j])
        draw(i)
        ready = min(scored)
        for _ in range(ready):
            tokens += alive
            alive *= a[pending.pop(0)]
        scored = [have - ready for have in scored]
        for _ in range(gamma[i] - 1):
            draw(i)
    return sum(cost(i, 1) for i in range(n)) * tokens / spent


def acceptance_of(speedup: float, gamma: Sequence[int], cost: Cost) -> float:
    """Return the acceptance rate, equal for all models, at which `speculative_ensemble` predicts a given speedup.

    Raises ValueError if no rate gives it.
    """
    low, high = 0.0, 1.0

    def predicted(a: float) -> float:
        return speculative_ensemble([a] * len(gamma), gamma, cost)

    if not predicted(low) <= speedup <= predicted(high):
        raise ValueError(f"a speedup of {speedup} is not between {predicted(low):.2f} and {predicted(high):.2f}")
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if predicted(middle) > speedup else (middle, high)
    return (low + high) / 2


def alternate_proposal(a: float, gamma_q: int, gamma_p: int, c: float) -> float:
    """Return the speedup of Theorem 3.6 as printed: one q-cycle that follows a p-cycle. It is not the long-run speedup.

    See erratum SE-4, docs/papers/speculative-ensemble.md, Errata.
    """
    tokens = sum(a**j for j in range(gamma_q))  # (1 - a^gamma_q) / (1 - a)
    return tokens * (1 + c) / (1 + c * gamma_q - a**gamma_p * c)


def never_slower(a_q: float, a_p: float, c: float) -> float:
    """Return the long-run speedup at draft lengths of 1 (SE, Corollary 3.7): (1 + c) / (1 + c - P - Q c), at least 1."""
    # Shares of cycles in which p, and q, proposes with a pending token
    p, q = (
        a_q / (1 + a_q),
        a_q * a_p / (1 + a_q),
    )
    return (1 + c) / (1 + c - p - q * c)


def least_acceptance(weight: float) -> float:
    """Return the least acceptance rate of the proposals of a model with this weight in a mixture (SE, Theorem 3.2).

    It is attained if and only if the supports are disjoint.
    """
    return weight


def mixture_acceptance(weight: float, distance: float) -> float:
    """Return the acceptance rate of the proposals of a model with this weight in a mixture of two: 1 - (1 - w) TV(q, p).

    See docs/papers/speculative-ensemble.md, Acceptance rate.
    """
    return 1.0 - (1.0 - weight) * distance


def better_proposer(weight_q: float) -> str:
    """Return the better proposer, `q` or `p`, of two models of equal cost: the one with more weight (SE, Corollary 3.3)."""
    return "q" if weight_q >= 0.5 else "p"


def useful_proposer(weight_q: float, c: float) -> str:
    """Return the proposer, `q` or `p`, with which naive speculation by two tokens is never slower (SE, Corollary 3.5).

    There is always one, because swapping the models turns c into 1 / c and the weight into 1 - weight. At
    weight_q = c / (1 + c) both qualify.
    """
    return "q" if weight_q >= least_useful_acceptance(c) else "p"


def least_useful_acceptance(c: float) -> float:
    """Return the acceptance rate above which naive speculation by two tokens is faster (SE, Corollary 3.4): c / (1 + c).

    By Theorem 3.2, a larger weight is sufficient.
    """
    return c / (1 + c)
