"""Near-ties of greedy decoding: how far a token is from being the one that a target chooses, and what rounding explains."""

from collections.abc import Mapping

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Target

ROUNDINGS = {
    torch.float32: 32.0,
    torch.bfloat16: 2.0,
    torch.float16: 4.0,
}  # rounding error of a logit after a whole model, in units of eps
FARTHEST = 64.0  # logits; a token that is not chosen after such an increase never is
HALVINGS = 30  # of the interval that contains the gap


def gaps(target: Target, logits: list[Tensor], tokens: list[int]) -> Tensor:
    """Return the increase of each token's logit, in every model, at which greedy decoding would choose it: (m,).

    0 where it is already chosen, inf where no increase suffices. For one model this is the gap to its largest logit;
    for a deferral rule it also measures how close the rule was to choosing the other model.
    """
    x = torch.tensor(tokens, device=logits[0].device).unsqueeze(-1)  # (m, 1)
    greedy = Sampler(0.0)

    def is_chosen(raised: Tensor) -> Tensor:
        """Return whether x is chosen with `raised` (m, 1) added to its logits: (m, 1), bool."""
        there = [each.double().scatter_add(-1, x, raised) for each in logits]
        return target(there, greedy).gather(-1, x) > 0.0

    low = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    high = low + FARTHEST
    at_once = is_chosen(low)
    if bool(at_once.all()):
        return low.squeeze(-1)
    ever = is_chosen(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = is_chosen(middle)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    gap = torch.where(ever, high, torch.inf)
    return torch.where(at_once, 0.0, gap).squeeze(-1)


def allowed(logits: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the gap (m,) that rounding in this dtype can cause between two computations of the same logits.

    Tokens that a model lacks do not count.
    """
    known = [each.masked_fill(each == -torch.inf, 0.0) for each in logits.values()]
    largest = torch.stack([each.abs().amax(-1) for each in known]).amax(0)
    return ROUNDINGS[dtype] * torch.finfo(dtype).eps * largest.double()


def wrong_tokens(target: Target, logits: Mapping[str, Tensor], tokens: list[int], dtype: torch.dtype) -> int:
    """Return how many tokens are not the target's greedy choice, and not near-ties of it either.

    Args:
        target: The target of the declared distribution.
        logits: The logits (m, V) of each scorer at the m tokens, by role.
        tokens: The m tokens.
        dtype: The least precise dtype among the models.
    """
    return int((gaps(target, list(logits.values()), tokens) > allowed(logits, dtype)).sum())
