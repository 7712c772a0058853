"""Bounds and overlaps of intervals, on random data."""

import numpy as np

from specbench.analysis.intervals import Estimate, mean_of_bounded


def test_bounds_of_a_mean_hold_for_few_heavy_losses_among_small_changes():
    """Standard errors accept such losses in more than half of the cases; each of these bounds fails in at most 5 %."""
    rng, failures = np.random.default_rng(0), 0
    for _ in range(200):
        values = np.where(rng.random(40) < 0.02, -1.0, 0.0) + rng.uniform(-0.01, 0.01, 40)
        found = mean_of_bounded(values.clip(-1.0, 1.0))
        assert found.low < found.value < found.high
        failures += found.low > -0.02
    assert failures <= 0.05 * 200


def test_bounds_of_a_mean_narrow_with_the_number_of_prompts():
    for n in (30, 300):
        found = mean_of_bounded(np.zeros(n))
        assert found.low == -found.high and 3.0 / n < found.high < 4.0 / n
    steady = mean_of_bounded(np.full(300, -0.2))
    assert -0.25 < steady.low < -0.2 < steady.high < -0.15
    assert mean_of_bounded(np.zeros(4)) == Estimate(0.0, None, None)
