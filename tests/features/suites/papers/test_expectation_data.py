"""Every expectation of every suite: data that confirm it, data that contradict it, its place in the paper, and the ledger."""

from datetime import date
from functools import cache

import pytest

from scripts.expectation_ledger import with_verdicts
from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point
from specbench.features.suites.papers.claims_ledger import EarlierComparison, LedgerEntry, change_lines, ledger
from specbench.features.suites.papers.expectation import Expectation
from specbench.features.suites.papers.expectations import Outcome, outcomes_of
from specbench.features.suites.suite import read_suite, suites
from tests.fixtures.grid_points import confirming, contradicting, points_of_grid

ALL = [(name, expected.id) for name in suites() for expected in read_suite(name).expect]


@cache
def grid(name: str) -> list[Point]:
    return points_of_grid(read_suite(name))


def expectation(name: str, key: str) -> Expectation:
    return next(each for each in read_suite(name).expect if each.id == key)


class OneExpectation:
    """The part of a suite that expectations read."""

    def __init__(self, expected: Expectation) -> None:
        self.expect = (expected,)


@pytest.mark.parametrize(("name", "key"), ALL)
def test_data_can_confirm_and_contradict_every_expectation(name, key):
    expected = expectation(name, key)
    for data, outcome in ((confirming, Outcome.confirmed), (contradicting, Outcome.contradicted)):
        (verdict,) = outcomes_of(OneExpectation(expected), data(expected, grid(name)))
        assert verdict.outcomes, f"no cell of the grid is compared: {expected.of} and {expected.bound}"
        assert {point.outcome for point in verdict.outcomes} == {outcome}


@pytest.mark.parametrize("name", suites())
def test_every_expectation_has_an_id_and_names_its_place_in_the_paper(name):
    suite = read_suite(name)
    for expected in suite.expect:
        assert expected.id
        assert not suite.is_of_paper or bool(expected.where) == (expected.source == "paper"), expected.id


@pytest.mark.parametrize("name", ledger())
def test_a_comparison_does_not_change_silently_after_its_verdict_was_seen(name):
    """If this fails, quote the paper's sentence in a decision, and run `make ledger ARGS="--decision NUMBER"`."""
    now = {expected.id: expected.fingerprint for expected in read_suite(name).expect}
    for key, entry in ledger()[name].items():
        assert entry.comparison == now.get(key, "") or not entry.comparison, key
        assert bool(entry.comparison) == bool(entry.verdict and entry.date), key
        assert entry.comparison or entry.earlier, key


def test_a_changed_comparison_keeps_a_line():
    expected = expectation("polybasic-table2-tiny", "faster-chain")
    verdicts = outcomes_of(OneExpectation(expected), contradicting(expected, grid("polybasic-table2-tiny")))
    was = EarlierComparison("A is faster than B", "8 of 8 confirmed", "2026-01-02", "0001")
    entries = {
        "suite": {"faster-chain": LedgerEntry("h", "s", "v", "d", (was,)), "gone": LedgerEntry("", "", "", "", (was,))}
    }
    changed, removed = change_lines("suite", verdicts, entries)
    assert "'A is faster than B'" in changed and "'8 of 8 confirmed'" in changed
    assert "first verdict after the change: 'v'; of these measurements: '8 of 8 contradicted" in changed
    assert removed.endswith("it was removed (decision 0001)")
    assert change_lines("another", verdicts, entries) == []


def verdicts_of(**keys):
    expected = Expectation(says="A is faster", id="faster", of={"method": "m"}, value="speedup", **keys)
    place = {"pair": "p", "task": "t", "T": 1.0, "method": "m", "run": "r"}
    return outcomes_of(OneExpectation(expected), [Point(**place, values={"speedup": Estimate(1.5, 1.4, 1.6)})])


def test_the_ledger_keeps_the_first_verdict_and_every_comparison_that_was_replaced():
    first = with_verdicts("s", {}, verdicts_of(at_least=1.0), "2026-01-02", "")
    assert first["faster"].verdict == "confirmed (difference +0.50)" and first["faster"].date == "2026-01-02"
    assert with_verdicts("s", first, verdicts_of(at_least=1.0), "2026-02-02", "") == first
    with pytest.raises(SystemExit, match="the comparison of 'faster' changed"):
        with_verdicts("s", first, verdicts_of(at_least=2.0), "2026-02-02", "")
    changed = with_verdicts("s", first, verdicts_of(at_least=2.0), "2026-02-02", "0037")
    assert changed["faster"].verdict.startswith("contradicted")
    (was,) = changed["faster"].earlier
    assert (was.says, was.verdict, was.decision) == ("A is faster", first["faster"].verdict, "0037")
    removed = with_verdicts("s", changed, [], "2026-03-02", "0038")
    assert removed["faster"].comparison == "" and len(removed["faster"].earlier) == 2


@pytest.mark.parametrize("name", ledger())
def test_the_dates_of_the_ledger_are_dates(name):
    entries = ledger()[name].values()
    dates = [entry.date for entry in entries if entry.comparison]
    assert all(map(date.fromisoformat, [*dates, *(was.until for entry in entries for was in entry.earlier)]))
