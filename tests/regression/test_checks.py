"""The significance tests of verdicts, against known values and on random data."""

import numpy as np
import pytest

from specbench.regression.checks import mcnemar, welch


def test_mcnemar_uses_the_binomial_distribution():
    assert mcnemar(0, 8) == 2 / 2**8
    assert mcnemar(9, 1) == pytest.approx(2 * 11 / 2**10)
    assert (mcnemar(3, 3), mcnemar(0, 0)) == (1.0, 1.0)


def test_p_values_of_welch_are_uniform_under_the_null_hypothesis():
    """2,000 pairs of five normal values: 1 % of p below .01, give or take .67 (three standard deviations)."""
    rng = np.random.default_rng(0)
    found = [welch(rng.normal(size=5), rng.normal(size=5)).p for _ in range(2000)]
    assert np.mean(np.array(found) < 0.01) == pytest.approx(0.01, abs=0.0067)
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)
    assert welch([1.0, 1.0], [1.0, 1.0]).p == 1.0 and welch([1.0, 1.0], [2.0, 2.0]) == (1.0, 0.0)
