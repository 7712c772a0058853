"""Which measured numbers decide a contradiction."""

from dataclasses import replace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point
from specbench.features.suites.papers.expectation import Expectation
from specbench.features.suites.papers.expectations import outcomes_of
from specbench.features.suites.papers.mechanisms import factors_of, mechanism_lines


def point(method, speed, length, parts, **values):
    own = {
        "speedup": Estimate(speed, 0.99 * speed, 1.01 * speed),
        "accepted_length": length,
        "round_milliseconds": parts,
    }
    return Point(pair="p", task="t", T=0.0, method=method, run="r", baseline=method == "ar", values=own | values)


BASELINE = point("ar", 1.0, 1.0, {"target": 10.0})


class Claims:
    """A suite with one expectation."""

    def __init__(self, **keys):
        self.expect = (Expectation(says="It pays", **({"of": {"method": "m"}, "value": "speedup"} | keys)),)


def lines(*points, **keys):
    return mechanism_lines(outcomes_of(Claims(**keys), points), points)


@pytest.mark.parametrize(
    ("speed", "length", "parts", "said"),
    [
        (0.5, 2.0, {"target": 40.0}, "the time decides, most of all that of target (40.0 against 10.0 ms per round)"),
        (0.8, 1.2, {"target": 10.0, "draft": 5.0}, "the time decides, most of all that of draft (5.0 against 0.0 ms"),
        (0.9, 2.0, {"target": 10.0, "draft": 1.0}, "such as reading the prompt, decides (a factor of 0.49)"),
    ],
)
def test_the_factor_that_lowers_a_speed_most_is_named(speed, length, parts, said):
    (line,) = lines(BASELINE, point("m", speed, length, parts), at_least=1.0)
    assert line.startswith("It pays (1 of 1 contradicted): a round of m commits ") and said in line


def test_a_method_with_fewer_tokens_per_round_loses_by_them():
    found = [BASELINE, point("m", 1.0, 2.0, {"target": 20.0}), point("n", 2.0, 4.0, {"target": 20.0})]
    (line,) = lines(*found, at_least={"method": "n"})
    assert "commits 0.50 times the tokens of one of n and takes 1.00 times as long; the tokens per round decide" in line


def test_a_method_that_is_too_fast_for_a_claim_is_explained_by_its_largest_factor():
    (line,) = lines(BASELINE, point("m", 2.0, 4.0, {"target": 20.0}), at_most=1.0)
    assert "the tokens per round decide" in line


def test_the_factors_give_the_ratio_of_speeds():
    one, two = point("m", 1.3, 3.1, {"target": 12.0, "draft": 4.0}), point("n", 1.1, 2.2, {"target": 13.0})
    factors = factors_of(one, two, "speedup")
    assert factors.tokens * factors.time * factors.rest == pytest.approx(1.3 / 1.1)


def test_lengths_and_scores_name_what_they_depend_on():
    short = point("m", 1.0, Estimate(2.0, 1.9, 2.1), {"target": 1.0}, acceptance_rate=0.4)
    (line,) = lines(BASELINE, short, value="accepted_length", at_least=9.4)
    assert line.endswith("m accepts 0.40 of the drafted tokens.")
    ours = point("m", 1.0, 1.0, {"target": 1.0}, score=Estimate(0.4, 0.39, 0.41), target_calls=0.3)
    other = ours.values | {"score": Estimate(0.8, 0.79, 0.81), "target_calls": 0.6}
    (line,) = lines(ours, replace(ours, method="n", values=other), value="score", near={"method": "n"}, margin=0.05)
    assert line.endswith("m runs the target 0.30 times per token, n 0.60 times.")


def test_a_speed_over_sd_is_compared_with_sd():
    sd = point("sd", 1.0, 2.0, {"target": 10.0}, over_sd=1.0)
    ours = point("m", 0.5, 1.0, {"target": 10.0}, over_sd=Estimate(0.5, 0.49, 0.51))
    (line,) = lines(BASELINE, sd, ours, value="over_sd", at_least=1.0)
    assert "commits 0.50 times the tokens of one of sd" in line


def test_without_a_contradiction_there_is_no_reason():
    assert lines(BASELINE, point("m", 2.0, 4.0, {"target": 20.0}), at_least=1.0) == []
