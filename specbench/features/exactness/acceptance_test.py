"""A test of whether drafted tokens are accepted as often as they should be."""

import math

from specbench.features.exactness.evidence import LARGEST_FACTOR, information_needed
from specbench.features.exactness.martingales import bound, log_mean

FACTORS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0)  # of the acceptance probability, under alternatives
LATE = 3  # the position in a draft at which an alternative may hold
SURE = 1e-3  # a probability this close to 1 may be 1 but for rounding


class AcceptanceTest:
    """A likelihood-ratio test of acceptance, given each tested token x: x is accepted with probability a = min(1, pi / q).

    An alternative multiplies a by a factor, for all tokens or from position LATE of a draft on. Given the prefix and x, the
    expected likelihood ratio of every alternative is at most 1 if the method is sound. So the product of its ratios over the
    tokens is a supermartingale, and the mean of the products over the alternatives is one too. It reaches 1 / p with
    probability at most p (Ville 1939).

    For example, with a = 0.8 and the factor 0.9, an accepted token has the ratio 0.72 / 0.8 = 0.9, and a rejected one
    0.28 / 0.2 = 1.4. The expected ratio is 0.8 * 0.9 + 0.2 * 1.4 = 1 if a is right. If only 72 % are accepted, it is 1.04.
    """

    def __init__(self) -> None:
        self._probabilities: list[float] = []  # a, of each tested token
        self._log_wealth = dict.fromkeys(((factor, first) for factor in FACTORS for first in (0, LATE)), 0.0)
        self._expected = self._happened = self._variance = 0.0

    @property
    def tokens(self) -> int:
        """The number of tested tokens."""
        return len(self._probabilities)

    @property
    def varied(self) -> bool:
        """Whether any outcome was uncertain, so that the test could have rejected."""
        return self._variance > 0.0

    @property
    def certain(self) -> float:
        """The share of tokens whose outcome was certain, so that no multiple of the probability changes it much."""
        count = sum(min(a, 1.0 - a) < SURE for a in self._probabilities)
        return count / len(self._probabilities) if self._probabilities else 0.0

    def add(self, draft_position: int, acceptance_probability: float, accepted: bool) -> None:
        """Add a tested token with its probability of acceptance, and its position in the draft, from 0."""
        self._probabilities.append(acceptance_probability)
        self._expected, self._happened = self._expected + acceptance_probability, self._happened + accepted
        self._variance += acceptance_probability * (1.0 - acceptance_probability)
        for factor, first in self._log_wealth:
            if draft_position >= first:
                self._log_wealth[factor, first] += _log_ratio(acceptance_probability, factor, accepted)

    @property
    def z(self) -> float:
        """The number of accepted tokens minus the expected one, in standard deviations."""
        return (self._happened - self._expected) / math.sqrt(self._variance) if self.varied else 0.0

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a likelihood ratio if the method is sound."""
        return bound(log_mean(list(self._log_wealth.values())))

    def smallest_factor(self, alarm: float) -> float | None:
        """Return the smallest of FACTORS above 1 that these tokens would show at p = alarm, in 19 of 20 cases.

        None if they would show none of them.
        """
        need = information_needed(alarm, len(self._log_wealth))
        factors = sorted(factor for factor in FACTORS if factor > 1.0)
        return next(
            (factor for factor in factors if sum(_information(a, factor) for a in self._probabilities) >= need), None
        )

    def tokens_needed(self, alarm: float, factor: float = LARGEST_FACTOR) -> int | None:
        """Return how many tokens with these acceptance probabilities would show a factor, in 19 of 20 cases.

        None if no number of them would.
        """
        need = information_needed(alarm, len(self._log_wealth))
        information = sum(_information(a, factor) for a in self._probabilities)
        return math.ceil(need * self.tokens / information) if information > 0.0 else None


def _log_ratio(probability: float, factor: float, accepted: bool) -> float:
    """Return the logarithm of the likelihood ratio of one outcome. The ratio's expectation is at most 1.

    A probability above 1 - SURE may be 1 but for rounding. Then alternatives with a larger probability have the ratio 1, and
    alternatives with a smaller one are compared with 1 - SURE, so that a rejection has a bounded ratio.
    """
    if probability <= 0.0 or (probability > 1.0 - SURE and factor > 1.0):
        return 0.0
    probability = min(probability, 1.0 - SURE)
    other = min(probability * factor, 1.0)
    if accepted:
        return math.log(other / probability)
    return math.log((1.0 - other) / (1.0 - probability)) if other < 1.0 else -math.inf


def _information(probability: float, factor: float) -> float:
    """Return the expected logarithm of the ratio, in nats, if tokens are accepted with `factor` x `probability`."""
    other = min(probability * factor, 1.0)
    accepted = other * _log_ratio(probability, factor, True)
    return accepted + ((1.0 - other) * _log_ratio(probability, factor, False) if other < 1.0 else 0.0)
