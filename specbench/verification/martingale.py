"""A sequential test of whether tokens follow given distributions, valid for dependent tokens."""

import math

import torch
from torch import Tensor

LAMBDAS = tuple(sign * 2.0**-k for k in range(5) for sign in (1.0, -1.0))  # from weak to strong deviations


class MartingaleTest:
    """A martingale test of one statistic g of every token; `p` bounds the probability of a false rejection.

    Each token x multiplies the test martingale by exp(lambda g(x)) / E_pi exp(lambda g). If x follows pi given all
    tokens before it, and g was fixed before x, the expected factor is 1, so the product is a martingale, and so is its
    mean over `LAMBDAS`. It reaches 1 / p with probability at most p (Ville 1939). The bound is exact for any number of
    tokens, including rare events and optional stopping. With g = log q/pi and lambda = 1 the product is the likelihood
    ratio of q to pi.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._log_wealth = [0.0] * len(LAMBDAS)  # logarithms
        self._sum = self._variance = 0.0

    def add(self, g: Tensor, pi: Tensor, x: Tensor) -> None:
        """Add tokens x (m,), their distributions pi (m, V), float64, and the statistic g (m, V)."""
        of_x = g.gather(-1, x.unsqueeze(-1)).squeeze(-1)  # (m,)
        mean = (pi * g).sum(-1)
        self.tokens += len(x)
        self._sum += float((of_x - mean).sum())
        self._variance += float((pi * (g - mean.unsqueeze(-1)) ** 2).sum())
        for i, lambda_ in enumerate(LAMBDAS):
            expected = (pi * (lambda_ * g).exp()).sum(-1).log()
            self._log_wealth[i] += float((lambda_ * of_x - expected).sum())

    @property
    def varied(self) -> bool:
        """Whether g varied, so that the test could have rejected."""
        return self._variance > 1e-6  # else g is the same for all tokens, but for rounding

    @property
    def z(self) -> float:
        """The deviation of the sum of g from its expectation, in standard deviations; 0 if g did not vary."""
        return self._sum / math.sqrt(self._variance) if self.varied else 0.0

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a martingale under the null hypothesis."""
        largest = max(self._log_wealth)
        log_mean = largest + math.log(sum(math.exp(each - largest) for each in self._log_wealth) / len(LAMBDAS))
        return min(1.0, math.exp(min(-log_mean, 0.0)))

    def smallest_shift(self, alarm: float) -> float:
        """Return the smallest shift of the mean of g, in standard deviations of a token, that shows on average at p = alarm.

        With the best lambda, the logarithm of the martingale is about n d^2 / 2 after n tokens with a shift d.
        """
        return math.sqrt(2.0 * math.log(len(LAMBDAS) / alarm) / max(self.tokens, 1))


def event_test(happened: list[bool], odds: list[float]) -> MartingaleTest:
    """Return a martingale test of events, each of which should happen with the given probability."""
    test = MartingaleTest()
    if happened:
        one = torch.tensor(odds, dtype=torch.float64).clamp(0.0, 1.0)
        pi = torch.stack([1.0 - one, one], dim=-1)  # (m, 2)
        test.add(
            torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(len(odds), 2), pi, torch.tensor(happened).long()
        )
    return test
