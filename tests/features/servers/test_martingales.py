"""Tests of served tokens: their false alarms, their power, and their tolerance of rounding."""

import math

import pytest
import torch

from specbench.features.exactness.departures import DepartureKind
from specbench.features.exactness.group_tests import worst
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE, MartingaleTest
from specbench.features.exactness.token_statistics import looked_up_token
from specbench.features.servers.exactness import served_checks
from specbench.features.servers.exactness.allowed import allowed
from specbench.features.servers.exactness.seeds import chance_of_output
from specbench.features.servers.exactness.served_checks import ReferenceRow, SampledCheck, greedy_check
from specbench.features.servers.served import ServedSampling

SIZE, TOKENS = 60, 12
PLAIN = ServedSampling(temperature=1.0)


def check_of(
    sampling: ServedSampling, served: ServedSampling, outputs: int, *, noise=0.0, deviation=1e-5, seed=0
) -> SampledCheck:
    """Check outputs that are sampled as `served` from logits with noise, and requested as `sampling`."""
    generator = torch.Generator().manual_seed(seed)
    check = SampledCheck(sampling, deviation)
    for _ in range(outputs):
        logits = 2.0 * torch.randn(TOKENS, SIZE, generator=generator, dtype=torch.float64)
        rounding = noise * (2.0 * torch.rand(TOKENS, SIZE, generator=generator, dtype=torch.float64) - 1.0)
        pi = allowed(logits + rounding, served, 0.0).pi
        tokens = torch.multinomial(pi, 1, generator=generator)[:, 0].tolist()
        check.add(ReferenceRow((1, 2, 3), tuple(tokens), logits))
    return check


@pytest.mark.parametrize("sampling", [PLAIN, ServedSampling(temperature=0.7, top_p=0.9)], ids=str)
def test_a_right_server_passes_and_the_control_is_rejected(sampling):
    check = check_of(sampling, sampling, 40)
    tests = check.number_of_tests()
    assert check.groups_that_differ(tests) == ()
    assert check.control_p("later") * tests <= SIGNIFICANCE


def test_a_right_server_fails_rarely_over_many_seeds():
    differing = sum(bool(check_of(PLAIN, PLAIN, 3, seed=seed).groups_that_differ(1)) for seed in range(40))
    assert differing <= 1  # ten tests at 1 in 1000 each give 0.4 on average at most


@pytest.mark.parametrize(
    ("requested", "served"),
    [
        (PLAIN, ServedSampling(temperature=1.25)),
        (ServedSampling(temperature=0.7, top_p=0.9), ServedSampling(temperature=0.7)),
        (ServedSampling(temperature=1.0, top_k=5), PLAIN),
        (PLAIN, ServedSampling(temperature=1.0, min_p=0.2)),
    ],
    ids=["temperature", "top-p ignored", "top-k ignored", "min-p added"],
)
def test_other_sampling_than_requested_is_found(requested, served):
    check = check_of(requested, served, 40)
    assert "later" in check.groups_that_differ(check.number_of_tests())


def test_a_change_within_the_deviation_is_no_fault_and_beyond_it_is():
    assert check_of(PLAIN, PLAIN, 40, noise=0.1, deviation=0.1).groups_that_differ(10) == ()
    hotter = ServedSampling(temperature=1.2)  # moves the logits by up to about 1
    assert check_of(PLAIN, hotter, 40, deviation=1.0).groups_that_differ(10) == ()
    assert "later" in check_of(PLAIN, hotter, 40).groups_that_differ(10)


def test_the_smallest_temperature_is_found_and_smaller_ones_are_not():
    check = check_of(PLAIN, PLAIN, 30)
    found = {each.kind: each for each in check.detectable("later", SIGNIFICANCE / 10)}
    shown = found[DepartureKind.temperature].size
    assert "later" in check_of(PLAIN, ServedSampling(temperature=shown), 30).groups_that_differ(10)
    nearly = ServedSampling(temperature=1.0 + 0.2 * (shown - 1.0))
    assert check_of(PLAIN, nearly, 30).groups_that_differ(10) == ()


def test_outputs_of_two_checks_merge_into_one():
    whole, parts = check_of(PLAIN, ServedSampling(temperature=1.1), 20), SampledCheck(PLAIN, 1e-5)
    parts.merge(whole)
    parts.merge(check_of(PLAIN, ServedSampling(temperature=1.1), 20, seed=1))
    assert parts.outputs == 40
    for group in GROUPS:
        assert worst(parts.results(group))[1].tokens == 2 * worst(whole.results(group))[1].tokens


def test_a_large_vocabulary_is_tested_in_its_likely_tokens_and_one_for_the_others(monkeypatch):
    monkeypatch.setattr(served_checks, "MOST_CATEGORIES", 16)
    assert check_of(PLAIN, PLAIN, 30).groups_that_differ(10) == ()
    assert "later" in check_of(PLAIN, ServedSampling(temperature=1.5), 60).groups_that_differ(10)


def test_the_first_difference_of_a_greedy_output_is_a_near_tie_or_a_fault():
    logits = torch.tensor([[5.0, 1.0, 0.0], [2.0, 1.99999, 0.0], [3.0, 1.0, 2.0]], dtype=torch.float64)
    right = greedy_check([("a", ReferenceRow((0,), (0, 0, 0), logits))], 1e-4)
    assert not right.near_ties and not right.faults
    tie = greedy_check([("a", ReferenceRow((0,), (0, 1, 0), logits))], 1e-4)
    assert [len(each.tokens) for each in tie.near_ties] == [2] and not tie.faults
    fault = greedy_check([("a", ReferenceRow((0,), (0, 1, 2), logits))], 1e-4).faults[0]
    assert (len(fault.tokens), fault.expected, fault.gap) == (3, 0, pytest.approx(1.0))


def test_the_chance_of_an_output_is_its_probability_at_the_edge_of_the_tolerance():
    logits = torch.zeros(2, 4, dtype=torch.float64)
    assert chance_of_output(logits, (0, 1), PLAIN, 0.0) == pytest.approx(1.0 / 16.0)
    largest = 1.5 / (1.5 + 3.0 / 1.5)  # of each token, if its weight is 1.5 times as large and others are smaller
    assert chance_of_output(logits, (0, 1), PLAIN, math.log(1.5)) == pytest.approx(largest**2)


def test_a_lookup_continues_the_last_occurrence_of_the_longest_ngram():
    assert looked_up_token([1, 2, 3, 4, 9, 2, 3, 4]) == 9
    assert looked_up_token([7, 5, 8, 5, 6, 5]) == 6
    assert looked_up_token([1, 2, 3]) is None


def test_an_impossible_token_stays_impossible_after_a_merge():
    whole, part = MartingaleTest(), MartingaleTest()
    part.impossible = 1
    whole.merge(part)
    assert whole.is_impossible and whole.log_wealth == math.inf
