"""The cascades paper's two summaries of a curve, on curves that are small enough to follow by hand.

See docs/papers/speccascade.md, Quality-latency curves.
"""

import numpy as np
import pytest

from specbench.analysis.frontier import Curve, Frontier, best, matching, summaries_of


def test_the_speed_at_the_large_models_quality_is_interpolated():
    latency, quality = np.array([0.4, 0.6, 0.8]), np.array([0.2, 0.4, 0.5])
    assert matching(latency, quality, 0.45) == pytest.approx(1 / 0.7)  # half way between .6 and .8
    assert matching(latency, quality, 0.4) == pytest.approx(1 / 0.6)
    assert matching(latency, quality, 0.1) == pytest.approx(1 / 0.4)  # its fastest point is good enough


def test_a_quality_that_is_never_reached_has_no_speed_and_a_slow_curve_no_quality():
    latency, quality = np.array([1.4, 1.2]), np.array([0.2, 0.3])
    assert matching(latency, quality, 0.35) is None
    assert best(latency, quality, 0.35) is None
    assert best(np.array([0.9, 1.0, 1.1]), np.array([0.1, 0.2, 0.9]), 0.5) == 0.2


def test_neighbours_are_those_on_the_latency_axis_whatever_the_order_of_the_parameter():
    latency, quality = np.array([0.8, 0.4, 0.6]), np.array([0.5, 0.2, 0.4])
    assert matching(latency, quality, 0.45) == pytest.approx(1 / 0.7)


def noise(points: int, prompts: int, seed: int) -> Frontier:
    """A curve whose points are all equal to the large model: what differs is noise."""
    rng = np.random.default_rng(seed)
    seconds = 1.0 + 0.1 * rng.random((points, prompts))
    quality = [np.stack([(rng.random(prompts) < 0.5).astype(float), np.zeros(prompts)], axis=1) for _ in range(points)]
    settings = [f"alpha={i}" for i in range(points)]
    large = np.stack([(rng.random(prompts) < 0.5).astype(float), np.zeros(prompts)], axis=1)
    return Frontier(prompts, np.full(prompts, 1.2), large, "mean", [Curve("rule", settings, seconds, quality)])


def test_cross_validated_choices_are_unbiased():
    """All 20 points have a true quality of 0.5; the best of them looks better on the prompts that chose it.

    Over 10 worlds the mean of the chosen quality is above 0.55, that of the unseen one within 0.05 of 0.5: its standard
    error is 0.5 / sqrt(40 x 10) = 0.025 at most, less by averaging over resamples.
    """
    found = [summaries_of(noise(20, 40, seed))["rule"] for seed in range(10)]
    assert np.mean([each.best.value for each in found]) > 0.55
    assert abs(np.mean([each.best.unseen for each in found]) - 0.5) < 0.05
    # What matched the large model where it was chosen need not match it elsewhere; every point is faster than it:
    assert 0.2 < np.mean([each.matching.held for each in found]) < 0.8
    assert all(each.best.held == 1.0 for each in found)


def test_intervals_contain_the_value_and_count_resamples_without_a_crossing():
    found = summaries_of(noise(3, 30, 1))["rule"]
    assert found.best.reached == 1.0  # every point is faster than the large model
    assert found.best.low <= found.best.value <= found.best.high
    assert 0.0 < found.matching.reached < 0.975
    assert found.matching.low == 0.0


def test_from_few_prompts_there_is_no_interval():
    found = summaries_of(noise(3, 4, 1))["rule"].best
    assert found.value is not None
    assert (found.low, found.unseen, found.reached) == (None, None, None)
