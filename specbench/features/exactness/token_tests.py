"""All tests of a group of tokens: one for each statistic, and one against the known departures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from specbench.features.exactness.departures import DepartureTest
from specbench.features.exactness.martingales import MartingaleTest
from specbench.features.exactness.token_statistics import Categories


@dataclass(frozen=True)
class TestResult:
    """The result of one test: tokens, z and p. `is_impossible`: a token had probability 0."""

    tokens: int
    z: float
    p: float
    is_impossible: bool = False


class TokenTests:
    """The tests of one group of tokens, such as the first tokens of outputs.

    Args:
        has_departures: Whether they are tested against the known departures, besides the statistics.
    """

    def __init__(self, has_departures: bool = True) -> None:
        self.by_statistic: dict[str, MartingaleTest] = {}
        self._has_departures = has_departures
        self.departures = DepartureTest()

    def add(self, of: Categories, statistics: Mapping[str, Tensor], part: slice) -> None:
        """Add the tokens of one output that are in this group, with their statistics (m, K) by name."""
        if not len(of.x[part]):
            return
        within, x = of.within.part(part), of.x[part]
        for name, g in statistics.items():
            self.by_statistic.setdefault(name, MartingaleTest()).add(g[part], within, x)
        if self._has_departures:
            self.departures.add(within, {name: q[part] for name, q in of.drafts.items()}, x)

    def merge(self, other: "TokenTests") -> None:
        """Add the tokens of other tests."""
        for name, test in other.by_statistic.items():
            self.by_statistic.setdefault(name, MartingaleTest()).merge(test)
        self.departures.merge(other.departures)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return max((test.tokens + test.impossible for test in self.by_statistic.values()), default=0)

    @property
    def results(self) -> Mapping[str, TestResult]:
        """The tests that could reject, by name."""
        found = {
            name: TestResult(test.tokens, test.z, test.p, test.is_impossible)
            for name, test in self.by_statistic.items()
            if test.has_varied or test.is_impossible
        }
        if self.departures.has_varied:
            test = self.departures
            found[f"known departures, most like {test.worst}"] = TestResult(test.tokens, test.z, test.p)
        return found

    @property
    def log_wealth(self) -> float:
        """The largest logarithm of a martingale: how much the tokens contradict the reference."""
        each = [test.log_wealth for test in self.by_statistic.values()]
        return max([*each, self.departures.log_wealth if self.departures.has_varied else -math.inf], default=0.0)
