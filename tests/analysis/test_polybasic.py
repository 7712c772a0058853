"""Polybasic's theory:

the values of docs/papers/polybasic.md, Test vectors and Errata; distributions of lengths by enumeration; chains by
simulated acceptance and caches.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from specbench.analysis.polybasic import (
    best_chain,
    block_lengths,
    ceil_forwards,
    chain,
    chain_round,
    condition_1,
    condition_2_printed,
    condition_by_ceil,
    inner_rounds,
    keeps_middle,
    seconds_of,
)
from specbench.analysis.theory import Scheme, expectation, round_lengths, speculative
from tests.fixtures.formulas import capped_geometric, committed, condition_2, printed_forwards, true_forwards, variation

SECONDS = (25.0, 7.0, 4.0)  # Table 1, milliseconds: target, middle, drafter
TWO, THREE = 4.34, (6.26, 4.36)  # Table 1, tokens: L_1 of target and drafter; L_1', L_2'


@pytest.mark.parametrize(("a", "cv"), [(0.2, 0.447), (0.5, 0.6535), (0.8, 0.533), (0.99, 0.124)])
def test_lengths_vary_least_at_both_ends(a, cv):
    """Polybasic, Theorem 3.3.

    Corrected, n = 6; mean and variance equal the closed forms of docs/papers/polybasic.md, Lengths of rounds and blocks.

    See erratum PB-5, docs/papers/polybasic.md, Errata.
    """
    n, lengths_of_rounds = 6, round_lengths(a, 5)
    mean, variance = capped_geometric(a, n)
    assert variation(a, n) == pytest.approx(cv, abs=6e-4)
    assert mean == pytest.approx((1 - a**n) / (1 - a)) == expectation(lengths_of_rounds)
    closed = (a - (2 * n - 1) * a**n + (2 * n - 1) * a ** (n + 1) - a ** (2 * n)) / (1 - a) ** 2
    assert variance == pytest.approx(closed)
    assert variance == pytest.approx(sum(p * (length - mean) ** 2 for length, p in lengths_of_rounds.items()))
    assert variation(0.0, n) == variation(1.0, n) == 0.0


@pytest.mark.parametrize("a", [0.2, 0.8, 0.99])
def test_the_mean_length_is_printed_for_two_caps(a):
    """Polybasic, Appendix A.1: the mean, with n tokens at most, and equation 3, with n + 1.

    See erratum PB-4, docs/papers/polybasic.md, Errata.
    """
    for drafted in (1, 5):
        for bonus in (True, False):
            most = drafted + bonus
            lengths = {j: a ** (j - 1) * (1 - a) for j in range(1, most)} | {most: a ** (most - 1)}
            assert sum(lengths.values()) == pytest.approx(1.0)
            assert capped_geometric(a, most)[0] == pytest.approx((1 - a**most) / (1 - a)) == expectation(lengths)
    assert expectation(round_lengths(a, 5)) == pytest.approx(capped_geometric(a, 6)[0])


def test_the_variance_is_not_the_printed_one():
    """Polybasic, Appendix A.2: the variance.

    a = .8, n = 6: variance 3.864 and E[N^2] 17.47, simulated as well, where -347.0 and -230.6 are printed.

    See erratum PB-3, docs/papers/polybasic.md, Errata.
    """
    mean, variance = capped_geometric(0.8, 6)
    assert variance == pytest.approx(3.864, abs=5e-4) and variance + mean**2 == pytest.approx(17.47, abs=5e-3)
    drawn = np.minimum(np.random.default_rng(1).geometric(0.2, 200_000), 6)
    assert drawn.mean() == pytest.approx(mean, abs=0.03) and drawn.var() == pytest.approx(variance, abs=0.04)


def test_the_mean_inverse_length_is_not_the_inverse_mean():
    """Polybasic, Appendix A.3: the derivation of Lemma 3.1.

    E[1/L] is above 1 / E[L] by CV^2 = 28 % to second order, and in truth by 55 %.

    See erratum PB-7, docs/papers/polybasic.md, Errata.
    """
    mean, _ = capped_geometric(0.8, 6)
    assert variation(0.8, 6) ** 2 == pytest.approx(0.284, abs=5e-4)
    inverse = sum(p / length for length, p in round_lengths(0.8, 5).items())
    assert inverse * mean - 1 == pytest.approx(0.547, abs=5e-4)


def by_enumeration(rounds, threshold):
    """Return the distribution of a block's length and its expected rounds, by enumerating sequences of rounds."""
    tokens, times = Counter(), 0.0
    for lengths in product(rounds, repeat=threshold):
        ends = next(i for i in range(1, threshold + 1) if sum(lengths[:i]) >= threshold)
        odds = np.prod([rounds[length] for length in lengths])
        tokens[sum(lengths[:ends])] += odds
        times += odds * ends
    return tokens, times


