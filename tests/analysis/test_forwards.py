"""The line through the times of forwards."""

import pytest

from specbench.analysis.costs import line_of


def test_line_of_exact_times_has_no_residuals_and_leaves_out_one_token():
    sizes = {1: (20, 20 * 0.9)} | {n: (20, 20 * (1.0 + 0.1 * n)) for n in range(2, 9)}
    line = line_of(sizes)
    assert (line.one, line.fixed, line.per_token) == pytest.approx((0.9, 1.0, 0.1))
    assert max(abs(line.residual(n)) for n in line.means) < 1e-12


def test_largest_residual_is_at_the_size_that_costs_more():
    sizes = {1: (20, 20.0)} | {n: (20, 20 * (1.0 + 0.1 * n) * (1.5 if n == 5 else 1.0)) for n in range(2, 26)}
    line = line_of(sizes)
    assert line.worst == 5 and line.residual(5) > 0.4


def test_no_line_without_enough_forwards_of_three_sizes():
    assert line_of({1: (20, 1.0), 2: (20, 2.0), 3: (20, 3.0), 4: (2, 0.5)}) is None
    assert line_of({2: (20, 2.0), 3: (20, 3.0), 4: (20, 4.0)}) is None
