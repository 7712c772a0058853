"""The cascades paper's two summaries of a curve, on curves that are small enough to follow by hand.

See docs/papers/speccascade.md, Quality-latency curves.
"""

from dataclasses import replace

import numpy as np
import pytest

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.points import Point
from specbench.features.suites.frontier import (
    Curve,
    CurveKey,
    Frontier,
    best,
    candidates,
    fastest_within,
    matching,
    summaries_of,
)


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


def by_label(found):
    return {key.label: value for key, value in found}


def noise(points: int, prompts: int, seed: int) -> Frontier:
    """A curve whose points are all equal to the large model: what differs is noise."""
    rng = np.random.default_rng(seed)
    seconds = 1.0 + 0.1 * rng.random((points, prompts))
    quality = [np.stack([(rng.random(prompts) < 0.5).astype(float), np.zeros(prompts)], axis=1) for _ in range(points)]
    settings = [{"alpha": i} for i in range(points)]
    large = np.stack([(rng.random(prompts) < 0.5).astype(float), np.zeros(prompts)], axis=1)
    return Frontier(
        prompts, np.full(prompts, 1.2), large, "mean", [Curve(CurveKey("rule"), settings, seconds, quality)]
    )


def test_cross_validated_choices_are_unbiased():
    """All 20 points have a true quality of 0.5; the best of them looks better on the prompts that chose it.

    Over 10 worlds the mean of the chosen quality is above 0.55, that of the unseen one within 0.05 of 0.5: its standard
    error is 0.5 / sqrt(40 x 10) = 0.025 at most, less by averaging over resamples.
    """
    found = [by_label(summaries_of(noise(20, 40, seed)))["rule"] for seed in range(10)]
    assert np.mean([each.best.value for each in found]) > 0.55
    assert abs(np.mean([each.best.holdout_value for each in found]) - 0.5) < 0.05
    # What matched the large model where it was chosen need not match it elsewhere; every point is faster than it:
    assert 0.2 < np.mean([each.matching.holdout_rate for each in found]) < 0.8
    assert all(each.best.holdout_rate == 1.0 for each in found)


def test_intervals_contain_the_value_and_count_resamples_without_a_crossing():
    found = by_label(summaries_of(noise(3, 30, 1)))["rule"]
    assert found.best.reach_rate == 1.0  # every point is faster than the large model
    assert found.best.low <= found.best.value <= found.best.high
    assert 0.0 < found.matching.reach_rate < 0.975
    assert found.matching.low == 0.0


def test_from_few_prompts_there_is_no_interval():
    found = by_label(summaries_of(noise(3, 4, 1)))["rule"].best
    assert found.value is not None
    assert (found.low, found.holdout_value, found.reach_rate) == (None, None, None)


def test_the_difference_of_two_curves_is_paired():
    """A curve that is better by a constant on every prompt is better in every resample, although the prompts differ."""
    world = noise(4, 40, 2)
    (curve,) = world.curves
    better = Curve(
        CurveKey("better"), curve.settings, curve.seconds, [each + np.array([0.1, 0.0]) for each in curve.statistics]
    )
    found = by_label(summaries_of(Frontier(40, world.seconds, world.statistics, "mean", [curve, better])))
    ours, theirs = found["better"].best, found["rule"].best
    assert ours.low < theirs.high, "their own intervals overlap"
    difference = ours.minus(theirs)
    assert [difference.value, difference.low, difference.high] == pytest.approx([0.1, 0.1, 0.1])


def test_a_curve_that_never_reaches_the_condition_counts_as_0():
    found = by_label(summaries_of(noise(4, 40, 2)))["rule"]
    never = replace(found.matching, value=None, resamples=(0.0,) * len(found.matching.resamples))
    assert never.minus(never) is None
    assert found.best.minus(replace(found.best, value=None, resamples=(0.0,) * len(found.best.resamples))).low > 0.0


def test_candidates_are_the_settings_that_may_be_chosen_and_their_neighbors():
    """Settings 0 to 3 are exact copies of the large model in quality, 4 to 9 far below it; larger settings are faster."""
    prompts, large = 40, np.stack([np.ones(40), np.zeros(40)], axis=1)
    seconds = np.stack([np.full(prompts, 1.0 - 0.05 * i) for i in range(10)])
    quality = [large if i < 4 else large * 0.1 for i in range(10)]
    world = Frontier(
        prompts,
        np.ones(prompts),
        large,
        "mean",
        [Curve(CurveKey("rule"), [{"alpha": i} for i in range(10)], seconds, quality)],
    )
    # the fastest at its quality is 3, the best within its latency the first of the equal ones, 0
    assert by_label(candidates(world))["rule"] == [{"alpha": i} for i in range(5)]
    slow = Frontier(prompts, np.full(prompts, 0.1), large * 2, "mean", world.curves)
    assert by_label(candidates(slow))["rule"] == [{"alpha": i} for i in (0, 4, 9)], (
        "never chosen from: the ends and the middle"
    )


# The allowed drop


def curve(name: str, quality: float, seconds: float, prompts: int = 40) -> Curve:
    """A curve of three points with one quality and one time."""
    statistics = np.stack([np.full(prompts, quality), np.zeros(prompts)], axis=1)
    return Curve(CurveKey(name), [{"x": i} for i in range(3)], np.full((3, prompts), seconds), [statistics] * 3)


def within(drop: float) -> dict[str, float | None]:
    """Return the speed within a drop of two curves, one a point of 100 worse than the large model and faster."""
    large = np.stack([np.full(40, 0.8), np.zeros(40)], axis=1)
    curves = [curve("equal", 0.8, 0.5), curve("worse", 0.79, 0.25)]
    found = by_label(summaries_of(Frontier(40, np.ones(40), large, "mean", curves, drop)))
    return {label: summaries.within_drop.value for label, summaries in found.items()}


def test_a_faster_curve_counts_once_its_loss_is_allowed():
    assert within(0.0) == {"equal": 2.0, "worse": None}
    assert within(0.02) == {"equal": 2.0, "worse": 4.0}


def test_a_lossless_method_has_the_large_models_quality_whatever_its_samples_scored():
    large = np.stack([np.full(40, 0.8), np.zeros(40)], axis=1)
    unlucky = replace(curve("sd", 0.7, 0.5), is_lossless=True)
    ((_, found),) = summaries_of(Frontier(40, np.ones(40), large, "mean", [unlucky], 0.02))
    assert found.within_drop.value == found.matching.value == 2.0


def choice(value: float, *resamples: float) -> CurveChoice:
    return CurveChoice(value, min(resamples), max(resamples), "x=1", resamples=resamples)


def test_the_conclusion_names_the_fastest_curve_and_which_equal_it():
    rows = {"a": choice(2.0, 1.9, 2.1, 2.0), "b": choice(1.95, 1.85, 2.2, 1.9), "c": choice(1.0, 1.0, 1.0, 1.0)}
    points = [
        Point(pair="p", task="t", T=1.0, method=name, run="r", label=name, is_curve=True, values={"within_drop": found})
        for name, found in rows.items()
    ]
    (note,) = fastest_within(points, 0.02)
    assert str(note).startswith("p, t, T = 1: a (x=1) is the fastest within a drop of 2 points, 2.00x")
    assert str(note).endswith("cannot be distinguished from b; it is faster than c")
    (note,) = fastest_within(points[::2], 0.02)
    assert str(note).endswith("it is faster than c")
