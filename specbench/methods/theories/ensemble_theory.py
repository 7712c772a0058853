"""Speculative Ensemble. See docs/papers/speculative-ensemble.md."""

from collections import defaultdict
from collections.abc import Sequence

from specbench.analysis.formula import Rates, formula
from specbench.analysis.theory import RoundCounts
from specbench.decoding.traits import Theory

NEGLIGIBLE = 1e-12  # probability of a run at which it is no longer followed
MOST_TOKENS = 20_000  # the longest run without rejections that is followed


def speculative_ensemble(a: Sequence[float], gamma: Sequence[int]) -> RoundCounts:
    """Return the exact counts of Speculative Ensemble, of a run of cycles between two rejections.

    a[i] is the acceptance rate of model i's proposals. After every rejection, each model has one unread token and model 0
    proposes again. So runs between rejections are independent and identically distributed, and without a rejection the
    sequence of forwards is fixed. Weighting each forward by the probability that a run reaches it gives the expected tokens
    and forwards of a run. For two models the speedup equals the closed form with three types of cycles.

    See docs/papers/speculative-ensemble.md, Long-run speedup.
    """
    n = len(a)
    pending: list[int] = []  # owners of B
    scored = [0] * n  # |C_i|
    alive, tokens = 1.0, 0.0
    forwards: list[dict[int, float]] = [defaultdict(float) for _ in range(n)]

    def draw(i: int) -> None:
        forwards[i][len(pending) - scored[i] + 1] += alive  # reads the unread tokens of B, and one token before
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
    return RoundCounts(tokens, forwards)


def alternate_proposal(a: float, gamma_q: int, gamma_p: int, c: float) -> float:
    """Return the speedup of Theorem 3.6 as printed: one q-cycle that follows a p-cycle. It is not the long-run speedup.

    See erratum SE-4, docs/papers/speculative-ensemble.md, Errata.
    """
    tokens = sum(a**j for j in range(gamma_q))  # (1 - a^gamma_q) / (1 - a)
    return tokens * (1 + c) / (1 + c * gamma_q - a**gamma_p * c)


def _alternate_proposal(method: Theory, rates: Rates, cost_ratio: float) -> float | None:
    """Return the paper's speedup of two models; None for more."""
    if len(method.models) != 2:
        return None
    rate = rates.by_model().get(method.models[0], rates.overall())
    return None if rate is None else alternate_proposal(rate, method.gamma[0], method.gamma[1], cost_ratio)


@formula("ensemble", papers=_alternate_proposal)
def ensemble(method: Theory, rates: Rates) -> RoundCounts | None:
    """Return the counts of Speculative Ensemble, from the acceptance by model."""
    by_model, overall = rates.by_model(), rates.overall()
    if overall is None:
        return None
    return speculative_ensemble([by_model.get(role, overall) for role in method.models], method.gamma)
