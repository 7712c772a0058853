"""Cascade rules and lossy distributions at one position: test vectors, the ends of every range, beta*, and what the
lemmas say.

Expected numbers: docs/papers/speccascade.md, Test vectors. q = (.5, .3, .15, .05), p = (.2, .2, .5, .1), TV .4.
"""

import math

import pytest
import torch

from specbench.analysis.metric import metric_of
from specbench.decoding.rejection import residual, tv
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.speculation import Deferrals, Observed, counters_of
from specbench.decoding.targets import (
    Bild,
    Chow,
    ChowLog,
    Contrastive,
    Diff,
    DiffLog,
    Lossy,
    LossyStar,
    Opt,
    OptLog,
    TokenSpecific,
)
from specbench.decoding.targets.deferral import kl
from specbench.decoding.targets.lossy import beta_star, lossy
from tests.methods.test_cascades import GREEDY, RULES, T1

Q = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
P = torch.tensor([[0.2, 0.2, 0.5, 0.1]], dtype=torch.float64)
LOGITS = [Q.log(), P.log()]


class TestVectors:
    @pytest.mark.parametrize(
        ("target", "law_", "acceptance"),
        [
            (Lossy(alpha=0.1), (0.2222, 0.2222, 0.4611, 0.0944), 0.6444),
            (LossyStar(alpha=0.1), (0.2222, 0.2222, 0.4630, 0.0926), 0.6444),
            (Lossy(alpha=0.2), (0.25, 0.25, 0.4125, 0.0875), 0.7),
            (LossyStar(alpha=0.2), (0.25, 0.25, 0.4167, 0.0833), 0.7),
            (Lossy(alpha=0.4), (0.3333, 0.3, 0.2958, 0.0708), 0.8333),
            (LossyStar(alpha=0.4), (0.3333, 0.3, 0.3056, 0.0611), 0.8333),
            (Lossy(alpha=0.6), (0.5, 0.3, 0.15, 0.05), 1.0),
            (Chow(alpha=0.4), (0.2, 0.2, 0.5, 0.1), 0.6),
            (Chow(alpha=0.6), (0.5, 0.3, 0.15, 0.05), 1.0),
            (Diff(alpha=-0.01), (0.2, 0.2, 0.5, 0.1), 0.6),
            (Diff(alpha=0.0), (0.5, 0.3, 0.15, 0.05), 1.0),
            (Opt(alpha=-0.01), (0.2, 0.2, 0.5, 0.1), 0.6),
            (Opt(alpha=0.0), (0.5, 0.3, 0.15, 0.05), 1.0),
        ],
    )
    def test_distribution_and_acceptance(self, target, law_, acceptance):
        pi = target(LOGITS, T1)
        assert pi.tolist()[0] == pytest.approx(law_, abs=5e-5)
        assert torch.minimum(pi, Q).sum().item() == pytest.approx(acceptance, abs=5e-5)

    def test_beta_and_divergence(self):
        for alpha, beta in ((0.1, 1.08), (0.2, 1.2), (0.4, 1.63636)):
            assert beta_star(Q, P, alpha).item() == pytest.approx(beta, abs=5e-6)
        for target, expected in (
            (Lossy(alpha=0.2), 0.02028), (LossyStar(alpha=0.2), 0.02014),
            (Lossy(alpha=0.4), 0.11363), (LossyStar(alpha=0.4), 0.11223),
        ):  # fmt: skip
            assert kl(P, target(LOGITS, T1)).item() == pytest.approx(expected, abs=5e-6)

    def test_the_plausibility_mask(self):
        """Only tokens stay that the last model finds at least half as likely as its best; the rest keep their ratios."""
        free, masked = Contrastive(mu=0.1)(LOGITS, T1)[0], Contrastive(mu=0.1, plausibility=0.45)(LOGITS, T1)[0]
        assert masked.tolist()[:2] == [0.0, 0.0]
        assert masked[2].item() == 1.0
        loose = Contrastive(mu=0.1, plausibility=0.3)(LOGITS, T1)[0]
        assert (loose > 0).tolist() == [True, True, True, False]
        assert (loose[:3] / loose[0]).tolist() == pytest.approx((free[:3] / free[0]).tolist())


