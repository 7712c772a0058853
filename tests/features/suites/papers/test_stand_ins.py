"""Stand-ins: the acceptance that a printed speed implies, and which number alone decides an outcome."""

from dataclasses import replace

import pytest

from specbench.analysis.points import Point
from specbench.decoding.traits import Theory
from specbench.features.suites.papers.stand_ins import (
    Block,
    ModelBytes,
    StandIns,
    fastest,
    implied_rate,
    model_bytes,
    printed_speeds,
    stands_for,
)

ALTERNATING = Theory(formula="ensemble", models=("llama", "vicuna"), gamma=(1, 1))
EQUAL = {"llama": 1.0, "vicuna": 1.0}


@pytest.mark.parametrize(("printed", "rate"), [(1.58, 0.734), (1.52, 0.684), (1.41, 0.582), (1.46, 0.63)])
def test_table_2_of_speculative_ensemble_implies_these_acceptance_rates(printed, rate):
    assert implied_rate([ALTERNATING], EQUAL, ("llama", "vicuna"), printed) == pytest.approx(rate, abs=1e-3)


def test_the_best_of_several_settings_implies_the_lowest_rate():
    longer = Theory(formula="ensemble", models=("llama", "vicuna"), gamma=(5, 1))
    both = implied_rate([ALTERNATING, longer], EQUAL, ("llama", "vicuna"), 1.58)
    assert both == pytest.approx(
        min(implied_rate([each], EQUAL, ("llama", "vicuna"), 1.58) for each in (ALTERNATING, longer))
    )


def test_a_speed_that_no_acceptance_reaches_implies_none():
    assert implied_rate([ALTERNATING], EQUAL, ("llama", "vicuna"), 2.1) is None
    assert fastest([ALTERNATING], EQUAL, ("llama", "vicuna"), 1.0) == pytest.approx(2.0, rel=0.01)


def test_printed_speeds_are_those_of_all_tables_of_a_pair():
    assert {speed.row.method for speed in printed_speeds("llama-vicuna")} == {"we-sd", "we-se"}
    assert {speed.row.T for speed in printed_speeds("llama-2")} == {"0", "1"}


def test_a_printed_speed_has_the_draft_lengths_of_its_table():
    lengths = {speed.row.method: speed.lengths for speed in printed_speeds("llama-vicuna")}
    assert lengths == {"we-sd": ((5,), (1,)), "we-se": ((5, 1), (1, 1))}
    assert {speed.lengths for speed in printed_speeds("vicuna-7b") if speed.row.method == "sd"} == {((5,),)}


def test_bytes_are_known_for_models_and_heads_of_the_papers_pairs():
    sizes = model_bytes("vicuna-7b")
    assert sizes["draft"].forward / sizes["target"].forward == pytest.approx(1 / 150, rel=0.1)
    assert 0.03 < sizes["eagle"].forward / sizes["target"].forward < 0.08
    assert stands_for("vicuna-7b") == ""


class Known(StandIns):
    """A stand-in `here` of the pair `there`, with settings of `sd` by draft length, whose costs and rates are given."""

    def __init__(self, points, rate=0.6, draft=0.01, block=1.0):
        super().__init__((), points)
        self.rate, self.draft, self.block = rate, draft, block

    pairs = {"here": "there"}  # noqa: RUF012  (in place of the cached property)

    def theory(self, point):
        return Theory(formula="chain", models=("draft", "target"), gamma=(int(point.x or 5),))

    def baseline(self, point):
        return ("target",)

    def implied(self, point):
        return self.rate

    def paper_sizes(self, pair):
        return {"draft": 0.01, "target": 1.0}

    def bytes_here(self, pair):
        return {"draft": ModelBytes("draft", self.draft), "target": ModelBytes("target", 1.0)}

    def block_of(self, pair, role, method=""):
        return Block(6, self.block)


def sd(corrected, gamma=5, acceptance=0.6, speedup=None, **keys):
    values = {"corrected": corrected, "acceptance_rate": acceptance, "speedup": speedup or corrected}
    return Point(
        pair="here", task="t", T=0.0, method="sd", run="r", settings={"proposer.gamma": gamma}, values=values, **keys
    )


