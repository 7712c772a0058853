"""What the tests of sampled tokens would have missed."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.features.exactness.acceptance_test import FACTORS
from specbench.features.exactness.departures import DepartureKind, Detectable
from specbench.features.exactness.evidence import LARGEST_FACTOR

LARGEST_TRIED = max(FACTORS)


def missed_alone(where: str, detectable: Sequence[Detectable]) -> list[str]:
    """Return what would have been missed in a part of the tokens alone, by the example of the most likely token."""
    found = [each.missed for each in detectable if each.kind is DepartureKind.most_likely and not each.is_within_limit]
    return [f"{where}, for example {words}" for words in found]


@dataclass(frozen=True, kw_only=True)
class Power:
    """What the tests of sampled tokens would have missed.

    Args:
        factor: The smallest factor above 1 of the acceptance probability that would be found; None if none up to 2.
        tested: Number of drafted tokens whose acceptance was tested; 0 if it cannot be tested.
        later: The smallest departures that all but first tokens would show.
        first: The same of the first tokens of outputs.
        times: How many times as many outputs would find every departure above the limits; None if no number would.
    """

    factor: float | None
    tested: int
    later: Sequence[Detectable]
    first: Sequence[Detectable]
    times: float | None

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
            rules = [f"even rules {LARGEST_TRIED:g}x too lenient"]
        elif self.tested and self.factor is not None and self.factor > LARGEST_FACTOR:
            rules = [f"rules less than {self.factor:g}x too lenient"]
        later = [each.missed for each in self._above_limit]
        return [*rules, *later, *missed_alone("at first tokens alone", self.first)]

    @property
    def _above_limit(self) -> list[Detectable]:
        """The departures whose smallest detectable size is above the limit. Tested acceptance shows a lenient rule better."""
        return [
            each
            for each in self.later
            if not each.is_within_limit and not (self.tested and each.kind is DepartureKind.lenient)
        ]
