"""Expectations of suites: bounds that are other values or other points, and the best of several settings."""

from dataclasses import replace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point, points
from specbench.config.suite_layout import Expectation
from specbench.report.expectations import expectations, outcome_counts
from tests.fixtures.summaries import method_summary, run_summary


class Suite:
    """The part of a suite that expectations read."""

    def __init__(self, **keys):
        self.expect = (Expectation(says="It holds", of={"method": "m"}, **keys),)


def point(value: float, run: str = "r", **place) -> Point:
    values = {"speedup": Estimate(value, value - 0.1, value + 0.1), "least": 1.0, "relative_latency": 1 / value}
    return Point(**{"pair": "p", "task": "t", "T": 1.0, "method": "m", "run": run, "values": values, **place})


def outcome(*found: Point, value: str = "speedup", **keys) -> str:
    (line,) = expectations(Suite(value=value, **keys), found)
    return line.removeprefix("It holds: ").partition(" (")[0]


def test_a_bound_may_be_another_value_of_the_same_point():
    assert outcome(point(1.2), at_least="least") == "confirmed 1"
    assert outcome(point(0.8), at_least="least") == "contradicted 1"


def test_values_are_equal_if_their_intervals_overlap():
    other = {"variant": "other"}
    assert outcome(point(1.0), point(1.15, **other, method="n"), equals=other) == "cannot be distinguished 1"
    assert outcome(point(1.0), point(1.3, **other, method="n"), equals=other) == "contradicted 1"


def test_points_are_compared_with_those_that_agree_in_the_named_dimensions():
    found = [point(1.0, x=1.0), point(1.2, x=2.0), point(1.1, x=1.0, method="n"), point(1.5, x=2.0, method="n")]
    assert outcome(*found, at_most={"method": "n"}, by=("x",)) == "confirmed 1, on the expected side within the noise 1"
    assert outcome(*found, at_most={"method": "n"}).startswith("confirmed 2, ")


def test_the_best_setting_is_chosen_at_each_place_over_runs():
    found = [
        point(0.8, "a", weight=0.1, proposer="one"), point(1.3, "b", weight=0.1, proposer="two"),
        point(1.4, "c", weight=0.5, proposer="one"), point(0.7, "d", weight=0.5, proposer="two"),
    ]  # fmt: skip
    assert outcome(*found, at_least=1.0, best=True, by=("weight",)) == "confirmed 2"
    assert outcome(*found, at_least=1.0) == "confirmed 2, contradicted 2"


def test_the_best_of_a_bound_is_its_largest_speed_and_its_smallest_latency():
    found = [point(1.0), point(0.5, method="n", setting="a"), point(1.5, method="n", setting="b")]
    assert outcome(*found, at_most={"method": "n"}, best=True) == "confirmed 1"
    assert outcome(*found, value="relative_latency", at_least={"method": "n"}, best=True) == "confirmed 1"


@pytest.mark.parametrize("keys", [{}, {"at_least": 1.0, "equals": 1.0}, {"at_least": 1.0, "by": ("wieght",)}])
def test_an_expectation_has_one_bound_and_known_dimensions(keys):
    with pytest.raises(ValueError, match=r"give one of|is not a dimension"):
        Expectation(says="", of={}, value="speedup", **keys)


def test_the_points_of_a_mixture_have_its_default_proposer_and_weights():
    options = {
        "name": "speculative-ensemble",
        "models": ["math", "code"],
        "target": {"name": "mixture", "weights": [0.3, 0.7]},
    }
    row = method_summary("we-se(weights=[0.3, 0.7])", acceptance_by_model={"math": 0.8, "code": 0.6})
    run = run_summary(row)
    run.spec.methods[row.method] = replace(run.spec.methods[row.method], options=options)
    (found,) = points([run])
    assert (found.proposer, found.weight, found.weighted) == ("math", 0.7, "code")
    assert (found.values["proposer_weight"], found.values["proposer_acceptance"]) == (0.3, 0.8)


def test_the_outcomes_of_all_expectations_are_counted_in_a_sentence():
    suite = Suite(value="speedup", at_least=1.0)
    assert outcome_counts(suite, [point(1.5)]) == ["The expected outcome is confirmed."]
    assert outcome_counts(suite, [point(1.5), point(1.2, x=2.0), point(0.5, x=3.0), point(1.05, x=4.0)]) == [
        "Of 4 expected outcomes, 2 are confirmed, 1 is on the expected side within the noise, 1 is contradicted."
    ]
    alike = Suite(value="speedup", equals=1.0)
    assert outcome_counts(alike, [point(1.0)]) == ["The expected outcome cannot be distinguished."]
    assert outcome_counts(suite, []) == []
