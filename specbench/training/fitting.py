"""Fitting of a small module to rows in memory, by minibatches, Adam and early stopping, and ROC analysis of its scores."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.machine.threads import using
from specbench.training.recipes import Recipe

FALLING = 0.01  # relative decrease of a validation loss that counts as falling
ScoreFunction = Callable[[Tensor], Tensor]  # inputs (n, ...) -> logits (n,)
DRAWS, LEVEL = 250, 95.0
Array = np.ndarray[Any, np.dtype[Any]]


def loss_of(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Return the weighted binary cross-entropy of logits (n,) and labels (n,) in [0, 1], which may be soft."""
    accept, reject = F.logsigmoid(logits), F.logsigmoid(-logits)
    return -(labels * accept + reject_weight * (1.0 - labels) * reject).mean()


def error_rate(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Return the share of wrong decisions at a threshold of one half: 1 - accuracy, by which SPRINTER's authors stop."""
    return ((logits >= 0.0) != labels.bool()).double().mean()


def fit(
    module: nn.Module,
    score: ScoreFunction,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    recipe: Recipe,
    validate: Callable[[Tensor, Tensor, float], Tensor] = loss_of,
) -> list[float]:
    """Fit in place to (inputs, labels), and keep the weights of the epoch with the lowest validation loss.

    Returns the value of `validate` after each epoch, by default the validation loss.

    "Early stopping" as SPRINTER's authors have it, but on a validation set.
    """
    with using(1):  # a step is too small to parallelize
        inputs, labels = train
        generator = torch.Generator().manual_seed(recipe.seed)
        optimizer = torch.optim.Adam(module.parameters(), lr=recipe.rate, fused=True)
        best, weights, losses = math.inf, copy.deepcopy(module.state_dict()), []
        for epoch in range(recipe.epochs):
            if recipe.cosine:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.rate * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
            order = torch.randperm(len(inputs), generator=generator)
            for part in torch.split(order, recipe.batch):
                loss = loss_of(score(inputs[part]), labels[part], recipe.reject_weight)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                optimizer.step()
            with torch.no_grad():
                losses.append(float(validate(score(validation[0]), validation[1], recipe.reject_weight)))
            if losses[-1] < best:
                best, weights = losses[-1], copy.deepcopy(module.state_dict())
            elif epoch - losses.index(min(losses)) >= recipe.patience:
                break
        module.load_state_dict(weights)
        return losses


def outcome(losses: Sequence[float], recipe: Recipe) -> Table:
    """Return for a report how a fit ended.

    The report has the number of epochs, the lowest validation loss, `ended`: what ended the fit (`validation` or
    `epochs`), and `falling`: whether the validation loss was still falling.
    """
    by_epochs = len(losses) == recipe.epochs and recipe.epochs - 1 - losses.index(min(losses)) < recipe.patience
    return {
        "epochs": len(losses),
        "validation_loss": min(losses),
        "ended": "epochs" if by_epochs else "validation",
        "falling": is_falling(min(losses[:-1], default=math.inf), losses[-1]) if len(losses) > 1 else None,
    }


def is_falling(before: float, last: float) -> bool:
    """Return whether a validation loss has decreased by more than FALLING of its value."""
    return last < (1.0 - FALLING) * before


# ROC analysis of acceptance scores: curve, area with a bootstrap interval over texts, and rates at a threshold


def auc(scores: Array, labels: Array) -> float:
    """Return the area under the ROC curve.

    It is P(an acceptable token's score is above an unacceptable one's), with ties counting half. NaN if all
    labels are equal.
    """
    good = labels.astype(bool)
    if good.all() or not good.any():
        return float("nan")
    _, positions, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[positions]  # mean rank of equals, from 1
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


def roc_curve(scores: Array, labels: Array, points: int = 101) -> list[tuple[float, float]]:
    """Return (false-positive rate, true-positive rate) at evenly spread thresholds, from none accepted to all."""
    good = labels.astype(bool)
    cuts = np.quantile(scores, np.linspace(1, 0, points))
    inner = [(float((scores[~good] >= cut).mean()), float((scores[good] >= cut).mean())) for cut in cuts]
    return [(0.0, 0.0), *inner, (1.0, 1.0)]


def roc_rates(scores: Array, labels: Array, threshold: float) -> dict[str, float]:
    """Return eta_TP and eta_FP at a threshold: how often acceptable and unacceptable tokens are accepted."""
    good, accepted = labels.astype(bool), scores >= threshold
    return {"eta_tp": float(accepted[good].mean()), "eta_fp": float(accepted[~good].mean())}


def roc_summary(scores: Array, labels: Array, texts: Array, threshold: float) -> Table:
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
        **roc_rates(scores, labels, threshold),
        "base_rate": float(labels.mean()),
        "rows": len(labels),
        "texts": len(np.unique(texts)),
    }
