"""Floor 4: a test of whether tokens follow the laws that they are said to follow, whatever the tokens' dependence."""

import math

import torch
from torch import Tensor

STAKES = tuple(sign * 2.0**-k for k in range(5) for sign in (1.0, -1.0))  # lambda: from faint deviations to gross ones


class Wager:
    """Bets on one statistic g of every token; `p` bounds the odds that a true law loses as much.

    A bet pays exp(lambda g(x)) / E_pi exp(lambda g). Where x follows pi given all before it, and g was known before x, the
    expected pay is 1, so the product over tokens is a martingale, and so is its mean over `STAKES`. It ever reaches 1 / p
    with probability p at most (Ville 1939): exact for any number of tokens, rare events included, and however many are
    looked at. With g = log q/pi and lambda = 1 the product is the likelihood ratio of q to pi.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._paid = [0.0] * len(STAKES)  # logarithms
        self._sum = self._variance = 0.0

    def add(self, g: Tensor, pi: Tensor, x: Tensor) -> None:
        """More tokens x (m,), their laws pi (m, V), float64, and the statistic g (m, V)."""
        of_x = g.gather(-1, x.unsqueeze(-1)).squeeze(-1)  # (m,)
        mean = (pi * g).sum(-1)
        self.tokens += len(x)
        self._sum += float((of_x - mean).sum())
        self._variance += float((pi * (g - mean.unsqueeze(-1)) ** 2).sum())
        for i, stake in enumerate(STAKES):
            expected = (pi * (stake * g).exp()).sum(-1).log()
            self._paid[i] += float((stake * of_x - expected).sum())

    @property
    def varied(self) -> bool:
        """Whether it could have told anything."""
        return self._variance > 1e-6  # else g is the same for all tokens, but for rounding

    @property
    def z(self) -> float:
        """By how many standard deviations g is off; 0 where it cannot vary."""
        return self._sum / math.sqrt(self._variance) if self.varied else 0.0

    @property
    def p(self) -> float:
        """The greatest odds at which true laws would have paid as much."""
        most = max(self._paid)
        paid = most + math.log(sum(math.exp(each - most) for each in self._paid) / len(STAKES))
        return min(1.0, math.exp(min(-paid, 0.0)))


def chance(happened: list[bool], odds: list[float]) -> Wager:
    """A wager on events, each of which should happen with the odds that were foreseen."""
    wager = Wager()
    if happened:
        one = torch.tensor(odds, dtype=torch.float64).clamp(0.0, 1.0)
        pi = torch.stack([1.0 - one, one], dim=-1)  # (m, 2)
        wager.add(
            torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(len(odds), 2), pi, torch.tensor(happened).long()
        )
    return wager
