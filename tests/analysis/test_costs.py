"""Costs of forwards: means of a run, sizes in between and beyond, timed forwards that are scaled, and their origins."""

import numpy as np
import pytest

from specbench.analysis.costs import (
    ERRORS,
    LEAST,
    OFTEN,
    Origin,
    assumed,
    cost_of,
    fitted,
    forward_costs,
    measured_sizes,
    run_sizes,
    scaled,
    sums_of,
)
from tests.fixtures.records import record, usage_of

TIMED = {size: (20, 20 * (0.8 + 0.1 * (size - 1))) for size in range(1, 9)}
RUN = {1: (40, 40 * 1.0), 4: (40, 40 * 1.3), 5: (LEAST - 1, 0.1), 6: (40, 40 * 1.5)}


def test_sizes_with_few_forwards_are_interpolated_and_longer_blocks_are_extrapolated():
    costs = forward_costs(RUN)
    assert [costs.of(size) for size in (1, 4, 5, 6)] == pytest.approx([1.0, 1.3, 1.4, 1.5])
    assert costs.of(20) == pytest.approx(1.5 + 14 * 0.1)
    assert [costs.origins[size] for size in (4, 5, 6, 7)] == [Origin.RUN, Origin.BETWEEN, Origin.RUN, Origin.BETWEEN]
    assert (costs.of(5, "least"), costs.of(5, "most")) == pytest.approx((1.3, 1.5))


def test_rare_blocks_beyond_the_frequent_ones_are_pooled_at_their_mean_size():
    costs = forward_costs(
        {1: (40, 40.0), 2: (40, 44.0)} | {size: (1, 1.0 + 0.1 * (size - 1)) for size in (10, 12, 20, 22, 26)}
    )
    assert costs.of(18) == pytest.approx(2.7) and costs.origins[18] is Origin.BETWEEN
    assert costs.of(10) == pytest.approx(1.9) and costs.origins[10] is Origin.BETWEEN


def test_a_block_that_was_faster_than_a_smaller_one_gets_their_common_mean():
    costs = forward_costs({2: (10, 20.0), 3: (30, 30.0)})
    assert costs.of(2) == costs.of(3) == pytest.approx(50.0 / 40)


def test_one_token_keeps_its_own_mean_where_blocks_are_faster():
    """The routine of one token can be slow. Pooling would make the baseline look as fast as a block."""
    costs = forward_costs({1: (40, 80.0), 2: (40, 40.0), 6: (40, 60.0)})
    assert [costs.of(size) for size in (1, 2, 4, 6)] == pytest.approx([2.0, 1.0, 1.25, 1.5])
    assert costs.of(9) == pytest.approx(1.5 + 3 * 0.125)


def test_without_a_size_that_occurs_often_all_sizes_count():
    costs = forward_costs({1: (2, 2.0), 4: (1, 1.6)})
    assert [costs.of(size) for size in (1, 2, 4)] == pytest.approx([1.0, 1.2, 1.6])
    assert forward_costs({}) is None


def test_sizes_of_the_run_have_its_costs_and_others_are_scaled():
    costs = scaled({2: (50, 50 * 2.0), 4: (50, 50 * 3.0), 5: (3, 3 * 9.0)}, TIMED)
    assert (costs.of(2), costs.of(4)) == (2.0, 3.0)
    assert costs.of(3) == pytest.approx(1.0 * (2.0 / 0.9 + 3.0 / 1.1) / 2)
    assert costs.of(8) == pytest.approx(1.5 * 3.0 / 1.1)
    assert [costs.origins[size] for size in (2, 3, 5)] == [Origin.RUN, Origin.TIMED, Origin.TIMED]
    assert [costs.error(size) for size in (2, 3)] == [ERRORS[Origin.RUN], ERRORS[Origin.TIMED]]
    assert set(scaled({}, TIMED).origins[1:9]) == {Origin.TIMED}
    assert costs.of(12) == pytest.approx(3.0 / 1.1 * (1.5 + 4 * 0.1)), "the mean slope beyond the timed sizes"


def test_forwards_of_one_token_do_not_scale_those_of_blocks():
    """One token took twice as long in the run as in the loop, blocks of four as long."""
    costs = forward_costs({1: (OFTEN, OFTEN * 1.6), 4: (OFTEN, OFTEN * 1.1)}, TIMED)
    assert [costs.of(size) for size in (1, 3, 4)] == pytest.approx([1.6, 1.0, 1.1])


def test_scaled_costs_of_blocks_do_not_decrease_and_the_runs_own_sizes_have_its_error():
    costs = scaled({4: (40, 60.0), 8: (40, 48.0), 30: (40, 120.0)}, TIMED)
    assert costs.of(4) == costs.of(6) == costs.of(8) == pytest.approx(1.35)
    assert costs.of(30) == pytest.approx(3.0) and costs.origins[30] is Origin.RUN
    few = scaled({6: (40, 60.0)}, {size: TIMED[size] for size in (1, 2, 3, 5, 8)})
    assert few.error(6) == ERRORS[Origin.RUN]


def test_a_slow_forward_of_one_token_does_not_make_blocks_look_slow():
    assert [forward_costs({1: (40, 80.0), 6: (40, 40.0)}).of(size) for size in (1, 2, 5, 6)] == [2.0, 1.0, 1.0, 1.0]
    loop = {1: (20, 60.0)} | dict.fromkeys(range(2, 9), (20, 20.0))
    assert [forward_costs({6: (40, 40.0)}, loop).of(size) for size in (1, 2, 6)] == pytest.approx([3.0, 1.0, 1.0])


def test_the_error_of_a_size_that_was_not_measured_covers_its_range():
    costs = forward_costs({2: (40, 40.0), 8: (40, 80.0)})
    assert costs.error(5) == pytest.approx((2.0 - 1.0) / 2 / 1.5)
    assert costs.error(2) == ERRORS[Origin.RUN]


def test_forwards_of_one_token_come_from_the_baseline():
    rows = [record(models={"target": usage_of({1: (1, 9.0), 4: (8, 12.0)})})]
    base = [record(models={"target": usage_of({1: (30, 30.0)})})]
    costs = forward_costs(run_sizes(rows, base, "target"))
    assert [costs.of(size) for size in (1, 4)] == pytest.approx([1.0, 1.5])
    cost = cost_of(["lookup", "target"], {"target": costs})
    assert [cost(0, 1), cost(1, 4)] == pytest.approx([0.0, 1.5])
    assert cost_of(["target"], {"target": costs}, as_in_papers=True)(0, 4) == pytest.approx(1.0)


def test_assumed_costs_are_the_same_for_every_size():
    costs = assumed(0.25)
    assert [costs.of(size) for size in (1, 6, 60)] == [0.25] * 3 and costs.origins[1] is Origin.ASSUMED


def test_costs_of_several_sums_are_those_of_each():
    """Leading axes are independent: the sums without each prompt of a jackknife."""
    several = [RUN, {size: (count, 2 * spent) for size, (count, spent) in RUN.items()}]
    at = measured_sizes(RUN)
    together = fitted(np.stack([sums_of(sizes, 9) for sizes in several]), at)
    for i, sizes in enumerate(several):
        alone = fitted(sums_of(sizes, 9), at)
        for bound in ("seconds", "least", "most"):
            assert getattr(together, bound)[i] == pytest.approx(getattr(alone, bound))
