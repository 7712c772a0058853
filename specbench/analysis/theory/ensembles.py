"""Speculative Ensemble: its exact long-run speedup, and what its paper says of it."""

from collections.abc import Sequence

from specbench.analysis.theory.speculation import Cost

NEGLIGIBLE = 1e-12
MOST_TOKENS = 20_000  # a run without rejections is followed so far


def speculative_ensemble(a: Sequence[float], gamma: Sequence[int], cost: Cost) -> float:
    """Exact long-run speedup of Speculative Ensemble over the sequential ensemble, n models.

    a[i] is the acceptance rate of model i's proposals. After every rejection all models lack the same one token and model 0
    starts afresh, so runs between rejections are independent and alike; and as long as nothing is rejected, the algorithm
    takes one fixed course. Following that course, each forward weighted by the odds that the run gets so far, gives the
    expected tokens and the expected cost of a run. For n = 2 it equals the closed form of three cycle types.

    See docs/papers/speculative-ensemble.md, Long-run speedup.
    """
    n = len(a)
    pending: list[int] = []  # owners of B
    scored = [0] * n  # |C_i|
    alive, tokens, spent = 1.0, 0.0, 0.0

    def draw(i: int) -> None:
        nonlocal spent
        spent += alive * cost(i, len(pending) - scored[i] + 1)  # what it has not read of B, and one token before
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
    """The acceptance rate, the same for all models, at which `speculative_ensemble` predicts a speedup.

    What a paper that prints speedups alone must have had, by its own model. Raises ValueError where no rate gives it.
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
    """SE's Theorem 3.6 as printed: one q-cycle that follows a p-cycle. Not the long-run speedup.

    See erratum SE-4, docs/papers/speculative-ensemble.md, Errata.
    """
    tokens = sum(a**j for j in range(gamma_q))  # (1 - a^gamma_q) / (1 - a)
    return tokens * (1 + c) / (1 + c * gamma_q - a**gamma_p * c)


def never_slower(a_q: float, a_p: float, c: float) -> float:
    """SE's Corollary 3.7, the long-run speedup at draft lengths of 1: (1 + c) / (1 + c - P - Q c), at least 1."""
    p, q = (
        a_q / (1 + a_q),
        a_q * a_p / (1 + a_q),
    )  # shares of the cycles in which p, and q, proposes with a token pending
    return (1 + c) / (1 + c - p - q * c)


def least_acceptance(weight: float) -> float:
    """SE's Theorem 3.2: proposals of a model of this weight in a mixture are accepted at least as often. Equal iff supports
    are disjoint."""
    return weight


def mixture_acceptance(weight: float, distance: float) -> float:
    """How often a two-model mixture accepts the proposals of the model of this weight, 1 - (1 - w) TV(q, p).

    See docs/papers/speculative-ensemble.md, Acceptance rate.
    """
    return 1.0 - (1.0 - weight) * distance


def better_proposer(weight_q: float) -> str:
    """SE's Corollary 3.3, for models that cost alike: `q` or `p`, the heavier, whose acceptance is at least 1/2."""
    return "q" if weight_q >= 0.5 else "p"


def useful_proposer(weight_q: float, c: float) -> str:
    """SE's Corollary 3.5: the model, `q` or `p`, whose weight alone makes naive speculation by two tokens no slower.

    Swapping the models turns c into 1/c and the weight into the rest, so one of them always is; at weight_q = c / (1 + c)
    both are.
    """
    return "q" if weight_q >= least_useful_acceptance(c) else "p"


def least_useful_acceptance(c: float) -> float:
    """SE's Corollary 3.4: with two drafted tokens naive speculation is faster iff a > c / (1 + c).

    By Theorem 3.2 a weight above it will do.
    """
    return c / (1 + c)
