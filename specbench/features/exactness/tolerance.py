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


def largest_expectations(g: Tensor, factors: Sequence[float], within: Allowed) -> Tensor:
    """Return the logarithm of the largest expectation of exp(factor * g) over the allowed distributions, (factors, m).

    The expectation is a ratio of linear functions of the weights, so at its maximum the tokens with the largest exponents
    have their upper bounds, and the others their lower bounds.
    """
    if within.is_exact:
        return torch.stack([(within.pi * (factor * g).exp()).sum(-1).log() for factor in factors])
    values, order = g.sort(dim=-1, descending=True)
    high, low = within.high.gather(-1, order), within.low.gather(-1, order)
    turned = values.flip(-1), high.flip(-1), low.flip(-1)
    return torch.stack(
        [
            _largest(factor * values, high, low) if factor > 0 else _largest(factor * turned[0], *turned[1:])
            for factor in factors
        ]
    )


def _largest(exponents: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return the logarithm of the largest expectation, (m,), of exponents (m, K) in descending order."""
    values = exponents.exp()
    weights = low.sum(-1, keepdim=True) + (high - low).cumsum(-1)  # the first tokens have their upper bounds
    sums = (low * values).sum(-1, keepdim=True) + ((high - low) * values).cumsum(-1)
    return torch.where(weights > 0.0, sums / weights.clamp_min(1e-300), 0.0).max(-1).values.log()
