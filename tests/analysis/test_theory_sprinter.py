"""SPRINTER's theory against docs/papers/sprinter.md, Test vectors, and against simulation within five standard errors."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from specbench.analysis.theory import (
    forward_flops,
    speculative_flops,
)
from specbench.methods.theories.sprinter_theory import expected_drafts, expected_run, untested_run
from tests.fixtures.formulas import (
    false_positive_rate,
    run_odds,
    sprinter_acceptance,
    sprinter_distance,
    sprinter_distribution,
    sprinter_flops,
    stopping_time,
)

Q, P = (0.5, 0.3, 0.15, 0.05), (0.2, 0.2, 0.5, 0.1)  # docs/papers/README.md, Test position; TV .4


def tv(p, q):
    return sum(max(x - y, 0.0) for x, y in zip(p, q, strict=True))


def random_laws(n=300, vocabulary=6):
    rows = np.random.default_rng(5).random((n, 3, vocabulary)) ** 3
    return [(*(x / x.sum(-1, keepdims=True))[:2].tolist(), x[2].tolist()) for x in rows]


def test_theorem_1_and_7_at_the_published_position():
    """SPRINTER, Theorems 1 and 7, and Remark 2.

    docs/papers/sprinter.md, Test vectors:

    eta_fp = .3 gives .7 p + .3 q = (.29, .23, .395, .085) and an acceptance of .72.
    """
    assert sprinter_distribution(Q, P, 0.3) == pytest.approx([0.29, 0.23, 0.395, 0.085])
    assert sprinter_distance(Q, P, 0.3) == pytest.approx(0.3 * 0.4) == tv(P, sprinter_distribution(Q, P, 0.3))
    assert sprinter_acceptance(Q, P, 0.3) == pytest.approx(0.72)
    assert sprinter_acceptance(Q, P, 0.0) == pytest.approx(1 - 0.4), "speculative decoding's"
    assert sprinter_distribution(Q, P, 1) == pytest.approx(Q) and sprinter_distribution(Q, P, 0) == pytest.approx(P)
    assert sprinter_distribution(Q, Q, 0.5) == pytest.approx(Q) and false_positive_rate(Q, Q, 0.5) == 0.0
    with pytest.raises(ValueError, match="shorter"):
        sprinter_distribution(Q, P, (0.1,))


def test_a_perfect_verifier_with_a_tolerance_has_token_dependent_false_positives():
    """docs/papers/sprinter.md, Test vectors:

    tau = 1.5 accepts the second token, which is not acceptable: (.2, .3, .4125, .0875), TV .1, acceptance .7.
    """
    fp = [float(q <= 1.5 * p) for q, p in zip(Q, P, strict=True)]
    assert sprinter_distribution(Q, P, fp) == pytest.approx([0.2, 0.3, 0.4125, 0.0875])
    assert (sprinter_distance(Q, P, fp), sprinter_acceptance(Q, P, fp)) == pytest.approx((0.1, 0.7))


def test_the_rate_of_theorem_1_is_weighted_by_the_excess_of_q():
    """Erratum SP-2: rates (.9, .1) give TV .28 = .7 x .4. Control: the rate that q weights, .6, gives .24.

    See docs/papers/sprinter.md, Errata.
    """
    fp = (0.9, 0.1, 0.0, 0.0)
    assert sprinter_distance(Q, P, fp) == pytest.approx(0.28)
    assert false_positive_rate(Q, P, fp) == pytest.approx(0.7)
    by_q = (Q[0] * fp[0] + Q[1] * fp[1]) / (Q[0] + Q[1])
    assert sprinter_distance(Q, P, by_q) == pytest.approx(0.24) != pytest.approx(0.28)


def test_theorem_1_is_exact_for_any_distributions():
    """SPRINTER, Theorem 1.

    The distribution sums to 1 and has the predicted distance from p; with one rate it is the mixture. 300 random pairs."""
    for q, p, fp in random_laws():
        found = sprinter_distribution(q, p, fp)
        assert sum(found) == pytest.approx(1.0) and tv(p, found) == pytest.approx(sprinter_distance(q, p, fp))
        rate = false_positive_rate(q, p, fp)
        assert sprinter_distance(q, p, rate) == pytest.approx(sprinter_distance(q, p, fp))
        mixture = [(1 - rate) * y + rate * x for x, y in zip(q, p, strict=True)]
        assert sprinter_distribution(q, p, rate) == pytest.approx(mixture)


@pytest.mark.parametrize("eta_tp", [0.4, 1.0])
def test_a_simulated_verifier_follows_the_distribution_of_theorem_1_for_any_eta_tp(eta_tp):
    """Distribution and acceptance of 400,000 drafted and verified tokens lie within five standard errors, for both eta_tp."""
    rng, n = np.random.default_rng(1), 400_000
    q, p, fp = np.array(Q), np.array(P), np.array((0.9, 0.1, 0.0, 0.0))
    x = rng.choice(4, n, p=q)
    passed = rng.random(n) < np.where(q <= p, eta_tp, fp)[x]
    kept = passed | (rng.random(n) < (p / q)[x])
    residual = np.maximum(p - q, 0.0)
    emitted = np.where(kept, x, rng.choice(4, n, p=residual / residual.sum()))
    found = np.bincount(emitted, minlength=4) / n
    assert found == pytest.approx(sprinter_distribution(Q, P, fp.tolist()), abs=5 * 0.5 / n**0.5)
    assert kept.mean() == pytest.approx(sprinter_acceptance(Q, P, fp.tolist()), abs=5 * 0.5 / n**0.5)


RUNS = [
    (5, 0.9, 0.2, 3.8332),
    (10, 0.95, 0.5, 8.2227),
    (20, 0.8, 0.3, 3.9588),
]  # N, eta_tp, eta_fp, E[X]: docs/papers/sprinter.md, Test vectors


def accepted_in_a_row(n, eta_tp, eta_fp, runs=200_000):
    """Sample X by drawing the place of the first rejection: among the acceptable tokens, or else among the others."""
    rng = np.random.default_rng(2)
    first, then = rng.geometric(1 - eta_tp, runs) - 1, rng.geometric(1 - eta_fp, runs) - 1
    return np.where(first < n, first, n + then)


@pytest.mark.parametrize(("n", "eta_tp", "eta_fp", "expected"), RUNS)
def test_theorems_2_and_3(n, eta_tp, eta_fp, expected):
    """SPRINTER, Theorems 2 and 3.

    E[X] is as published and is the mean of the distribution. Simulated runs agree, also capped. E[T_stop] is per draft."""
    assert expected_run(n, eta_tp, eta_fp) == pytest.approx(expected, abs=5e-5)
    closed = eta_tp * (1 - eta_tp**n) / (1 - eta_tp) + eta_tp**n * eta_fp / (1 - eta_fp)
    assert expected_run(n, eta_tp, eta_fp) == pytest.approx(closed)
    odds = [run_odds(k, n, eta_tp, eta_fp) for k in range(300)]
    assert sum(odds) == pytest.approx(1.0) and sum(k * p for k, p in enumerate(odds)) == pytest.approx(closed)
    x = accepted_in_a_row(n, eta_tp, eta_fp)
    error = x.std() / len(x) ** 0.5
    assert x.mean() == pytest.approx(expected, abs=5 * error)
    assert np.bincount(x, minlength=4)[:4] / len(x) == pytest.approx(odds[:4], abs=5 * 0.5 / len(x) ** 0.5)
    for most in (1, 3, n, n + 2):
        assert np.minimum(x + 1, most).mean() == pytest.approx(expected_drafts(n, eta_tp, eta_fp, most), abs=5 * error)
    assert expected_drafts(n, eta_tp, eta_fp, 500) == pytest.approx(closed + 1) == expected_drafts(n, eta_tp, eta_fp)
    assert stopping_time(n, eta_tp, eta_fp, 4.0, 0.5) == pytest.approx(4.5 * (closed + 1))


def test_a_verifier_that_always_errs_stops_at_the_cap_only():
    """eta_fp = 1: no end, but where the acceptable tokens alone are never passed; eta_tp = 1 has its limit."""
    assert expected_run(3, 0.5, 1.0) == expected_drafts(3, 0.5, 1.0) == float("inf")
    assert expected_drafts(3, 0.5, 1.0, 20) == pytest.approx(1 + 0.5 + 0.25 + 0.125 * 17)
    assert expected_run(3, 0.0, 1.0) == 0.0 and expected_run(3, 1.0, 0.0) == 3.0


def test_the_flops_of_a_forward_are_those_of_its_products():
    """The paper's terms against 2 x rows x inner x columns of each product; target over draft "roughly 8" and "10"."""
    layers, s, d, heads, d_ff, vocabulary = 3, 7, 64, 4, 256, 1000
    head = d // heads
    products = [(s, d, 3 * d), (s, d, d), (s, d, d_ff), (s, d_ff, d)]
    products += [(s, head, s), (s, s, head)] * heads
    layer = sum(2 * a * b * c for a, b, c in products) + 3 * heads * s * s
    whole = layers * layer + 2 * (2 * s * d * vocabulary)
    assert forward_flops(layers, s, d, heads, d_ff, vocabulary) == whole
    small = forward_flops(12, 1, 768, 12, 3072, 50257)  # GPT2-Small, and GPT-Neo-125M
    assert forward_flops(48, 1, 1600, 25, 6400, 50257) / small == pytest.approx(10, abs=0.5)  # GPT2-XL
    assert forward_flops(24, 1, 2048, 16, 8192, 50257) / small == pytest.approx(8, abs=1.0)  # GPT-Neo-1.3B


