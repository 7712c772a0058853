"""A sequential test of whether drafted tokens are accepted as often as their probabilities imply."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from specbench.verification.reference import Output

FACTORS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0)  # of the acceptance probability, under alternatives
LATE = 3  # the position in a draft from which on an alternative may hold
SURE = 1e-3  # a probability this close to 1 may be 1 but for rounding
MOST = 1.645  # the normal quantile of 19 of 20 cases
EXAMPLE = 1.05  # the deviation whose number of tokens is reported


class DraftedToken(NamedTuple):
    """A tested token x of an output: where it stands in the output and in the tested tokens of its round, who drew it."""

    position: int
    place: int
    role: str
    token: int
    accepted: bool


def tested_tokens(output: Output, roles: tuple[str, ...]) -> Iterator[DraftedToken]:
    """Yield every tested token that a model of `roles` drew. All tokens before it were committed."""
    start = 0
    for each in output.rounds:
        for i, role in enumerate(each.proposers[: each.tested]):
            place = each.untested + i
            if role in roles:
                accepted = i < each.accepted
                yield DraftedToken(
                    start + place, i, role, each.tokens[place] if accepted else each.rejected[0], accepted
                )
        start += len(each.tokens)


class AcceptanceTest:
    """A likelihood-ratio test of acceptance, given each tested token x: x is accepted with probability a = min(1, pi / q).

    An alternative multiplies a by a factor, for all tokens or from position LATE of a draft on. Given the prefix and x, the
    expected likelihood ratio of every alternative is at most 1 if the method is sound, so the mean of their products over the
    tokens is a supermartingale, which reaches 1 / p with probability at most p (Ville 1939).
    """

    def __init__(self) -> None:
        self._odds: list[float] = []  # a, of each tested token
        self._log_wealth = dict.fromkeys(((factor, first) for factor in FACTORS for first in (0, LATE)), 0.0)
        self._expected = self._happened = self._variance = 0.0

    @property
    def tokens(self) -> int:
        """The number of tested tokens."""
        return len(self._odds)

    @property
    def varied(self) -> bool:
        """Whether any outcome was uncertain, so that the test could have rejected."""
        return self._variance > 0.0

    def add(self, place: int, odds: float, accepted: bool) -> None:
        """Add a tested token with its probability of acceptance, and its place in the draft, from 0."""
        self._odds.append(odds)
        self._expected, self._happened = self._expected + odds, self._happened + accepted
        self._variance += odds * (1.0 - odds)
        for factor, first in self._log_wealth:
            if place >= first:
                self._log_wealth[factor, first] += _log_ratio(odds, factor, accepted)

    @property
    def z(self) -> float:
        """The number of accepted tokens minus the expected one, in standard deviations."""
        return (self._happened - self._expected) / math.sqrt(self._variance) if self.varied else 0.0

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a likelihood ratio if the method is sound."""
        largest = max(self._log_wealth.values())
        if not math.isfinite(largest):
            return 1.0
        mean = sum(math.exp(each - largest) for each in self._log_wealth.values()) / len(self._log_wealth)
        return min(1.0, math.exp(min(-largest - math.log(mean), 0.0)))

    def smallest_factor(self, alarm: float) -> float | None:
        """Return the smallest of FACTORS above 1 that these tokens would show at p = alarm, in 19 of 20 cases.

        None if they would show none of them.
        """
        need = self._need(alarm)
        factors = sorted(each for each in FACTORS if each > 1.0)
        return next((each for each in factors if sum(_information(a, each) for a in self._odds) >= need), None)

    def tokens_needed(self, alarm: float, factor: float = EXAMPLE) -> int | None:
        """Return how many such tokens would show a factor, in 19 of 20 cases. None if they cannot."""
        found = sum(_information(a, factor) for a in self._odds)
        return math.ceil(self._need(alarm) * self.tokens / found) if found > 0.0 else None

    def _need(self, alarm: float) -> float:
        """Return the mean of the log-likelihood ratio at which the test reaches 1 / alarm in 19 of 20 cases.

        The ratio's logarithm is nearly normal, with a variance of twice its mean.
        """
        least = math.log(len(self._log_wealth) / alarm)
        return (MOST / math.sqrt(2.0) + math.sqrt(MOST**2 / 2.0 + least)) ** 2


def _log_ratio(odds: float, factor: float, accepted: bool) -> float:
    """Return the logarithm of the likelihood ratio of one outcome. The ratio's expectation is at most 1.

    That also holds if `odds` is 1 but for rounding: larger ones do not count, and smaller ones are compared with 1 - SURE.
    """
    if odds <= 0.0 or (odds > 1.0 - SURE and factor > 1.0):
        return 0.0
    odds = min(odds, 1.0 - SURE)
    other = min(odds * factor, 1.0)
    if accepted:
        return math.log(other / odds)
    return math.log((1.0 - other) / (1.0 - odds)) if other < 1.0 else -math.inf


def _information(odds: float, factor: float) -> float:
    """Return the expected logarithm of the ratio, in nats, if the factor is real."""
    other = min(odds * factor, 1.0)
    accepted = other * _log_ratio(odds, factor, True)
    return accepted + ((1.0 - other) * _log_ratio(odds, factor, False) if other < 1.0 else 0.0)