@pytest.mark.parametrize(("a", "drafted", "threshold"), [(0.6, 2, 5), (0.8, 3, 4), (0.3, 1, 6), (0.9, 3, 1)])
def test_block_lengths_follow_from_round_lengths(a, drafted, threshold):
    """Lengths, rounds and committed tokens equal the enumeration; a block has threshold to threshold + K tokens."""
    rounds = round_lengths(a, drafted)
    tokens, times = by_enumeration(rounds, threshold)
    found = block_lengths(rounds, threshold)
    assert found == pytest.approx(tokens) and sum(found.values()) == pytest.approx(1.0)
    assert set(found) == set(range(threshold, threshold + drafted + 1))
    assert inner_rounds(rounds, threshold) == pytest.approx(times)
    assert expectation(found) == pytest.approx(times * expectation(rounds)), "Wald's identity"
    mean = sum(p * capped_geometric(0.7, t + 1)[0] for t, p in tokens.items())
    assert committed(0.7, found) == pytest.approx(mean)
    assert committed(0.7, 4) == pytest.approx(capped_geometric(0.7, 5)[0])


def test_inner_rounds_of_the_published_example():
    """docs/papers/polybasic.md, Forwards per token, K = 5, threshold 12, inner rate 0.7, outer rate 0.8.

    These give 4.59 rounds, and 2 by the ceiling. Exchanged rates give 3.72 and 1. Simulations agree within 5 standard errors.
    """
    coins = np.random.default_rng(4)
    for inner, outer, rounds, by_ceil in ((0.7, 0.8, 4.594, 2), (0.8, 0.7, 3.724, 1)):
        lengths_of_rounds, n = round_lengths(inner, 5), 50_000
        assert inner_rounds(lengths_of_rounds, 12) == pytest.approx(rounds, abs=5e-4)
        pending = np.minimum(coins.geometric(1 - inner, (n, 12)), 6).cumsum(axis=1)
        drawn = (pending < 12).sum(axis=1) + 1
        assert drawn.mean() == pytest.approx(rounds, abs=5 * drawn.std() / n**0.5)
        lengths = [committed(outer, block_lengths(lengths_of_rounds, 12)), expectation(lengths_of_rounds)]
        phi = ceil_forwards(lengths, 5.0)
        assert phi[1] / phi[0] == by_ceil


def simulated(acceptance, drafted, thresholds, rounds):
    """docs/papers/polybasic.md, Chain of n models, by simulated acceptance, with caches that are cut at a replaced
    token: tokens, {fed: forwards} of each model.
    """
    rng, n = np.random.default_rng(2), len(acceptance) + 1
    fed, read = [Counter() for _ in range(n)], [0] * n
    streaks = [iter((rng.geometric(1 - a, 200_000) - 1).tolist()) for a in acceptance]

    def feed(i, upto):
        fed[i][upto - read[i]] += 1
        read[i] = upto

    def verified(i, start):
        block = stream(i - 1, start)
        feed(i, start + block)
        accepted = min(next(streaks[i - 1]), block)
        if accepted < block:
            read[:] = [min(each, start + accepted) for each in read]
        return accepted + 1

    def stream(i, start):
        pending = 0
        while i and pending < thresholds[i - 1]:
            pending += verified(i, start + pending)
        for x in range(0 if i else drafted):
            feed(0, start + x)
        return pending if i else drafted

    length = 1
    for _ in range(rounds):
        length += verified(n - 1, length)
    return (length - 1) / rounds, [{k: times / rounds for k, times in counts.items()} for counts in fed]


