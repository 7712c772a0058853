"""Target distributions pi = T(p_1, ..., p_n), computed from the models' logits, and checks of greedy tokens against them.

A target takes the models' raw logits in the order in which a method names its models (small before large), each (k, V),
and returns a distribution (k, V).
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.sampling import Sampler
from specbench.errors import PluginError, short_repr

ROUNDINGS = {
    torch.float32: 32.0,
    torch.bfloat16: 2.0,
    torch.float16: 4.0,
}  # rounding error of a logit after a whole model, in units of eps
FARTHEST = 64.0  # logits; a token that is not chosen after such an increase never is
HALVINGS = 30  # of the interval that contains the gap


class Target(Named):
    """Computes pi from n models' logits, which are -inf for tokens that a model lacks.

    A target that combines logits is undefined for such tokens, so it is computed over the tokens that all models share.
    """

    combines_logits: ClassVar[bool] = False
    is_one_hot_when_greedy: ClassVar[bool] = True  # whether pi at T = 0 has a single token
    is_last_when_greedy: ClassVar[bool] = (
        False  # whether pi at T = 0 is the last model's, so that a method is lossless there
    )

    def check(self, n: int) -> None:
        """Raise ValueError if this target cannot combine n models. Methods call it when they are constructed."""
        if n < 1:
            raise ValueError("a target needs at least one model")

    @abstractmethod
    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        """Return pi (k, V) from n logits (k, V)."""

    def with_deferral(self, logits: list[Tensor], sampler: Sampler) -> tuple[Tensor, Tensor | None]:
        """Return pi (k, V), and whether a rule deferred to the large model (k,), bool; None for targets without a rule."""
        return self(logits, sampler), None

    def distributions(self, logits: list[Tensor], sampler: Sampler) -> tuple[Tensor, Tensor | None]:
        """Return what `with_deferral` returns. Raises PluginError if pi does not have the shape of the logits."""
        pi, deferred = self.with_deferral(logits, sampler)
        if getattr(pi, "shape", None) != logits[-1].shape:
            shape = tuple(logits[-1].shape)
            raise PluginError(f"target '{self.name}' returned {short_repr(pi)}, which is not a tensor of shape {shape}")
        return pi, deferred


class TwoModels(Target):
    """A target of a small and a large model."""

    def check(self, n: int) -> None:
        if n != 2:
            raise ValueError(f"target '{self.name}' takes a small and a large model, not {n} models")


@dataclass(frozen=True, kw_only=True)
class Last(Target, name="last"):
    """p_n: the last model's own distribution, as in speculative decoding."""

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        return sampler.probs(logits[-1])


def gaps(target: Target, logits: list[Tensor], tokens: list[int]) -> Tensor:
    """Return the increase of each token's logit, in every model, at which greedy decoding would choose it: (m,).

    0 if the token is already chosen, inf if no increase suffices. For one model this is the gap to its largest logit;
    for a deferral rule it also measures how close the rule was to choosing the other model.
    """
    x = torch.tensor(tokens, device=logits[0].device).unsqueeze(-1)  # (m, 1)
    greedy = Sampler(0.0)

    def is_chosen(raised: Tensor) -> Tensor:
        """Return whether x is chosen with `raised` (m, 1) added to its logits: (m, 1), bool."""
        there = [model_logits.double().scatter_add(-1, x, raised) for model_logits in logits]
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


def rounding_gap(logits: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the gap (m,) that rounding in this dtype can cause between two computations of the same logits.

    Tokens that a model lacks are ignored.
    """
    finite = [model_logits.masked_fill(model_logits == -torch.inf, 0.0) for model_logits in logits.values()]
    largest = torch.stack([finite_logits.abs().amax(-1) for finite_logits in finite]).amax(0)
    return ROUNDINGS[dtype] * torch.finfo(dtype).eps * largest.double()


def wrong_tokens(target: Target, logits: Mapping[str, Tensor], tokens: list[int], dtype: torch.dtype) -> int:
    """Return how many tokens are neither the target's greedy choice nor a near-tie of it.

    Args:
        target: The target of the declared distribution.
        logits: The logits (m, V) of each scorer at the m tokens, by role.
        tokens: The m tokens.
        dtype: The least precise dtype among the models.
    """
    return int((gaps(target, list(logits.values()), tokens) > rounding_gap(logits, dtype)).sum())
