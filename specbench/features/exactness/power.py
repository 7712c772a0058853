"""What the tests of sampled tokens would have missed."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.features.exactness.departures import SHARES, DepartureKind, Detectable
from specbench.features.exactness.evidence import LARGEST_FACTOR


@dataclass(frozen=True, kw_only=True)
class Power:
    """What the tests of sampled tokens would have missed.

    Args:
        factor: The smallest factor above 1 of the acceptance probability that would be found; None if none up to 2.
        tested: Number of drafted tokens whose acceptance was tested; 0 if it cannot be tested.
        later: The smallest departures that all but first tokens would show.
        first: The same of the first tokens of outputs.
        times: How many times as many outputs would find every departure above the limits; infinite if no number would.
    """

    factor: float | None
    tested: int
    later: Sequence[Detectable]
    first: Sequence[Detectable]
    times: float

    @property
    def meets_limits(self) -> bool:
        """Whether departures above LARGEST_FACTOR and LARGEST_VARIATION would have been found."""
        accepts = not self.tested or (self.factor is not None and self.factor <= LARGEST_FACTOR)
        return accepts and bool(self.later) and not self._above_limit

    @property
    def missed(self) -> list[str]:
        """What would have been missed, in words: departures above the limits, and those of first tokens alone."""
        rules = []
        if self.tested and self.factor is None:
            rules = ["rules 2x too lenient"]
        elif self.tested and self.factor is not None and self.factor > LARGEST_FACTOR:
            rules = [f"rules up to {self.factor:g}x too lenient"]
        later = [each.missed for each in self._above_limit]
        first = [
            each.missed for each in self.first if each.kind is DepartureKind.most_likely and each.size != SHARES[0]
        ]
        return [*rules, *later, *(f"at first tokens alone, {words.replace('tokens', 'outputs')}" for words in first)]

    @property
    def _above_limit(self) -> list[Detectable]:
        """The departures whose smallest detectable size is above the limit. Tested acceptance shows a lenient rule better."""
        return [
            each
            for each in self.later
            if not each.is_within_limit and not (self.tested and each.kind is DepartureKind.lenient)
        ]