def random_distributions(n=4000, vocabulary=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(2, n, vocabulary, generator=generator, dtype=torch.float64) ** 3 + 1e-9
    return tuple(rows / rows.sum(-1, keepdim=True))


def test_beta_star_minimises_the_divergence():
    """It balances the residual, is at least 1, is 1 at alpha 0, makes the printed target a distribution, and that
    distribution the output's.
    """
    q, p = random_distributions()
    assert torch.allclose(beta_star(q, p, 0.0), torch.ones(len(q), 1, dtype=q.dtype))
    for alpha in (0.05, 0.3, 0.7):
        beta = beta_star(q, p, alpha)
        rejected = (q - p / (1 - alpha)).clamp_min(0).sum(-1)
        some = rejected > 0
        assert some.any() and (beta >= 1.0 - 1e-12).all()
        assert torch.allclose((p / beta - q).clamp_min(0).sum(-1)[some], rejected[some])
        printed = torch.maximum(torch.minimum(q, p / (1 - alpha)), p / beta)
        assert torch.allclose(printed.sum(-1)[some], torch.ones(int(some.sum()), dtype=q.dtype))
        assert torch.allclose(printed[some], lossy(q, p, alpha, beta)[some])
        assert (kl(p, lossy(q, p, alpha, beta)) <= kl(p, lossy(q, p, alpha, 1.0)) + 1e-12).all()
        assert torch.allclose(lossy(q, p, alpha, 1.0).sum(-1), torch.ones(len(q), dtype=q.dtype))


def test_no_other_replacement_is_nearer_to_p_than_beta_stars():
    """For the same share rejected: mixing the replacement with any other distribution never lowers KL(p || pi)."""
    q, p = random_distributions(500)
    pi = LossyStar(alpha=0.3)([q.log(), p.log()], T1)
    kept = torch.minimum(q, p / 0.7)
    rejected = 1 - kept.sum(-1, keepdim=True)
    for seed in range(5):
        other = random_distributions(500, seed=10 + seed)[0]
        for share in (0.05, 0.5, 1.0):
            mixed = kept + (1 - share) * (pi - kept) + share * rejected * other
            assert (kl(p, mixed) >= kl(p, pi) - 1e-12).all()


def test_a_budget_is_kept_and_used():
    q, p = random_distributions(500)
    for budget in (0.0, 0.02, 0.3):
        spent = kl(p, LossyStar(budget=budget)([q.log(), p.log()], T1))
        free = kl(p, q)  # what alpha = 1 would spend
        assert (spent <= budget + 1e-9).all()
        assert torch.allclose(spent, free.clamp_max(budget), atol=1e-4)


FILTERED = {"greedy": Sampler(temperature=0.0), "top-k": Sampler(top_k=2), "top-p": Sampler(top_p=0.8)}


@pytest.mark.parametrize("sampler", FILTERED)
@pytest.mark.parametrize("budget", [0.0, 0.02, 0.3])
def test_a_budget_is_kept_in_float32_where_distributions_have_zeros(sampler, budget):
    logits = [each.log().float() for each in random_distributions(500)]
    p = FILTERED[sampler].probs(logits[1])
    pi = LossyStar(budget=budget)(logits, FILTERED[sampler])
    assert (kl(p.double(), pi.double()) <= budget + 1e-5).all()


def test_lossy_distribution_matches_its_own_acceptance_steps():
    """Verifying against the distribution performs the lenient test's steps.

    Min(1, p / ((1 - alpha) q)), and p - q for a residual.
    """
    q, p = random_distributions(300)
    pi = lossy(q, p, 0.3, 1.0)
    assert torch.allclose((pi / q).clamp(max=1), (p / (0.7 * q)).clamp(max=1))
    refusable = (q - p / 0.7).clamp_min(0).sum(-1) > 1e-9
    assert torch.allclose(residual(pi, q)[refusable], residual(p, q)[refusable])


ENDS = {  # the target at the end of its range that is the large model, and at the one that is the small
    "chow": (Chow(alpha=0.0), Chow(alpha=1.0)),
    "chow-log": (ChowLog(h0=0.0), ChowLog(h0=math.log(4))),
    "diff": (Diff(alpha=-1.0), Diff(alpha=1.0)),
    "diff-log": (DiffLog(alpha=-math.log(4)), DiffLog(alpha=math.log(4))),
    "opt": (Opt(alpha=-1e9), Opt(alpha=1e9)),
    "opt-log": (OptLog(alpha=-1e9), OptLog(alpha=1e9)),
    "bild": (Bild(alpha=0.0), Bild(alpha=1.0)),
    "bild-kl": (Bild(alpha=0.0, discrepancy="kl"), Bild(alpha=1e9, discrepancy="kl")),
    "bild-cross-entropy": (
        Bild(alpha=0.0, discrepancy="cross-entropy"),
        Bild(alpha=1e9, discrepancy="cross-entropy"),
    ),
    "token-difference": (TokenSpecific(alpha=-1e-9, accepts="difference"), TokenSpecific(alpha=1.0, accepts="difference")),
    "token-ratio": (TokenSpecific(alpha=-1e-9, accepts="ratio"), TokenSpecific(alpha=1.0, accepts="ratio")),
    "token-draft": (TokenSpecific(alpha=-1.0, accepts="draft"), TokenSpecific(alpha=1.0, accepts="draft")),
    "lossy": (Lossy(alpha=0.0), Lossy(alpha=1.0)),
    "lossy-star": (LossyStar(alpha=0.0), LossyStar(alpha=1.0)),
    "lossy-budget": (LossyStar(budget=0.0), LossyStar(budget=1e9)),
}  # fmt: skip


@pytest.mark.parametrize(("large", "small"), ENDS.values(), ids=ENDS)
def test_the_range_of_a_rule_reaches_both_models(large, small):
    q, p = random_distributions(500, vocabulary=4)
    for target, expected in ((large, p), (small, q)):
        assert torch.allclose(target([q.log(), p.log()], T1), expected, atol=1e-5)


def test_opt_is_diff_when_greedy():
    """SpecCascade, Remark 4 and Lemma 8.

    The output distributions are equal at T = 0 for every alpha in [0, 1), though the rules may differ."""
    q, p = random_distributions(20_000)
    for alpha in (0.0, 0.1, 0.5, 0.9):
        distributions = [rule(alpha=alpha)([q.log(), p.log()], GREEDY) for rule in (Opt, Diff)]
        assert torch.equal(*distributions)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8])
