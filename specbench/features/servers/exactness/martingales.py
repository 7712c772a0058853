"""Martingale tests of served tokens against the distributions that a server may sample from.

They are the tests of `specbench verify`, with a tolerance: each factor is divided by the largest expectation that any
allowed distribution has, not by that of the reference. So a server whose logits deviate by no more than the stated amount
fails with at most the stated probability, whatever the dependence between tokens (Ville 1939).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.features.servers.exactness.allowed import Allowed, largest_expectations

LAMBDAS = tuple(sign * 2.0**-k for k in range(6) for sign in (1.0, -1.0))  # from strong to weak deviations
FLOOR = 16.0  # nats; log-probabilities are clamped from below to its negative
TAIL = 1e-4  # probability of the unlikely tokens that one statistic counts
TAIL_WEIGHT = 4.0  # nats; of one such token, at lambda = 1
CLIP = 4.0  # nats; bound of a log-ratio of two distributions
MOST_CATEGORIES = 512  # of a larger vocabulary, the others are one category
OTHERS = -1  # the id of the category of all other tokens
LOOKUP = (3, 2, 1)  # lengths of the n-grams that a lookup continues, the longest first


class ServedTest:
    """A martingale test of one statistic of each token, over all allowed distributions."""

    def __init__(self) -> None:
        self.tokens = 0
        self.impossible = 0  # further tokens, which had probability 0 in all allowed distributions
        self._log_wealth = [0.0] * len(LAMBDAS)
        self._cost = [0.0] * len(LAMBDAS)  # expected decrease of the logarithms, under the reference
        self._sum = self._variance = 0.0

    def add(self, g: Tensor, within: Allowed, x: Tensor) -> None:
        """Add tokens x (m,) with their allowed distributions and the statistic g (m, V)."""
        possible = within.high.gather(-1, x.unsqueeze(-1)).squeeze(-1) > 0.0
        self.impossible += int((~possible).sum())
        g, within, x = g[possible], within.part(possible), x[possible]
        if not len(x):
            return
        of_x = g.gather(-1, x.unsqueeze(-1)).squeeze(-1)  # (m,)
        mean = (within.pi * g).sum(-1)
        self.tokens += len(x)
        self._sum += float((of_x - mean).sum())
        self._variance += float((within.pi * (g - mean.unsqueeze(-1)) ** 2).sum())
        largest = largest_expectations(g, LAMBDAS, within).sum(-1)
        for i, lambda_ in enumerate(LAMBDAS):
            self._log_wealth[i] += lambda_ * float(of_x.sum()) - float(largest[i])
            self._cost[i] += float(largest[i]) - lambda_ * float(mean.sum())

    def merge(self, other: "ServedTest") -> None:
        """Add the tokens of another test of the same statistic."""
        self.tokens += other.tokens
        self.impossible += other.impossible
        self._sum, self._variance = self._sum + other._sum, self._variance + other._variance
        self._log_wealth = [a + b for a, b in zip(self._log_wealth, other._log_wealth, strict=True)]
        self._cost = [a + b for a, b in zip(self._cost, other._cost, strict=True)]

    @property
    def is_impossible(self) -> bool:
        """Whether a token had probability 0 in all allowed distributions."""
        return self.impossible > 0

    @property
    def has_varied(self) -> bool:
        """Whether the statistic varied, so that the test could have rejected."""
        return self._variance > 1e-6

    @property
    def z(self) -> float:
        """The deviation of the sum from its expectation under the reference, in standard deviations."""
        return self._sum / math.sqrt(self._variance) if self.has_varied else 0.0

    @property
    def log_wealth(self) -> float:
        """The logarithm of the mean over the lambdas; infinite after an impossible token."""
        if self.is_impossible:
            return math.inf
        largest = max(self._log_wealth)
        return largest + math.log(sum(math.exp(each - largest) for each in self._log_wealth) / len(LAMBDAS))

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a martingale if the server is right."""
        return min(1.0, math.exp(-min(max(self.log_wealth, 0.0), 700.0)))

    def smallest_shift(self, alarm: float) -> float | None:
        """Return the smallest shift of the statistic's mean, in its standard deviations, that reaches p = alarm on average.

        None if no shift would: without tokens or variation.
        """
        if not self.has_varied or not self.tokens:
            return None
        need = math.log(len(LAMBDAS) / alarm)
        deviation = math.sqrt(self._variance / self.tokens)
        return min(
            (need + cost) / self.tokens / (abs(lambda_) * deviation)
            for lambda_, cost in zip(LAMBDAS, self._cost, strict=True)
        )

    @property
    def shift(self) -> float:
        """The observed shift of the statistic's mean, in its standard deviations."""
        return self._sum / self.tokens / self.deviation if self.has_varied else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of one token's statistic."""
        return math.sqrt(self._variance / self.tokens) if self.tokens else 0.0


