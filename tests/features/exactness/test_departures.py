"""The test against known departures: its false alarms, and the power that it states."""

import math
from dataclasses import replace

import pytest
import torch

from specbench.features.exactness.departures import (
    SHARES,
    Departure,
    DepartureKind,
    DepartureTest,
    Detectable,
    departures_of,
)
from specbench.features.exactness.power import Power
from specbench.features.exactness.tolerance import Allowed
from specbench.features.servers.exactness.allowed import allowed
from specbench.features.servers.served import ServedSampling

SIGNIFICANCE = 1e-4
SIZE, TOKENS = 12, 600


def world(seed: int, tokens: int = TOKENS, sharpness: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distributions of a target and of a drafting model, (tokens, SIZE) each."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(tokens, SIZE, generator=generator, dtype=torch.float64)
    noise = torch.randn(tokens, SIZE, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), (logits + noise).softmax(-1)


def drawn(
    pi: torch.Tensor, q: torch.Tensor, drawn_from: torch.Tensor, seed: int, deviation: float = 0.0
) -> DepartureTest:
    """Test tokens that are drawn from other distributions."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.multinomial(drawn_from, 1, generator=generator)[:, 0]
    bounds = Allowed(pi, pi * math.exp(-deviation), pi * math.exp(deviation))
    test = DepartureTest()
    test.add(bounds if deviation else Allowed.exactly(pi), {"draft": q}, x)
    return test


def test_every_departure_is_a_distribution_and_falls_in_the_order_that_it_names():
    pi, q = world(0)
    orders = {"rare": -pi, "likely": pi, "draft": q / pi}
    for departure, ratio, order in departures_of(pi, {"draft": q}):
        assert (pi * ratio).sum(-1) == pytest.approx(torch.ones(TOKENS).double(), abs=1e-9), departure
        ordered = ratio.gather(-1, orders[order].argsort(dim=-1, descending=True))
        assert (ordered.diff(dim=-1) <= 1e-9).all(), departure


def test_the_lenient_departure_is_the_output_of_a_rule_that_accepts_more_often():
    pi, q = world(1, tokens=4)
    ratios = {each: ratio for each, ratio, _ in departures_of(pi, {"draft": q})}
    accepted = torch.minimum(q, 1.5 * pi)
    rest = (pi - q).clamp_min(0.0)
    expected = accepted + (1.0 - accepted.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)
    assert pi * ratios[Departure(DepartureKind.lenient, 1.5, "draft")] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("deviation", [0.0, 0.05])
def test_right_tokens_fail_as_rarely_as_p_says(deviation):
    ps = []
    for seed in range(150):
        pi, q = world(seed, tokens=60)
        rounding = deviation * (
            2.0 * torch.rand(pi.shape, generator=torch.Generator().manual_seed(seed)).double() - 1.0
        )
        ps.append(drawn(pi, q, (pi.log() + rounding).softmax(-1), seed, deviation).p)
    assert sum(p <= 0.05 for p in ps) <= 15 and sum(p <= 1e-3 for p in ps) <= 1


@pytest.mark.parametrize("kind", list(DepartureKind))
def test_a_departure_of_the_stated_size_is_found_in_most_cases(kind):
    pi, q = world(2, tokens=4000)
    stated = {each.kind: each for each in drawn(pi, q, pi, 0).detectable(SIGNIFICANCE)}[kind]
    assert stated.size is not None
    ratios = {(each.kind, each.size): ratio for each, ratio, _ in departures_of(pi, {"draft": q})}
    assert sum(drawn(pi, q, pi * ratios[kind, stated.size], seed).p <= SIGNIFICANCE for seed in range(12)) >= 9


def test_the_departure_that_tokens_resemble_most_is_named():
    pi, q = world(3, tokens=4000)
    best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0)
    found = drawn(pi, q, 0.8 * pi + 0.2 * best, 0)
    assert found.worst.kind is DepartureKind.most_likely and found.p < SIGNIFICANCE and found.z > 4.0


def test_tokens_are_pooled_by_merging():
    pi, q = world(4)
    whole, part = drawn(pi, q, pi, 0), drawn(pi, q, pi, 1)
    part.merge(whole)
    assert part.tokens == 2 * whole.tokens
    before, after = (test.times_needed(SIGNIFICANCE) for test in (whole, part))
    assert after == pytest.approx(before / 2.0, rel=0.2)


def test_the_limits_decide_what_was_missed():
    small = Detectable(kind=DepartureKind.most_likely, size=0.05, largest=SHARES[-1], variation=0.01)
    large = Detectable(kind=DepartureKind.temperature, size=1.25, largest=2.0, variation=0.06)
    unseen = Detectable(kind=DepartureKind.most_likely, size=None, largest=SHARES[-1], variation=0.2)
    enough = Power(factor=1.05, tested=100, later=[small], first=[], times=1.0)
    assert enough.meets_limits and enough.missed == []
    few = Power(factor=1.5, tested=100, later=[small, large], first=[unseen], times=4.0)
    assert not few.meets_limits
    assert few.missed == [
        "rules less than 1.5x too lenient",
        "less than 1.25x the temperature",
        "at first tokens alone, for example even the most likely token in 50 % of tokens",
    ]
    never = Power(factor=1.05, tested=100, later=[small, replace(unseen, variation=0.015)], first=[], times=1.0)
    assert not never.meets_limits, "a departure that was never found has no smallest size"


@pytest.mark.parametrize("sampling", [{"temperature": 0.7, "top_p": 0.95}, {"temperature": 1.0, "top_k": 20}], ids=str)
def test_right_tokens_pass_where_a_filter_has_a_boundary_and_logits_have_a_tolerance(sampling):
    """Tokens outside of the reference's filter may be inside of the server's: they have probability 0 there."""
    generator, test, filtered = torch.Generator().manual_seed(5), DepartureTest(), ServedSampling(**sampling)
    for _ in range(25):
        logits = 1.5 * torch.randn(120, 200, generator=generator, dtype=torch.float64)
        within = allowed(logits, filtered, 0.05)
        x = torch.multinomial(within.pi, 1, generator=generator)[:, 0]
        test.add(within, {"draft": (logits + torch.randn(logits.shape, generator=generator)).softmax(-1)}, x)
    assert test.log_wealth < 0.0
