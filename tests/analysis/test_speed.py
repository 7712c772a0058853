"""Ranks by speed: methods that cannot be distinguished share a rank."""

import numpy as np
import pytest

from specbench.analysis.ranking import Rank, fewest_prompts, ranks
from specbench.analysis.speed import longest_generation, speedup
from tests.fixtures.records import record

PROMPTS = 40


def rows(method: str, seconds_per_token: float, noise: float = 0.05, seed: int = 0, prompts: int = PROMPTS):
    rng = np.random.default_rng(seed)
    return [
        record(method, sample=str(i), tokens=50, seconds=50 * seconds_per_token * (1 + noise * rng.standard_normal()))
        for i in range(prompts)
    ]


def test_clearly_different_methods_have_ranks_of_their_own():
    found = ranks(
        {"slow": rows("slow", 2.0), "fast": rows("fast", 1.0, seed=1), "middle": rows("middle", 1.5, seed=2)}, False
    )
    assert {name: str(rank) for name, rank in found.items()} == {"slow": "3", "fast": "1", "middle": "2"}
    assert all(rank.alike == () for rank in found.values())


def test_methods_that_cannot_be_distinguished_share_their_places():
    same = {"a": rows("a", 1.0, seed=1), "b": rows("b", 1.001, seed=2), "slow": rows("slow", 2.0, seed=3)}
    found = ranks(same, False)
    assert found == {"a": Rank(1, 2, ("b",)), "b": Rank(1, 2, ("a",)), "slow": Rank(3, 3)}
    assert str(found["a"]) == "1-2"


def test_a_noisy_method_is_alike_to_two_methods_that_differ():
    """Ranks overlap there, although the outer two are distinguished."""
    found = ranks(
        {"a": rows("a", 1.0, 0.01), "b": rows("b", 1.03, 0.01, 1), "noisy": rows("noisy", 1.015, 0.5, 2)}, False
    )
    assert "b" not in found["a"].alike and "a" not in found["b"].alike
    assert found["noisy"].alike == ("a", "b")


@pytest.mark.parametrize(("methods", "prompts"), [(2, 6), (5, 8), (5, 20)])
def test_equal_methods_are_distinguished_in_at_most_one_run_of_twenty(methods, prompts):
    """The familywise error rate, for few prompts too. Within four standard errors of 5 % over 200 runs."""
    wrong = 0
    for seed in range(200):
        equal = {str(i): rows(str(i), 1.0, 0.2, 100 * seed + i, prompts) for i in range(methods)}
        wrong += any(len(rank.alike) < methods - 1 for rank in ranks(equal, False).values())
    assert wrong / 200 <= 0.05 + 4 * (0.05 * 0.95 / 200) ** 0.5


def test_only_prompts_that_all_methods_completed_count():
    """The slow method lacks the prompts on which the other one was slow."""
    fast = rows("fast", 1.0)
    for each in fast[20:]:
        each.decode_seconds *= 10
    found = ranks({"fast": fast, "slow": rows("slow", 2.0, seed=1)[:20]}, False)
    assert found["fast"] == Rank(1, 1)


@pytest.mark.parametrize(("methods", "fewest"), [(2, 6), (3, 7), (5, 9), (10, 11)])
def test_methods_are_ranked_from_the_first_number_of_prompts_that_can_tell_them_apart(methods, fewest):
    def found(prompts: int):
        return ranks({str(i): rows(str(i), 2.0**i, prompts=prompts) for i in range(methods)}, False)

    assert fewest_prompts(methods) == fewest
    assert found(fewest - 1) == {}
    assert any(len(rank.alike) < methods - 1 for rank in found(fewest).values())


def test_a_single_method_has_no_rank():
    assert ranks({"a": rows("a", 1.0)}, False) == {}


def test_methods_differ_only_if_the_interval_of_their_ratio_excludes_one():
    """One prompt of thirty takes most of the time: the permutation test alone would call the faster side distinct."""
    fast, slow = rows("fast", 1.0, 0.01), rows("slow", 1.2, 0.01, 1)
    fast[0].decode_seconds = 40.0 * fast[1].decode_seconds
    found, estimate = ranks({"fast": fast, "slow": slow}, False), speedup(fast, slow)
    assert (found["fast"].alike == ("slow",)) is (estimate.low <= 1.0 <= estimate.high)
    assert estimate.low <= 1.0 <= estimate.high


def test_a_generation_that_stood_still_is_found():
    steady = rows("a", 1.0, 0.01)
    for each in steady:
        each.tokens = list(range(20))
    assert longest_generation(steady) < 2.0
    steady[3].decode_seconds *= 50
    assert longest_generation(steady) == pytest.approx(50, rel=0.2)
    for each in steady:
        each.tokens = each.tokens[:4]
    assert longest_generation(steady) is None, "of short outputs, seconds per token differ anyway"