@dataclass(frozen=True)
class Categories:
    """The tokens of an output among the categories of their distributions: the vocabulary, or its most likely tokens.

    Args:
        within: The allowed distributions over the categories, (m, K).
        ids: The token of each category, (m, K); OTHERS for the category of all other tokens.
        x: The categories of the output's tokens, (m,).
        drafts: Distributions of drafting models over the categories, by name.
    """

    within: Allowed
    ids: Tensor
    x: Tensor
    drafts: Mapping[str, Tensor]


def categories_of(within: Allowed, tokens: Tensor, drafts: Mapping[str, Tensor]) -> Categories:
    """Return the categories of an output's tokens (m,).

    Of a larger vocabulary than MOST_CATEGORIES, the others are one category. They are chosen by the reference distribution,
    which is known before the token is.
    """
    rows, size = within.pi.shape
    ids = torch.arange(size).expand(rows, size)
    if size <= MOST_CATEGORIES:
        return Categories(within, ids, tokens, drafts)
    kept = within.pi.topk(MOST_CATEGORIES - 1, dim=-1).indices  # (m, K - 1)
    is_kept = torch.zeros(rows, size, dtype=torch.bool).scatter_(-1, kept, True)

    def merged(table: Tensor) -> Tensor:
        rest = torch.where(is_kept, 0.0, table).sum(-1, keepdim=True)
        return torch.cat([table.gather(-1, kept), rest], dim=-1)

    where = torch.full((rows, size), MOST_CATEGORIES - 1).scatter_(
        -1, kept, torch.arange(MOST_CATEGORIES - 1).expand(rows, -1)
    )
    return Categories(
        Allowed(merged(within.pi), merged(within.low), merged(within.high)),
        torch.cat([kept, torch.full((rows, 1), OTHERS)], dim=-1),
        where.gather(-1, tokens[:, None])[:, 0],
        {name: merged(q) for name, q in drafts.items()},
    )


def statistics(of: Categories, prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Tensor]:
    """Return the tested statistics of an output by name, (m, K) each: functions of a token and all tokens before it."""
    pi = of.within.pi
    log_pi = pi.clamp_min(1e-300).log().clamp_min(-FLOOR)
    best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0)
    ids, looked_up = [*prompt, *tokens], torch.zeros_like(pi)
    for i in range(len(pi)):
        if (found := looked_up_token(ids[: len(prompt) + i])) is not None:
            looked_up[i] = (of.ids[i] == found).double()
    return {
        "log-probability": log_pi,
        "most likely token": best,
        "unlikely token": TAIL_WEIGHT * _tail(pi),
        "hash of the token": (of.ids * 0x9E3779B97F4A7C1 // 2**32 % 2).double(),
        "token of an n-gram lookup": looked_up,
        **{
            f"log q/pi of {name}": (q.clamp_min(1e-300).log().clamp_min(-FLOOR) - log_pi).clamp(-CLIP, CLIP)
            for name, q in of.drafts.items()
        },
    }


def looked_up_token(ids: Sequence[int]) -> int | None:
    """Return the token that followed the last earlier occurrence of the last n-gram; None without one."""
    for n in LOOKUP:
        if len(ids) <= n:
            continue
        last = list(ids[-n:])
        for start in range(len(ids) - n - 1, -1, -1):
            if list(ids[start : start + n]) == last:
                return ids[start + n]
    return None


def _tail(pi: Tensor) -> Tensor:
    """Return 1 for the least likely tokens with a total probability of at most TAIL, (m, V)."""
    values, order = pi.sort(dim=-1)
    return (values.cumsum(-1) <= TAIL).double().gather(-1, order.argsort(dim=-1))
