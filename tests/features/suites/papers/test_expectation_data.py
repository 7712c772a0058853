"""Every expectation of every suite: data that confirm it, data that contradict it, its place in the paper, and the ledger."""

from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from scripts.expectation_ledger import Change, with_grid, with_verdicts
from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point
from specbench.features.suites.papers.claims_ledger import (
    EarlierComparison,
    LedgerEntry,
    SuiteLedger,
    change_lines,
    ledger,
    measured_hash,
    outcomes_by_cell,
)
from specbench.features.suites.papers.expectation import Expectation
from specbench.features.suites.papers.expectations import Outcome, outcomes_of
from specbench.features.suites.suite import read_suite, suites
from specbench.features.suites.suite_index import Index
from tests.fixtures.grid_points import confirming, contradicting, points_of_grid

ROOT = Path(__file__).parents[4]
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
        assert not suite.is_of_paper or bool(expected.where) == (expected.source != "project"), expected.id


@pytest.mark.parametrize("name", ledger())
def test_a_comparison_does_not_change_silently_after_its_verdict_was_seen(name):
    """If this fails, quote the paper in a decision, and run `make ledger ARGS="--decision NUMBER --reason TEXT"`."""
    now = {expected.id: expected.fingerprint for expected in read_suite(name).expect}
    for key, entry in ledger()[name].expectations.items():
        assert entry.comparison == now.get(key, "") or not entry.comparison, key
        assert bool(entry.comparison) == bool(entry.verdict and entry.date and (entry.cells or entry.former)), key
        assert entry.comparison or entry.earlier, key


@pytest.mark.parametrize("name", ledger())
def test_what_is_measured_does_not_change_silently_after_verdicts_were_seen(name):
    """If this fails, write a decision, and run `make ledger ARGS="--decision NUMBER --reason TEXT"` with the new page."""
    suite = read_suite(name)
    if Index.of(name, ROOT / "results").definition == suite.definition:
        assert measured_hash(suite) == ledger()[name].measured
    else:
        page = (ROOT / "results/suites" / name / "README.md").read_text(encoding="utf-8")
        assert "measured with an earlier definition of the suite" in page


def test_a_changed_comparison_keeps_a_line():
    expected = expectation("polybasic-table2-tiny", "faster-chain")
    verdicts = outcomes_of(OneExpectation(expected), contradicting(expected, grid("polybasic-table2-tiny")))
    was = EarlierComparison("A is faster than B", "8 of 8 confirmed", "2026-01-02", "0001")
    entries = {
        "suite": SuiteLedger(
            expectations={
                "faster-chain": LedgerEntry("h", "s", "v", "d", (was,)),
                "gone": LedgerEntry("", "", "", "", (was,)),
            }
        )
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
    no_change, change = Change(), Change("0037", "The bound was wrong.")
    first = with_verdicts("s", SuiteLedger(), verdicts_of(at_least=1.0), "2026-01-02", no_change)
    entry = first.expectations["faster"]
    assert entry.verdict == "confirmed (difference +0.50)" and entry.date == "2026-01-02"
    assert with_verdicts("s", first, verdicts_of(at_least=1.0), "2026-02-02", no_change) == first
    with pytest.raises(SystemExit, match="the comparison of 'faster' changed"):
        with_verdicts("s", first, verdicts_of(at_least=2.0), "2026-02-02", no_change)
    changed = with_verdicts("s", first, verdicts_of(at_least=2.0), "2026-02-02", change).expectations["faster"]
    assert changed.verdict.startswith("contradicted")
    (was,) = changed.earlier
    assert (was.says, was.verdict, was.decision) == ("A is faster", entry.verdict, "0037")
    kept = SuiteLedger(expectations={"faster": changed})
    removed = with_verdicts("s", kept, [], "2026-03-02", change).expectations["faster"]
    assert removed.comparison == "" and len(removed.earlier) == 2 and len(removed.former) == 2


def test_a_cell_that_leaves_a_page_is_named_on_it_with_its_verdict_and_the_reason():
    first = with_verdicts("s", SuiteLedger(), verdicts_of(at_least=2.0), "2026-01-02", Change())
    assert first.expectations["faster"].cells == {"p t m at T = 1": "contradicted"}
    gone = [replace(verdict, outcomes=()) for verdict in verdicts_of(at_least=2.0)]
    with pytest.raises(SystemExit, match=r"1 cells .* are no longer measured, such as p t m"):
        with_verdicts("s", first, gone, "2026-02-02", Change())
    now = with_verdicts("s", first, gone, "2026-02-02", Change("0050", "The model costs too little."))
    entry = now.expectations["faster"]
    assert entry.cells == {} and entry.former[0].outcomes == {"p t m at T = 1": "contradicted"}
    (line,) = change_lines("s", gone, {"s": now})
    assert "'A is faster': contradicted: p t m at T = 1. " in line and "(decision 0050)" in line


def test_a_cell_is_named_by_both_sides_and_not_by_a_chosen_setting():
    place = {"pair": "p", "task": "t", "T": 1.0, "run": "r"}

    def of(method, speed, gamma):
        values = {"speedup": Estimate(speed, speed - 0.1, speed + 0.1)}
        return Point(**place, method=method, settings={"gamma": gamma}, values=values)

    def cells(take, fast=5):
        bound = {"method": ["n", "o"]}
        keys = {"of": {"method": "m"}, "value": "speedup", "at_least": bound, "take": take}
        expected = Expectation(says="A is faster", id="faster", **keys, by=())
        ours = [of("m", 2.0 if gamma == fast else 1.0, gamma) for gamma in (1, 5)]
        (verdict,) = outcomes_of(OneExpectation(expected), [*ours, of("n", 1.5, 1), of("o", 3.0, 1)])
        return outcomes_by_cell(verdict)

    assert cells("each") == {
        "p t m gamma=1 at T = 1 against p t n gamma=1 at T = 1": "contradicted",
        "p t m gamma=1 at T = 1 against p t o gamma=1 at T = 1": "contradicted",
        "p t m gamma=5 at T = 1 against p t n gamma=1 at T = 1": "confirmed",
        "p t m gamma=5 at T = 1 against p t o gamma=1 at T = 1": "contradicted",
    }
    assert len(cells("best")) < 4 and all("gamma" not in cell for cell in cells("best"))
    assert cells("best", fast=5) == cells("best", fast=1), "another choice is the same cell"


def test_a_changed_grid_needs_a_decision_and_keeps_a_line():
    first = with_grid("s", SuiteLedger(), "a", Change())
    assert with_grid("s", first, "a", Change()) == first
    with pytest.raises(SystemExit, match="what is measured changed"):
        with_grid("s", first, "b", Change())
    now = with_grid("s", first, "b", Change("0050", "The pairs have other costs."))
    assert now.measured == "b"
    (line,) = change_lines("s", [], {"s": now})
    assert line.endswith("The pairs have other costs. (decision 0050)")


@pytest.mark.parametrize("name", ledger())
def test_the_dates_of_the_ledger_are_dates(name):
    entries = ledger()[name].expectations.values()
    dates = [entry.date for entry in entries if entry.comparison]
    changes = [was.until for entry in entries for was in (*entry.earlier, *entry.former)]
    assert all(map(date.fromisoformat, [*dates, *changes, *(was.until for was in ledger()[name].earlier)]))
