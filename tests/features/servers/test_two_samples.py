"""Permutation tests of two samples: error rates and power in simulations with few permutations."""

import numpy as np
import pytest

from specbench.features.servers.exactness.two_samples import (
    ComparedOutputs,
    PromptOutputs,
    TwoSampleCheck,
    permutation_test,
)
from specbench.features.servers.served import ServedSampling

WARM = ServedSampling(temperature=1.0)
LOGITS = np.random.default_rng(1).normal(scale=2.0, size=(6, 12))  # (prompts, vocabulary)


def sampled(temperature: float, count: int, seed: int, first: float = 1.0) -> list[list[tuple[int, ...]]]:
    """Return outputs of eight tokens by prompt. The first token has a temperature of its own."""
    chooser = np.random.default_rng(seed)

    def draw(logits: np.ndarray, t: float) -> int:
        p = np.exp(logits / t)
        return int(chooser.choice(len(p), p=p / p.sum()))

    def output(row: np.ndarray) -> tuple[int, ...]:
        return (draw(row, first), *(draw(np.roll(row, at), temperature) for at in range(1, 8)))

    return [[output(row) for _ in range(count)] for row in LOGITS]


def both(on: list, off: list) -> list[PromptOutputs]:
    return [PromptOutputs(tuple(a), tuple(b)) for a, b in zip(on, off, strict=True)]


def test_p_of_equal_distributions_is_uniform():
    ps = [
        permutation_test(both(sampled(1.0, 4, 2 * seed), sampled(1.0, 4, 2 * seed + 1)), False, 199, seed).p
        for seed in range(120)
    ]
    assert 0.35 < np.mean(ps) < 0.65
    assert np.mean(np.array(ps) <= 0.1) <= 0.2


@pytest.mark.parametrize(("temperature", "first", "groups"), [(1.6, 1.0, ("later",)), (1.0, 3.0, ("first",))])
def test_another_temperature_is_found_and_where_it_begins(temperature, first, groups):
    count = 40
    check = TwoSampleCheck(
        WARM, ComparedOutputs(both(sampled(temperature, count, 0, first), sampled(1.0, count, 1))),
        ComparedOutputs(both(sampled(1.5, count, 2, 1.5), sampled(1.0, count, 1))),
    )  # fmt: skip
    assert check.groups_that_differ(check.number_of_tests()) == groups
    assert check.control_p("later") < 1e-3


def test_the_smallest_temperature_shrinks_with_more_outputs():
    def smallest(count: int) -> float:
        control = both(sampled(1.5, count, 2), sampled(1.0, count, 1))
        return (
            TwoSampleCheck(WARM, ComparedOutputs([]), ComparedOutputs(control, 500)).detectable("later", 1e-4)[0].size
        )

    assert smallest(160) < smallest(40)


def test_prompts_with_one_output_cannot_be_compared():
    check = TwoSampleCheck(WARM, ComparedOutputs([PromptOutputs(((1,),), ((2,),))]), ComparedOutputs([]))
    assert check.number_of_tests() == 0 and check.groups_that_differ(1) == ()
