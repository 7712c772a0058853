"""The tests of sampled tokens, apart for first and later tokens of outputs."""

from collections.abc import Mapping, Sequence

from specbench.features.exactness.departures import Detectable
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.exactness.token_statistics import Categories, statistics
from specbench.features.exactness.token_tests import TestResult, TokenTests


class GroupTests:
    """Martingale tests of outputs, by group of tokens.

    The first tokens of outputs have tests of their own, since the many later tokens would hide an error in them.

    Args:
        has_departures: Whether tokens are tested against the known departures, besides the statistics.
    """

    def __init__(self, has_departures: bool = True) -> None:
        self.by_group = {group: TokenTests(has_departures) for group in GROUPS}

    def add(self, of: Categories, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Add the tokens of one output, whose categories are `of`."""
        values = statistics(of, prompt, tokens)
        for group, part in GROUPS.items():
            self.by_group[group].add(of, values, part)

    def merge(self, other: "GroupTests") -> None:
        """Add the tokens of other tests."""
        for group, tests in other.by_group.items():
            self.by_group[group].merge(tests)

    def results(self, group: str) -> Mapping[str, TestResult]:
        """Return the tests of a group that could reject, by name."""
        return self.by_group[group].results

    @property
    def number_of_tests(self) -> int:
        """The number of tests that could reject."""
        return sum(len(tests.results) for tests in self.by_group.values())

    @property
    def log_wealth(self) -> float:
        """The largest logarithm of a martingale: how much the tokens contradict the reference."""
        return max(tests.log_wealth for tests in self.by_group.values())

    def groups_that_differ(self, tests: int) -> tuple[str, ...]:
        """Return the groups of tokens whose smallest p, times the number of all tests, is at most SIGNIFICANCE."""
        return groups_that_differ({group: self.results(group) for group in self.by_group}, tests)

    def detectable(self, group: str, alarm: float) -> list[Detectable]:
        """Return the smallest known departures that the tokens of a group would show in 19 of 20 cases."""
        return self.by_group[group].departures.detectable(alarm)


def worst(results: Mapping[str, TestResult]) -> tuple[str, TestResult] | None:
    """Return the test with the smallest p, and its name; None without tests that could reject."""
    return min(results.items(), key=lambda each: (each[1].p, -abs(each[1].z)), default=None)


def groups_that_differ(results: Mapping[str, Mapping[str, TestResult]], tests: int) -> tuple[str, ...]:
    """Return the groups of tokens whose smallest p, times the number of all tests, is at most SIGNIFICANCE."""
    found = {group: worst(each) for group, each in results.items()}
    return tuple(group for group, test in found.items() if test and test[1].p * tests <= SIGNIFICANCE)