def ensemble_speed(gamma, rate=0.6):
    theory = Theory(formula="chain", models=("draft", "target"), gamma=(gamma,))
    return fastest([theory], {"draft": 0.01, "target": 1.0}, ("target",), rate)


def test_a_stand_in_decides_what_theory_expects_here_and_not_from_the_papers_numbers():
    bound = 1.1 * ensemble_speed(5)  # the paper's numbers give 0.91 times the bound
    fast = sd(1.2 * bound, acceptance=0.9)
    known = Known([fast])
    reason = known.decides([fast], bound, "speedup", is_above=True)
    assert "accepts 0.90 of the drafted tokens (paper, implied: 0.60)" in reason
    assert "1.20 times the bound from the numbers here, and 0.91 times from the paper's" in reason
    assert known.decides([fast], bound, "speedup", is_above=False) == "", "contradicted in spite of both: it counts"
    assert known.decides([fast], bound, "score", is_above=True) == "", "the rule is about speedups"


@pytest.mark.parametrize(("measured", "is_left_out"), [(1.15, True), (1.05, False), (1.4, False)])
def test_an_outcome_that_theory_does_not_predict_here_is_counted(measured, is_left_out):
    """Theory expects 1.2 times the bound here."""
    bound = ensemble_speed(5) / 0.9
    point = sd(1.2 * bound, acceptance=0.9, speedup=measured * bound)
    assert bool(Known([point]).decides([point], bound, "speedup", is_above=True)) == is_left_out


def test_a_claim_that_cannot_hold_here_is_left_out_like_one_that_cannot_fail():
    bound = 0.9 * ensemble_speed(5)
    slow = sd(0.8 * bound, acceptance=0.2)
    assert "0.80 times the bound" in Known([slow]).decides([slow], bound, "speedup", is_above=False)


@pytest.mark.parametrize(
    ("corrected", "acceptance", "paper"),
    [
        (1.05, 0.9, 0.9),  # theory expects it by less than 10 % here
        (1.20, 0.9, 1.02),  # theory expects it from the paper's numbers too
        (1.20, 0.6, 0.9),  # no number differs
    ],
)
def test_other_outcomes_are_counted(corrected, acceptance, paper):
    bound = ensemble_speed(5) / paper
    point = sd(corrected * bound, acceptance=acceptance)
    assert Known([point]).decides([point], bound, "speedup", is_above=True) == ""


def test_the_cost_of_a_draft_and_of_a_block_are_named():
    bound = ensemble_speed(5) / 0.9
    point = sd(1.2 * bound)
    reason = Known([point], draft=0.3, block=2.0).decides([point], bound, "speedup", is_above=True)
    assert "a forward of draft reads 0.300 of the bytes of one of target (paper 0.010)" in reason
    assert "a forward of target over 6 tokens takes 2.00 times as long" in reason


def test_both_sides_of_the_best_setting_are_the_fastest_setting_in_theory():
    """In the paper a draft of 8 tokens is faster than one of 2; here the best one is 2."""
    bound = 0.97 * ensemble_speed(8)
    points = [sd(1.2 * bound, 2, 0.9), sd(1.0 * bound, 8, 0.9)]
    assert ensemble_speed(2) < bound
    known = Known(points)
    assert known.decides(points[:1], bound, "speedup", is_above=True, is_best=True) == ""
    assert known.decides(points[:1], bound, "speedup", is_above=True) != ""
    low = 1.05 * ensemble_speed(8)
    points = [sd(1.0 * low, 2, 0.9, speedup=1.2 * low), sd(1.2 * low, 8, 0.9, speedup=0.9 * low)]
    assert "1.20 times the bound from the numbers here" in Known(points).decides(
        points[:1], low, "speedup", is_above=True, is_best=True
    ), "8 is the fastest in theory, though 2 measured fastest"


def test_points_of_groups_curves_and_other_pairs_are_counted():
    bound = ensemble_speed(5) / 0.9
    for other in (sd(9.0, group="math"), sd(9.0, is_curve=True), replace(sd(9.0), pair="elsewhere")):
        assert Known([other]).decides([other], bound, "speedup", is_above=True) == ""
