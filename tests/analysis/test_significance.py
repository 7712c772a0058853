"""Significance tests against tables, other formulas and random data."""

import math

import numpy as np
import pytest

from specbench.analysis.significance import (
    binomial_at_most,
    fisher,
    holm,
    incomplete_beta,
    mcnemar,
    normal_quantile,
    normal_tails,
    normal_test,
    occurrences_at_least,
    paired_exchanges,
    paired_test,
    permutation_p,
    permuted_labels,
    student_quantile,
    student_tails,
    student_test,
    welch,
)  # fmt: skip


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


def test_the_number_of_independent_events_has_the_tail_of_its_distribution():
    assert occurrences_at_least(0, [0.3]) == 1.0 and occurrences_at_least(2, [0.5, 0.5]) == pytest.approx(0.25)
    assert occurrences_at_least(1, [0.1, 0.2]) == pytest.approx(1.0 - 0.9 * 0.8) and occurrences_at_least(1, []) == 0.0


def test_holm_rejects_in_steps():
    assert holm([0.01, 0.04, 0.03], 0.05) == [True, False, False]
    assert holm([0.01, 0.02, 0.03], 0.05) == [True, True, True]
    assert holm([], 0.05) == []


def test_tails_of_the_normal_distribution_are_two_sided_and_hold_far_out():
    assert normal_tails(1.959964) == pytest.approx(0.05, rel=1e-6) == normal_tails(-1.959964)
    assert normal_tails(10.0) == pytest.approx(1.5239706e-23, rel=1e-6)
    assert normal_tails(normal_quantile(0.995)) == pytest.approx(0.01)


def test_a_difference_without_an_error_is_certain():
    assert (normal_test(0.0, 0.0), normal_test(0.1, 0.0)) == (1.0, 0.0)
    assert (student_test(0.0, 0.0, 4.0), student_test(0.1, 0.0, 4.0)) == (1.0, 0.0)
    assert student_test(2.776445, 1.0, 4.0) == pytest.approx(0.05, rel=1e-5) and normal_test(1.0, 1.0) < 0.32


@pytest.mark.parametrize(("n", "chance"), [(1, 0.5), (9, 0.9), (40, 0.02)])
def test_the_binomial_tail_is_the_sum_of_its_terms(n, chance):
    terms = [math.comb(n, k) * chance**k * (1.0 - chance) ** (n - k) for k in range(n + 1)]
    for count in range(n + 1):
        assert binomial_at_most(count, n, chance) == pytest.approx(sum(terms[: count + 1]), rel=1e-9)
        assert occurrences_at_least(count, [chance] * n) == pytest.approx(sum(terms[count:]), rel=1e-9)


def test_binomial_tails_at_certain_and_impossible_events():
    assert (binomial_at_most(0, 0, 0.9), binomial_at_most(2, 3, 0.0), binomial_at_most(2, 3, 1.0)) == (1.0, 1.0, 0.0)


def test_many_discordant_pairs_do_not_overflow():
    assert mcnemar(700, 700) == 1.0 and 0.0 < mcnemar(600, 900) < 1e-13
    assert binomial_at_most(1000, 3000, 0.5) < 1e-70


def test_fishers_test_is_that_of_the_lady_tasting_tea():
    """Eight cups, of which three of four and all four are named right: Fisher (1935), chapter 2."""
    assert fisher(3, 1, 4) == pytest.approx(17 / 70) and fisher(4, 0, 4) == pytest.approx(1 / 70)
    assert fisher(0, 0, 16) == 1.0


def test_all_exchanges_of_few_prompts_are_tried_and_some_of_many():
    few = paired_exchanges(3)
    assert len(few) == 8 and not few[0].any() and len({tuple(row) for row in few}) == 8
    many = paired_exchanges(20)
    assert many.shape == (20_000, 20) and not many[0].any() and many.mean() == pytest.approx(0.5, abs=0.01)


def test_the_p_of_permutations_counts_the_observed_order():
    assert permutation_p(np.array([3.0, 1.0, 3.0 - 1e-12, 2.0])) == 0.5
    labels = permuted_labels(np.array([1.0, 2.0, 3.0]), 5, np.random.default_rng(0))
    assert labels.shape == (6, 3) and labels[0].tolist() == [1.0, 2.0, 3.0] and (labels.sum(axis=1) == 6.0).all()