def test_opt_weighs_alpha_with_the_total_variation(alpha):
    """SpecCascade, Equation 10: defer if max q < max p - alpha TV(p, q), with unscaled confidences (Remark 3)."""
    q, p = random_distributions(2000)
    for sampler in (T1, Sampler(temperature=0.7)):
        scaled = [sampler.probs(each.log()) for each in (q, p)]
        expected = q.max(-1).values < p.max(-1).values - alpha * tv(*scaled)
        deferred = Opt(alpha=alpha).with_deferral([q.log(), p.log()], sampler)[1]
        assert torch.equal(deferred, expected) and expected.any() and not expected.all()


@pytest.mark.parametrize("name", ["chow", "diff", "opt", "opt-log", "bild"])
def test_a_rule_rejects_where_it_defers_by_the_total_variation(name):
    """Lemma 3: the chance of a rejection at a position is delta TV(p, q)."""
    q, p = random_distributions(2000)
    pi, deferred = RULES[name].with_deferral([q.log(), p.log()], T1)
    assert deferred.any() and not deferred.all()
    assert torch.allclose(tv(q, pi), deferred * tv(p, q))


@pytest.mark.parametrize("name", ["chow", "opt"])
def test_a_deferred_bonus_token_is_rejected_where_the_rule_keeps_q(name):
    """It was drawn from p, so its chance is (1 - delta) TV(p, q). The column's definition names both kinds of tokens."""
    q, p = random_distributions(2000)
    pi, deferred = RULES[name].with_deferral([q.log(), p.log()], T1)
    assert deferred.any() and not deferred.all()
    for drawn_from, chance in ((q, deferred * tv(p, q)), (p, ~deferred * tv(p, q))):
        observed = Observed.of(deferred, Draft([0] * len(q), drawn_from), pi)
        found = observed.read(observed.packed.tolist(), len(q), len(q))
        assert list(found.flags) == deferred.tolist()
        assert found.rejections == pytest.approx(chance.tolist(), rel=1e-6, abs=1e-7)
    definition = metric_of("expected_acceptance").definition
    assert " delta TV(q, p)" in definition and "(1 - delta) TV(q, p) for a deferred bonus token" in definition


def test_greedy_lenience_keeps_what_is_likely_enough():
    q, p = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.45, 0.55]]).log()
    for alpha, expected in ((0.1, [0.0, 1.0]), (0.3, [1.0, 0.0])):
        assert Lossy(alpha=alpha, greedy_lenience=True)([q, p], GREEDY).tolist() == [expected]
        assert Lossy(alpha=alpha)([q, p], GREEDY).tolist() == [[0.0, 1.0]]


def test_several_amateurs_are_subtracted_by_their_mean():
    amateur, expert = torch.tensor([[0.3, -1.0, 2.0]]), torch.tensor([[1.0, 0.5, -0.2]])
    target = Contrastive(mu=0.4)
    assert torch.allclose(target([amateur, amateur, expert], T1), target([amateur, expert], T1))


def test_positions_where_the_rule_deferred_are_counted():
    counts = counters_of(None, Deferrals([1, 0, 1], [0.25, 0.5]))
    assert counts == {"positions": 3, "deferrals": 2, "expected_rejections": 0.75}
