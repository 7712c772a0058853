"""The judge of changes: one rule and one table of limits for every kind of samples."""

import numpy as np
import pytest

from specbench.analysis.acceptance_profile import of_lengths
from specbench.analysis.metric import Direction
from specbench.features.exchange.profile_comparison import compare_profiles
from specbench.features.gate.changes import Blocks, Comparable, Moments, Paired, judge, mean
from specbench.features.gate.verdict import GateLimits, Quantity, Status

LIMITS = GateLimits()
NOISE = np.random.default_rng(0)


def lengths(factor: float, prompts: int = 40) -> Comparable:
    """The mean acceptance lengths of some prompts, 3.00 on average, times a factor."""
    rows = 3.0 * factor * (1.0 + np.linspace(-0.1, 0.1, prompts))[:, None]
    return Comparable(name="length", quantity=Quantity.acceptance, samples=Paired(rows, mean))


def profile(mean_length: float) -> Comparable:
    return Comparable(name="length", quantity=Quantity.acceptance, samples=Moments(mean_length, 1.0, 1_000_000))


def speeds(factor: float, noise: float = 0.001, sessions: int = 1, decides: bool = True) -> Comparable:
    blocks = [list(np.log(factor) + noise * np.array([-1.0, 0.0, 1.0, -0.5, 0.5])) for _ in range(sessions)]
    return Comparable(name="speed", quantity=Quantity.speed, samples=Blocks(blocks), decides=decides)


@pytest.mark.parametrize(
    ("after", "status"), [(3.00, Status.same), (2.94, Status.same), (2.93, Status.regression), (3.07, Status.improved)]
)
def test_one_change_has_one_verdict_whatever_was_measured(after, status):
    """3.00 to 2.94 was ok as a profile and a regression as a result of a server."""
    assert judge(lengths(1.0), lengths(after / 3.0), LIMITS).status is status
    assert judge(profile(3.0), profile(after), LIMITS).status is status


def test_profiles_of_other_tools_have_the_limit_of_all_acceptance():
    from collections import Counter

    def of(accepted: float):
        counts = Counter({1: round(1e6 * (1.0 - accepted)), 2: round(1e6 * accepted)})
        return of_lengths(counts, 1, "a", method="x")

    (within,) = compare_profiles([of(0.5)], [of(0.48)], LIMITS)
    assert within.status is Status.same, "1.50 to 1.48 is 1.3 %"
    (beyond,) = compare_profiles([of(0.5)], [of(0.44)], LIMITS)
    assert (beyond.status, beyond.title) == (Status.inconclusive, "lower acceptance"), "a cheaper draft may pay"


@pytest.mark.parametrize("better", [Direction.higher, Direction.lower])
def test_the_direction_decides_which_change_is_a_loss(better):
    sides = [
        Comparable(name="x", quantity=Quantity.acceptance, samples=Paired(rows, mean), better=better)
        for rows in (np.arange(10.0, 20.0)[:, None], 1.1 * np.arange(10.0, 20.0)[:, None])
    ]
    expected = Status.improved if better is Direction.higher else Status.regression
    assert judge(*sides, LIMITS).status is expected


def test_every_session_must_exceed_the_limit():
    base = speeds(1.0, sessions=2)
    one_slow = Blocks([*speeds(0.9).samples.sessions, *speeds(1.0).samples.sessions])
    assert judge(base, speeds(0.9, sessions=2), LIMITS).status is Status.regression
    found = judge(base, Comparable(name="speed", quantity=Quantity.speed, samples=one_slow), LIMITS)
    assert found.status is not Status.regression and "do not agree" in found.detail


def test_a_loss_in_noisy_samples_is_undecided_and_not_ok():
    assert judge(speeds(1.0, noise=0.5), speeds(0.7, noise=0.5), LIMITS).status is Status.inconclusive
    assert judge(speeds(1.0, noise=0.5), speeds(1.4, noise=0.5), LIMITS).status is Status.same, "no loss"
    assert judge(speeds(1.0, noise=0.04), speeds(0.96, noise=0.04), LIMITS).status is Status.same, "would show 30 %"


def test_a_lower_acceptance_of_another_drafter_is_decided_by_the_speed():
    def sides(is_timed):
        return (
            Comparable(name="a", quantity=Quantity.acceptance, samples=of, decides=False, is_timed=is_timed)
            for of in (lengths(1.0).samples, lengths(0.8).samples)
        )

    assert judge(*sides(True), LIMITS).status is Status.skipped
    assert judge(*sides(False), LIMITS).status is Status.inconclusive


def test_the_level_of_significance_holds_without_a_change():
    found = []
    for _ in range(400):
        a, b = (Blocks([list(NOISE.normal(0.0, 0.05, 8))]) for _ in range(2))
        sides = (Comparable(name="s", quantity=Quantity.speed, samples=of) for of in (a, b))
        found.append(judge(*sides, LIMITS).status)
    assert sum(status in (Status.regression, Status.improved) for status in found) <= 12, "4 expected at .01"
