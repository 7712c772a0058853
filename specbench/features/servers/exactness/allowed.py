"""The distributions that a server may sample from if its logits deviate from the reference's by at most a given amount.

Two builds of one model never have equal logits. If each logit deviates by at most d, the weight of a token at temperature T
is within the factors exp(-d / T) and exp(d / T) of the reference's, and a token near the boundary of a filter may be kept or
removed.
"""

import math

import torch
from torch import Tensor

from specbench.features.exactness.tolerance import Allowed
from specbench.features.servers.served import ServedSampling


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
