"""The distributions that tokens may follow: one, or all within a tolerance of the reference."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Allowed(NamedTuple):
    """The reference distribution of each token, and bounds of the weights around it.

    Args:
        pi: The reference distributions, (m, V), float64.
        low: Lower bounds of unnormalized weights, (m, V); 0 where a token may be filtered out.
        high: Upper bounds, (m, V); 0 where a token is impossible.
    """

    pi: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def exactly(cls, pi: Tensor) -> "Allowed":
        """Return the distributions pi (m, V) alone, without a tolerance."""
        return cls(pi, pi, pi)

    @property
    def is_exact(self) -> bool:
        """Whether there is no tolerance."""
        return self.low is self.pi and self.high is self.pi

    def part(self, rows: slice | Tensor) -> "Allowed":
        """Return some of the rows."""
        if self.is_exact:
            return Allowed.exactly(self.pi[rows])
        return Allowed(self.pi[rows], self.low[rows], self.high[rows])


class Ordered(NamedTuple):
    """Bounds of weights in an order of tokens, in which a quantity falls.

    The largest mean of that quantity is a ratio of linear functions of the weights. At its maximum, the first tokens have
    their upper bounds, and the others their lower bounds.

    Args:
        order: The tokens in order, (m, K).
        low: Lower bounds in that order, (m, K).
        extra: Upper minus lower bounds, (m, K).
        weights: The sum of all weights if the first tokens, up to each one, have their upper bounds, (m, K).
    """

    order: Tensor
    low: Tensor
    extra: Tensor
    weights: Tensor

    @classmethod
    def of(cls, within: Allowed, key: Tensor) -> "Ordered":
        """Return the bounds in the order of a falling key (m, K)."""
        order = key.argsort(dim=-1, descending=True)
        low = within.low.gather(-1, order)
        extra = within.high.gather(-1, order) - low
        return cls(order, low, extra, low.sum(-1, keepdim=True) + extra.cumsum(-1))

    def flipped(self) -> "Ordered":
        """Return the bounds in the opposite order."""
        order, low, extra = self.order.flip(-1), self.low.flip(-1), self.extra.flip(-1)
        return Ordered(order, low, extra, low.sum(-1, keepdim=True) + extra.cumsum(-1))

    def largest_mean(self, values: Tensor) -> Tensor:
        """Return the largest mean, (m,), of values (m, K) of tokens, which fall in this order."""
        values = values.gather(-1, self.order)
        sums = (self.low * values).sum(-1, keepdim=True) + (self.extra * values).cumsum(-1)
        return torch.where(self.weights > 0.0, sums / self.weights.clamp_min(1e-300), 0.0).max(-1).values


def largest_expectations(g: Tensor, factors: Sequence[float], within: Allowed) -> Tensor:
    """Return the logarithm of the largest expectation of exp(factor * g) over the allowed distributions, (factors, m)."""
    if within.is_exact:
        return torch.stack([(within.pi * (factor * g).exp()).sum(-1).log() for factor in factors])
    falling = Ordered.of(within, g)
    rising = falling.flipped()
    return torch.stack(
        [(falling if factor > 0.0 else rising).largest_mean((factor * g).exp()).log() for factor in factors]
    )
