"""Speculative Ensemble: its exact long-run speedup, and the one that its paper states."""

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


def alternate_proposal(a: float, gamma_q: int, gamma_p: int, c: float) -> float:
    """Return the speedup of Theorem 3.6 as printed: one q-cycle that follows a p-cycle. It is not the long-run speedup.

    See erratum SE-4, docs/papers/speculative-ensemble.md, Errata.
    """
    tokens = sum(a**j for j in range(gamma_q))  # (1 - a^gamma_q) / (1 - a)
    return tokens * (1 + c) / (1 + c * gamma_q - a**gamma_p * c)
