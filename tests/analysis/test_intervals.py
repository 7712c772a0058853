"""Student's t distribution, and the paired test of prompts, against known values and on random data."""

import math

import numpy as np
import pytest

from specbench.analysis.intervals import (
    Estimate,
    incomplete_beta,
    mean_of_bounded,
    paired_test,
    student_quantile,
    student_tails,
)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.706204736, 1, 0.05), (4.604094871, 4, 0.01), (2.0, 10, 0.0733880348), (2.5758293, 1e7, 0.01), (0.0, 3, 1.0)],
)
def test_students_tails_are_those_of_the_tables(t, freedom, p):
    assert student_tails(t, freedom) == pytest.approx(p, rel=1e-5)
    assert student_tails(-t, freedom) == student_tails(t, freedom)
    assert p == 1.0 or student_quantile(freedom, p) == pytest.approx(t, rel=1e-5)


def test_the_incomplete_beta_is_its_polynomial():
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(
        sum(math.comb(4, k) * 0.4**k * 0.6 ** (4 - k) for k in (2, 3, 4))
    )
    assert incomplete_beta(3, 2, 0.9) == pytest.approx(sum(math.comb(4, k) * 0.9**k * 0.1 ** (4 - k) for k in (3, 4)))
    assert (incomplete_beta(2, 3, 0.0), incomplete_beta(2, 3, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("prompts", [5, 8])
def test_a_paired_test_of_few_prompts_has_at_most_two_percent_false_positives(prompts):
    """Ratios of sums, as of tokens and rounds: at alpha .01."""
    rng = np.random.default_rng(0)

    def side():
        below = np.exp(rng.normal(4.0, 0.6, prompts))
        return np.stack([below * np.exp(rng.normal(0.0, 0.1, prompts)), below], axis=1)

    found = [paired_test(side(), side(), lambda rows: rows[:, 0].sum() / rows[:, 1].sum())[1] for _ in range(1000)]
    assert np.mean(np.array(found) < 0.01) <= 0.02


def test_the_test_of_a_statistic_is_paired():
    """A change of a tenth of the prompts' own spread: no unpaired test would see it."""
    rng = np.random.default_rng(0)
    base = rng.normal(0, 1, (40, 1))
    change, p = paired_test(base, base - 0.1 + rng.normal(0, 0.05, (40, 1)), lambda rows: float(rows.mean()))
    assert change == pytest.approx(-0.1, abs=0.03) and p < 0.01
    assert paired_test(base, base, lambda rows: float(rows.mean())) == (0.0, 1.0)


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
