"""ROC analysis of acceptance scores: curve, area with a bootstrap interval over texts, and rates at a threshold."""

from typing import Any

import numpy as np

from specbench.config.construct import Table
from specbench.errors import ConfigError

DRAWS, LEVEL = 250, 95.0
Array = np.ndarray[Any, np.dtype[Any]]


def auc(scores: Array, labels: Array) -> float:
    """Return the area under the ROC curve: P(an acceptable token's score is above an unacceptable one's), ties counting
    half.

    NaN if one of both kinds is missing.
    """
    good = labels.astype(bool)
    if good.all() or not good.any():
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # mean rank of equals, from 1
    n = good.sum()
    return float((ranks[good].sum() - n * (n + 1) / 2) / (n * (len(good) - n)))


def auc_interval(scores: Array, labels: Array, texts: Array, seed: int = 0) -> tuple[float, float]:
    """Return a 95 % percentile bootstrap interval over texts; all rows of a text are drawn together."""
    rng = np.random.default_rng(seed)
    groups = [np.flatnonzero(texts == text) for text in np.unique(texts)]
    draws = []
    for _ in range(DRAWS):
        rows = np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))])
        draws.append(auc(scores[rows], labels[rows]))
    low, high = np.nanpercentile(draws, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)


def curve(scores: Array, labels: Array, points: int = 101) -> list[tuple[float, float]]:
    """Return (false-positive rate, true-positive rate) at evenly spread thresholds, from none accepted to all."""
    good = labels.astype(bool)
    cuts = np.quantile(scores, np.linspace(1, 0, points))
    inner = [(float((scores[~good] >= cut).mean()), float((scores[good] >= cut).mean())) for cut in cuts]
    return [(0.0, 0.0), *inner, (1.0, 1.0)]


def rates(scores: Array, labels: Array, threshold: float) -> dict[str, float]:
    """Return eta_TP and eta_FP at a threshold: how often acceptable and unacceptable tokens are accepted."""
    good, accepted = labels.astype(bool), scores >= threshold
    return {"eta_tp": float(accepted[good].mean()), "eta_fp": float(accepted[~good].mean())}


def summary(scores: Array, labels: Array, texts: Array, threshold: float) -> Table:
    """Return the AUC with its interval, the rates at the threshold, and the base rate of acceptable tokens.

    Raises ConfigError if all rows have the same label.
    """
    if labels.min() == labels.max():
        raise ConfigError("all drafted tokens of the test texts have the same label: collect more texts (-n)")
    low, high = auc_interval(scores, labels, texts)
    return {
        "auc": auc(scores, labels),
        "auc_low": low,
        "auc_high": high,
        **rates(scores, labels, threshold),
        "base_rate": float(labels.mean()),
        "rows": len(labels),
        "texts": len(np.unique(texts)),
    }