@pytest.mark.parametrize(("ratio", "fewer"), [(12.5, 8.3), (10, 7.3), (8, 6.4)])
def test_how_many_times_fewer_flops(ratio, fewer):
    """Erratum SP-8: "8.3x" is 20 tokens at a ratio of 12.5. Control: a target that reads all of them saves nothing.

    See docs/papers/sprinter.md, Errata.
    """
    sd, ours = speculative_flops(20, 1.0, ratio), sprinter_flops(20, 1.0, ratio)
    assert sd / ours == pytest.approx(fewer, abs=0.05) and sd - ours == pytest.approx(19 * ratio)
    assert sprinter_flops(20, 1.0, ratio, 0.1, read=20) == pytest.approx(sd + 2.0)


def counted(passes, accepts, most, bonus, tests_at_cap, tokens=40_000):
    """docs/papers/sprinter.md, Algorithm, by simulated acceptance and caches:

    {(model, tokens fed): forwards}, committed, drafted, tests accepted, and tests.
    """
    rng, fed, read = np.random.default_rng(3), Counter(), [0, 0]
    sums = Counter(committed=1)

    def feed(i, upto):
        fed[i, upto - read[i]] += 1
        read[i] = upto

    while sums["committed"] < tokens:
        start = sums["committed"]
        rejected = min(rng.geometric(1 - passes), most)
        stopped = rejected < most or rng.random() >= passes
        for x in range(rejected):
            feed(0, start + x)
        sums["drafted"] += rejected
        sums["committed"] += rejected
        if not (stopped or tests_at_cap):
            continue
        feed(1, sums["committed"] - (not bonus))  # up to the row of the tested token, or of the bonus
        kept = bool(rng.random() < accepts)
        sums.update(tests=1, accepted=kept, committed=kept and bonus)
        read[:] = [min(each, sums["committed"] - 1) for each in read]
    return fed, sums


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize(("passes", "accepts", "most", "tests_at_cap"), [
    (0.9, 0.4, 20, True), (0.8, 0.9, 5, True), (0.5, 0.7, 20, True), (0.9, 0.4, 6, False),
])  # fmt: skip
def test_sprinter_runs_cost_what_is_predicted(passes, accepts, most, tests_at_cap, bonus):
    """Counted forwards of simulated runs within 1 % of the formula at their own rates, for linear costs and the gate's.

    Control: at the cost of one token for the target's block it is off by more.
    """
    fed, sums = counted(passes, accepts, most, bonus, tests_at_cap)
    drafted, accepted = sums["drafted"] / sums["tests"], sums["accepted"] / sums["tests"]
    for c in (0.05, 0.3):

        def cost(i, k, c=c):
            return (c, 1.0)[i] * (1 + 0.2 * (k - 1))

        def with_gate(i, k, cost=cost):
            """Each forward of the draft model drafts a token, which the verifier reads."""
            return cost(i, k) + (0.01 if i == 0 else 0.0)

        spent = sum(times * cost(i, k) for (i, k), times in fed.items()) + 0.01 * sums["drafted"]
        measured = sums["committed"] / spent
        assert untested_run(drafted, accepted, bonus=bonus).speedup(with_gate, 1.0) == pytest.approx(measured, rel=0.01)
        flat = untested_run(drafted, accepted, bonus=bonus).speedup(lambda i, k: with_gate(i, 1), 1.0)
        assert flat > 1.02 * measured


def test_more_false_positives_are_faster_and_further_from_the_target():
    """SPRINTER, Remark 3.

    What SPRINTER trades: with eta_fp the runs lengthen, the speedup grows and so does the distance."""

    def cost(i, k):
        return (0.1, 1.0)[i]

    rates = (0.0, 0.2, 0.5, 0.8)
    gains = [untested_run(expected_drafts(4, 0.9, fp), 0.5).speedup(cost, 1.0) for fp in rates]
    assert all(x < y for x, y in pairwise(gains))
    assert all(x < y for x, y in pairwise(sprinter_distance(Q, P, fp) for fp in rates))


@pytest.mark.parametrize("n", [10, 20, 40])
def test_false_positives_hardly_lengthen_runs_of_a_good_verifier(n):
    """SPRINTER, text on Figure 5: as eta_TP approaches 1, eta_FP adds eta_FP / (1 - eta_FP) tokens to a run of N."""
    runs = {false: expected_drafts(n, 1.0 - 1e-9, false) - 1.0 for false in (0.0, 0.5)}
    assert runs[0.5] - runs[0.0] == pytest.approx(1.0) and runs[0.0] == pytest.approx(n)
    assert runs[0.5] / runs[0.0] - 1.0 <= 0.1 + 1e-9
