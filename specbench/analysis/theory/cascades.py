"""Cascades: how often they reject, what a plug-in rule may lose, and what a sequential one gains."""

from collections.abc import Sequence

from specbench.analysis.theory.speculation import Cost


def rejection(defers: Sequence[bool], distances: Sequence[float]) -> float:
    """SpecCascade's Lemma 3: how often a cascade rejects a drafted token, the mean over positions of delta TV(q, p)."""
    return sum(d * tv for d, tv in zip(defers, distances, strict=True)) / len(distances)


def regret_bound(truth: Sequence[float], q: Sequence[float], p: Sequence[float]) -> float:
    """SpecCascade's Lemma 5: the OPT plug-in's regret against the best rule that knows the truth, at a position:
    max |P - q| + max |P - p|."""
    return max(abs(t - x) for t, x in zip(truth, q, strict=True)) + max(
        abs(t - x) for t, x in zip(truth, p, strict=True)
    )


def sequential_cascade(rate: float, cost: Cost, tokens: int = 1) -> float:
    """Speedup over the large model of a sequential cascade that defers at this rate, 1 / (c + rate).

    The rate is of positions, or of whole sequences. `tokens` is what the large model reads in a forward: all that were kept
    since it was last asked.

    See docs/papers/speccascade.md, Speedup.
    """
    return cost(1, 1) / (cost(0, 1) + rate * cost(1, tokens))