CHAINS = [
    ((0.8,), 4, ()), ((0.7, 0.8), 5, (12,)), ((0.8, 0.95), 3, (4,)), ((0.6, 0.9), 1, (1,)), ((0.7, 0.8, 0.9), 3, (4, 9)),
    ((0.8, 0.9, 0.7, 0.9), 2, (2, 3, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("acceptance", "drafted", "thresholds"), CHAINS)
def test_chains_cost_what_is_predicted(acceptance, drafted, thresholds):
    """Two to five models: forwards of each model by tokens fed, tokens and speedup, within 3 % of simulated chains.

    Control: a drafter that read one token a forward, as if nothing were ever accepted whole, would be off by above 0.05.
    """
    tokens, fed = simulated(acceptance, drafted, thresholds, 6000)
    found = chain_round(acceptance, drafted, thresholds)
    assert found.tokens == pytest.approx(tokens, rel=0.03)
    for ours, theirs in zip(found.forwards, fed, strict=True):
        assert sum(ours.values()) == pytest.approx(sum(theirs.values()), rel=0.03)
        for k in ours.keys() | theirs.keys():
            assert ours.get(k, 0.0) == pytest.approx(theirs.get(k, 0.0), rel=0.03, abs=0.04)
    for more in (0.0, 0.1):

        def cost(i, k, more=more):
            return 3.0**i * (1 + more * (k - 1))

        spent = sum(times * cost(i, k) for i, counts in enumerate(fed) for k, times in counts.items())
        measured = tokens * cost(len(acceptance), 1) / spent
        assert chain(acceptance, drafted, thresholds, cost) == pytest.approx(measured, rel=0.03)
    assert sum(times for k, times in found.forwards[0].items() if k > 1) > 0.05


def test_a_chain_of_two_is_speculative_decoding():
    """Equal to `speculative` with an exact bonus, blocks at their own cost, and over any baseline."""

    def cost(i, k):
        return (0.1, 1.0)[i] * (1 + 0.1 * (k - 1))

    for a, gamma in ((0.5, 1), (0.8, 5), (1.0, 3)):
        assert chain([a], gamma, [], cost) == pytest.approx(
            speculative(Scheme(gamma=gamma, bonus="exact"), a).speedup(cost, 1.0)
        )
    assert chain([0.8], 5, [], cost, baseline=2.0) == pytest.approx(2 * chain([0.8], 5, [], cost))
    with pytest.raises(ValueError, match="3 models need 1 thresholds, not 0"):
        chain([0.8, 0.8], 5, [], cost)
    with pytest.raises(ValueError, match="at least 1"):
        chain([0.8, 0.8], 5, [0], cost)


@pytest.mark.parametrize(("kappa", "two", "by_ceil", "printed", "at_988"), [
    (1, (6.68, 3.74), (7.51, 3.33), (5.26, 4.76), 4.26), (5, (10.37, 2.41), (12.62, 1.98), (7.09, 3.53), 2.33),
])  # fmt: skip
def test_seconds_a_token_of_table_1(kappa, two, by_ceil, printed, at_988):
    """docs/papers/polybasic.md, Forwards per token:

    milliseconds per token and speedup over 25 ms of two models, of three by the ceiling, and as printed.
    """
    times = [
        seconds_of(ceil_forwards([TWO], kappa), (25.0, 4.0)),
        seconds_of(ceil_forwards(THREE, kappa), SECONDS),
        seconds_of(printed_forwards(THREE, kappa), SECONDS),
    ]
    for time, (milliseconds, speedup) in zip(times, (two, by_ceil, printed), strict=True):
        assert time == pytest.approx(milliseconds, abs=6e-3) and 25 / time == pytest.approx(speedup, abs=6e-3)
    assert 25 / seconds_of(ceil_forwards((9.88, 4.36), kappa), SECONDS) == pytest.approx(at_988, abs=6e-3)
    assert condition_by_ceil(TWO, THREE, SECONDS, kappa) == pytest.approx((by_ceil[0], two[0]), abs=6e-3)


def test_the_printed_forwards_are_impossible():
    """Erratum PB-1: for 1000 tokens phi_2 = 115 < phi_1 = 160, though a middle that gives 4.36 a forward needs 229.

    See docs/papers/polybasic.md, Errata.
    """
    phi = printed_forwards(THREE, 5, 1000)
    assert [round(x) for x in phi] == [160, 115, 573] and phi[1] < 1000 / 4.36 == pytest.approx(229, abs=0.5)
    assert ceil_forwards(THREE, 5, 1000) == pytest.approx([1000 / 6.26, 2000 / 6.26, 10000 / 6.26])


def test_the_conditions_of_theorem_32():
    """Polybasic, Theorem 3.2.

    Table 1: condition 1 is 0.28 < 0.616; condition 2, 1.75 < 1.01 kappa, is printed as 1.75 < -0.50 kappa.

    See erratum PB-2, docs/papers/polybasic.md, Errata.
    """
    assert condition_1(TWO, THREE, SECONDS) == pytest.approx((0.28, 0.616), abs=5e-4)
    assert condition_1(TWO, THREE, SECONDS).holds
    assert condition_2(TWO, THREE, 7.0, 4.0, 1.0) == pytest.approx((1.75, 1.01), abs=5e-3)
    assert condition_2_printed(TWO, THREE, 7.0, 4.0, 1.0) == pytest.approx((1.75, -0.50), abs=5e-3)
    assert condition_2(TWO, THREE, 7.0, 4.0, 5.0).holds and not condition_2(TWO, THREE, 7.0, 4.0, 1.0).holds
    assert not any(condition_2_printed(TWO, THREE, 7.0, 4.0, kappa).holds for kappa in (1, 5, 100))


def cost_1_5_20(i, k):
    return (1.0, 5.0, 20.0)[i]


def test_expected_rounds_give_the_chain_and_the_ceiling_keeps_a_middle_that_loses():
    """If a block costs as much as a token, `true_forwards` describes the chain.

    At K = 5, mu_thr = 12 and rates of .7 inside, .8 outside and .6 of the drafter alone, three models beat two by the
    ceilings, and by more in the printed formula. By the exact formula they are slower.
    """
    lengths_of_rounds = round_lengths(0.7, 5)
    lengths = [committed(0.8, block_lengths(lengths_of_rounds, 12)), expectation(lengths_of_rounds)]
    two, seconds = committed(0.6, 5), (20.0, 5.0, 1.0)
    truly = seconds_of(true_forwards(lengths[0], [inner_rounds(lengths_of_rounds, 12)], 5), seconds)
    assert 20 / truly == pytest.approx(chain([0.7, 0.8], 5, [12], cost_1_5_20))
    by_ceil = condition_by_ceil(two, lengths, seconds, 5)
    assert by_ceil.holds and seconds_of(printed_forwards(lengths, 5), seconds) < by_ceil.left < by_ceil.right < truly
    middle = keeps_middle(0.7, 0.8, 0.6, cost_1_5_20, drafted=[5], thresholds=[12])
    assert not middle.pays and middle.models == (0, 2) and middle.three.thresholds == (12,)


def test_the_ceiling_is_no_bound_either_way():
    """Where the target accepts all, blocks of at least 8 take 1.39 rounds of 5.92, but ceil(L_1 / L_2) = 2."""
    lengths_of_rounds = round_lengths(0.995, 5)
    lengths = [committed(1.0, block_lengths(lengths_of_rounds, 8)), expectation(lengths_of_rounds)]
    assert inner_rounds(lengths_of_rounds, 8) < ceil_forwards(lengths, 5)[1] * lengths[0]


def test_a_middle_pays_where_it_is_near_the_target_and_cheap():
    """The best chains of three and two, at their own lengths: a good middle gains a third, a dear or a bad one loses."""
    good = keeps_middle(0.8, 0.95, 0.6, cost_1_5_20)
    assert good.pays and good.gain == pytest.approx(good.three.speedup / good.two.speedup) and good.gain > 1.3
    assert good.three.speedup >= chain([0.8, 0.95], 5, [12], cost_1_5_20)
    assert good.models == (1, 2) and good.two == best_chain([0.95], lambda i, k: (5.0, 20.0)[i])
    assert good.two.speedup == max(chain([0.95], k, [], lambda i, k: (5.0, 20.0)[i]) for k in range(1, 17))
    assert not keeps_middle(0.8, 0.95, 0.75, lambda i, k: (1.0, 15.0, 20.0)[i]).pays
    assert not keeps_middle(0.8, 0.6, 0.6, cost_1_5_20).pays
