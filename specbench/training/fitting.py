"""Fitting of a small module to rows in memory: minibatches, Adam, and the epoch with the lowest validation loss."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.training.recipes import Recipe

FALLING = 0.01  # relative decrease of a validation loss that counts as falling
Score = Callable[[Tensor], Tensor]  # inputs (n, ...) -> logits (n,)


def loss_of(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Return the weighted binary cross-entropy of logits (n,) and labels (n,) in [0, 1], which may be soft."""
    accept, reject = F.logsigmoid(logits), F.logsigmoid(-logits)
    return -(labels * accept + reject_weight * (1.0 - labels) * reject).mean()


def error_rate(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Return the share of wrong decisions at a threshold of one half: 1 - accuracy, by which SPRINTER's authors stop."""
    return ((logits >= 0.0) != labels.bool()).double().mean()


def fit(
    module: nn.Module,
    score: Score,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    recipe: Recipe,
    validate: Callable[[Tensor, Tensor, float], Tensor] = loss_of,
) -> list[float]:
    """Fit in place to (inputs, labels), and keep the weights of the epoch with the lowest validation loss. Returns the
    validation losses, or the values of another `validate`.

    "Early stopping" as SPRINTER's authors have it, but on a validation set.
    """
    with _one_thread():  # a step is too small to parallelize
        inputs, labels = train
        generator = torch.Generator().manual_seed(recipe.seed)
        optimizer = torch.optim.Adam(module.parameters(), lr=recipe.rate, fused=True)
        best, kept, losses = math.inf, copy.deepcopy(module.state_dict()), []
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
                best, kept = losses[-1], copy.deepcopy(module.state_dict())
            elif epoch - losses.index(min(losses)) >= recipe.patience:
                break
        module.load_state_dict(kept)
        return losses


def outcome(losses: Sequence[float], recipe: Recipe) -> Table:
    """Return for a report how a fit ended: the number of epochs, the lowest validation loss, `ended`, what ended it
    (`validation` or `epochs`), and `falling`, whether the validation loss was still falling.
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


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread within this context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
