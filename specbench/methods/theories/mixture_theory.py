"""The mixture-model-like ensemble: a model drawn by its weight writes each token."""

from collections.abc import Sequence
from math import ceil, log

from specbench.analysis.formula import Rates, formula
from specbench.analysis.theory import RoundCounts
from specbench.decoding.traits import Theory

REST, LARGEST_READ = 1e-3, 64  # of a distribution of read tokens: probability of the last size, and the size


def drawn_model(weights: Sequence[float]) -> RoundCounts:
    """Return the counts of a token that one model writes, model i with probability weights[i].

    The model reads what was written since it was drawn before: k tokens with probability w (1 - w)^(k - 1). So its forward
    reads 1 / w tokens on average, and the last size holds what is left of the distribution.
    """
    forwards = []
    for weight in weights:
        last = min(LARGEST_READ, max(ceil(log(REST) / log(1.0 - weight)), 1)) if 0.0 < weight < 1.0 else 1
        sizes = {k: weight * weight * (1.0 - weight) ** (k - 1) for k in range(1, last)} if weight else {}
        forwards.append(sizes | ({last: weight * (1.0 - weight) ** (last - 1)} if weight else {}))
    return RoundCounts(1.0, forwards)


@formula("drawn model")
def tokens_of_drawn_models(method: Theory, rates: Rates) -> RoundCounts:
    """Return the counts of a token, from the weights of the models."""
    weights = method.parameters or {}
    return drawn_model([weights[role] for role in method.models])
