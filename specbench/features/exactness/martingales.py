"""Martingale tests of tokens against the distributions that they may follow.

Each token x multiplies a test martingale by exp(lambda g(x)) / E exp(lambda g). The statistic g was fixed before x, and E is
the expectation under the token's distribution given all tokens before it. If tokens follow their distributions, the expected
factor is 1, whatever the dependence between tokens. So the product reaches 1 / p with probability at most p (Ville 1939),
after any number of tokens, with rare events and with optional stopping.

With a tolerance, each factor is divided by the largest expectation that any allowed distribution has. So a server whose
logits deviate by no more than the stated amount fails with at most the stated probability.
"""

import math

from torch import Tensor

from specbench.features.exactness.tolerance import Allowed, largest_expectations

SIGNIFICANCE = 1e-3  # significance level of all tests of a verification together
GROUPS = {
    "first": slice(0, 1),
    "later": slice(1, None),
}  # tokens of an output; the first one is never drafted by a server
LAMBDAS = tuple(sign * 2.0**-k for k in range(6) for sign in (1.0, -1.0))  # for strong to weak deviations


def log_mean(log_wealth: list[float]) -> float:
    """Return the logarithm of the mean of martingales with these logarithms, which is a martingale too."""
    largest = max(log_wealth, default=0.0)
    if not math.isfinite(largest):
        return largest
    return largest + math.log(sum(math.exp(each - largest) for each in log_wealth) / len(log_wealth))


def bound(log_wealth: float) -> float:
    """Return an upper bound for the probability that a martingale of this logarithm or a larger one occurs by chance."""
    return min(1.0, math.exp(-min(max(log_wealth, 0.0), 700.0)))


class MartingaleTest:
    """A martingale test of one statistic of each token, over all allowed distributions."""

    def __init__(self) -> None:
        self.tokens = 0
        self.impossible = 0  # further tokens, which had probability 0 in all allowed distributions
        self._log_wealth = [0.0] * len(LAMBDAS)
        self._cost = [0.0] * len(LAMBDAS)  # expected decrease of the logarithms, under the reference
        self._sum = self._variance = 0.0

    def add(self, g: Tensor, within: Allowed, x: Tensor) -> None:
        """Add tokens x (m,) with their allowed distributions and the statistic g (m, V)."""
        if not within.is_exact:  # without a tolerance, rounding may have drawn a token of probability 0
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

    def merge(self, other: "MartingaleTest") -> None:
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
        return log_mean(self._log_wealth)

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a martingale if tokens follow their distributions."""
        return bound(self.log_wealth)

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
