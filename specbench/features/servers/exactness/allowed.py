"""The distributions that a server may sample from if its logits deviate from the reference's by at most a given amount.

Two builds of one model never have equal logits. If each logit deviates by at most d, the weight of a token at temperature T
is within the factors exp(-d / T) and exp(d / T) of the reference's, and a token near the boundary of a filter may be kept or
removed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.features.servers.served import ServedSampling


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

    def part(self, rows: slice | Tensor) -> "Allowed":
        """Return some of the rows."""
        return Allowed(self.pi[rows], self.low[rows], self.high[rows])


def allowed(logits: Tensor, sampling: ServedSampling, deviation: float) -> Allowed:
    """Return the allowed distributions of tokens whose reference logits are (m, V), at a temperature above 0.

    Filters follow each other as in `ServedSampling`. `deviation` is in logits, before the temperature.
    """
    scores, order = (logits.double() / sampling.temperature).sort(dim=-1, descending=True, stable=True)  # (m, V)
    d = deviation / sampling.temperature
    exact = scores.softmax(-1)
    low, high = exact * math.exp(-d), exact * math.exp(d)
    keep = torch.ones_like(exact, dtype=torch.bool)
    # tokens that surely precede each token, and those that possibly do, itself included
    above = torch.searchsorted(-scores, -(scores + 2.0 * d), right=False)
    around = torch.searchsorted(-scores, -(scores - 2.0 * d), right=True)
    if sampling.min_p:
        margin = scores - scores[:, :1] - math.log(sampling.min_p)
        keep &= margin >= 0.0
        low, high = _cut(low, high, margin >= 2.0 * d, margin < -2.0 * d)
    if sampling.top_k:
        surely, possibly = _before(low > 0, above), _before(high > 0, around) - 1
        rank = _before(keep, torch.arange(keep.shape[-1]).expand_as(above))
        keep &= rank < sampling.top_k
        low, high = _cut(low, high, possibly < sampling.top_k, surely >= sampling.top_k)
    if sampling.top_p < 1.0:
        kept = exact * keep
        before = (kept.cumsum(-1) - kept) / kept.sum(-1, keepdim=True)
        keep &= before < sampling.top_p
        low_above, high_above = _before(low, above), _before(high, above)
        least = low_above / (low_above + high.sum(-1, keepdim=True) - high_above).clamp_min(1e-300)
        high_around, low_around = _before(high, around) - high, _before(low, around) - low
        most = high_around / (high_around + low.sum(-1, keepdim=True) - low_around).clamp_min(1e-300)
        low, high = _cut(low, high, most < sampling.top_p, least >= sampling.top_p)
    pi = exact * keep
    pi = pi / pi.sum(-1, keepdim=True)
    back = order.argsort(dim=-1)
    return Allowed(pi.gather(-1, back), low.gather(-1, back), high.gather(-1, back))


def _before(values: Tensor, count: Tensor) -> Tensor:
    """Return for each entry the sum of the first `count` values of its row."""
    sums = torch.nn.functional.pad(values.double().cumsum(-1), (1, 0))
    return sums.gather(-1, count)


def _cut(low: Tensor, high: Tensor, surely_in: Tensor, surely_out: Tensor) -> tuple[Tensor, Tensor]:
    return low * surely_in, high * ~surely_out


def largest_expectations(g: Tensor, factors: Sequence[float], within: Allowed) -> Tensor:
    """Return the logarithm of the largest expectation of exp(factor * g) over the allowed distributions, (factors, m).

    The expectation is a ratio of linear functions of the weights, so at its maximum the tokens with the largest exponents
    have their upper bounds, and the others their lower bounds.
    """
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
