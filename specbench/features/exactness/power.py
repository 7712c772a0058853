"""What tests of tokens would have missed."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.features.exactness.acceptance_test import FACTORS
from specbench.features.exactness.departures import DepartureKind, Detectable
from specbench.features.exactness.evidence import LARGEST_FACTOR, LARGEST_VARIATION

LARGEST_TRIED = max(FACTORS)


@dataclass(frozen=True, kw_only=True)
class Power:
    """What tests would have missed, for the sampling parameters with the least power.

    Args:
        later: The smallest departures that all but first tokens would show.
        first: The same of the first tokens of outputs.
        alone: The same of departures that occur in one kind of requests alone.
        factor: The smallest factor above 1 of the acceptance probability that would be found; None if none up to 2.
        tested: Number of drafted tokens whose acceptance was tested; 0 if it cannot be tested.
        greedy_share: The share of faulty greedy tokens of which one would be seen in 19 of 20 cases; None if it was not
            computed.
        is_text: Whether greedy texts were compared, whose differences may be rounding.
        times: How many times as many outputs would find every departure above the limits; None if no number would, or if
            it was not computed.
    """

    later: Sequence[Detectable]
    first: Sequence[Detectable]
    alone: Sequence[Detectable] = ()
    factor: float | None = None
    tested: int = 0
    greedy_share: float | None = None
    is_text: bool = False
    times: float | None = None

    @property
    def meets_limits(self) -> bool:
        """Whether departures above LARGEST_FACTOR and LARGEST_VARIATION would have been found."""
        has_evidence = bool(self.later) or self.greedy_share is not None
        accepts = not self.tested or (self.factor is not None and self.factor <= LARGEST_FACTOR)
        is_greedy_shown = self.greedy_share is None or self.greedy_share <= LARGEST_VARIATION
        return has_evidence and accepts and is_greedy_shown and not self.is_text and not self._above_limit

    @property
    def missed(self) -> list[str]:
        """What would have been missed, in words: departures above the limits, and those of a part of the tokens alone."""
        share = self.greedy_share or 0.0
        greedy = [f"faults in less than {share:.1%} of greedy tokens"] if share > LARGEST_VARIATION else []
        rules = []
        if self.tested and self.factor is None:
            rules = [f"even rules {LARGEST_TRIED:g}x too lenient"]
        elif self.tested and self.factor is not None and self.factor > LARGEST_FACTOR:
            rules = [f"rules less than {self.factor:g}x too lenient"]
        return [
            *greedy,
            *rules,
            *(each.missed for each in self._above_limit),
            *_missed_alone("at first tokens alone", self.first),
            *_missed_alone("in one kind of requests alone", self.alone),
        ]

    @property
    def _above_limit(self) -> list[Detectable]:
        """The departures whose smallest detectable size is above the limit. Tested acceptance shows a lenient rule better."""
        return [
            each
            for each in self.later
            if not each.is_within_limit and not (self.tested and each.kind is DepartureKind.lenient)
        ]


def _missed_alone(where: str, detectable: Sequence[Detectable]) -> list[str]:
    """Return what would have been missed in a part of the tokens alone, by the example of the most likely token."""
    found = [each.missed for each in detectable if each.kind is DepartureKind.most_likely and not each.is_within_limit]
    return [f"{where}, for example {words}" for words in found]
