"""Cascades: the rejection rate, the regret bound of a plug-in rule, and the speedup of a sequential cascade."""

from collections.abc import Sequence

from specbench.analysis.theory.speculation import Cost


def rejection(defers: Sequence[bool], distances: Sequence[float]) -> float:
    """Return the share of drafted tokens that a cascade rejects.

    (SpecCascade, Lemma 3): the mean over positions of delta TV(q, p).
    """
    return sum(d * tv for d, tv in zip(defers, distances, strict=True)) / len(distances)


def regret_bound(truth: Sequence[float], q: Sequence[float], p: Sequence[float]) -> float:
    """Return the bound of the OPT plug-in's regret against the best rule that knows the truth, at one position.

    It is max |P - q| + max |P - p| (SpecCascade, Lemma 5).
    """
    return max(abs(t - x) for t, x in zip(truth, q, strict=True)) + max(
        abs(t - x) for t, x in zip(truth, p, strict=True)
    )


def sequential_cascade(rate: float, cost: Cost, tokens: int = 1) -> float:
    """Return the speedup of a sequential cascade over its large model, 1 / (c + rate).

    `rate` is the share of positions, or of whole sequences, that are deferred. `tokens` is the number of tokens that a
    forward of the large model reads: all tokens since the last deferral.

    See docs/papers/speccascade.md, Speedup.
    """
    return cost(1, 1) / (cost(0, 1) + rate * cost(1, tokens))
