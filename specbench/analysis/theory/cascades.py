"""SpecCascade: the speedup of a sequential cascade."""

from specbench.analysis.theory.speculation import Cost


def sequential_cascade(rate: float, cost: Cost, tokens: int = 1) -> float:
    """Return the speedup of a sequential cascade over its large model, 1 / (c + rate).

    `rate` is the share of positions, or of whole sequences, that are deferred. `tokens` is the number of tokens that a
    forward of the large model reads: all tokens since the last deferral.

    See docs/papers/speccascade.md, Speedup.
    """
    return cost(1, 1) / (cost(0, 1) + rate * cost(1, tokens))
