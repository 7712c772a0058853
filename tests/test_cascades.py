"""Cascades and lossy speculation: every rule's law by enumeration, under every bonus mode, and what its range ends at.

Expected numbers are those of methods.md, Section 10: q = (.5, .3, .15, .05), p = (.2, .2, .5, .1), TV .4.
"""

import math

import pytest
import torch
from worlds import table_world

from specbench.laws import Opened, distance, generate, law
from specbench.method import End
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.bild import OriginalBild
from specbench.methods.sequence_cascade import SequenceCascade
from specbench.methods.speculative import Speculative
from specbench.methods.token_cascade import TokenCascade
from specbench.proposers import DraftModel
from specbench.sampling import Sampler, exact_law, residual, tv
from specbench.session import Calls, roll
from specbench.stops import Unsure
from specbench.targets import (
    Bild,
    Chow,
    ChowLog,
    Contrastive,
    Diff,
    DiffLog,
    Last,
    Lossy,
    LossyStar,
    Mixture,
    Opt,
    OptLog,
    TokenSpecific,
)
from specbench.targets.deferral import kl
from specbench.targets.lossy import beta_star, lossy

ROUNDING = 1e-12
Q = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
P = torch.tensor([[0.2, 0.2, 0.5, 0.1]], dtype=torch.float64)
LOGITS = [Q.log(), P.log()]
T1, GREEDY = Sampler(), Sampler(temperature=0.0)
SAMPLING = {
    "T=1": {"temperature": 1.0},
    "T=0.7": {"temperature": 0.7},
    "top-k": {"temperature": 1.0, "top_k": 2},
    "T=0": {"temperature": 0.0},
}
RULES = {
    "chow": Chow(alpha=0.45),
    "chow-log": ChowLog(h0=0.7),
    "diff": Diff(alpha=0.05),
    "diff-scaled": Diff(alpha=0.05, scaled=True),
    "diff-log": DiffLog(alpha=0.1),
    "opt": Opt(alpha=0.3),
    "opt-log": OptLog(alpha=0.4),
    "bild": Bild(alpha=0.3),
    "bild-kl": Bild(alpha=0.3, discrepancy="kl"),
    "bild-reverse-kl": Bild(alpha=0.3, discrepancy="reverse-kl"),
    "bild-cross-entropy": Bild(alpha=0.9, discrepancy="cross-entropy"),
    "token-difference": TokenSpecific(alpha=0.3, accepts="difference"),
    "token-ratio": TokenSpecific(alpha=0.5, accepts="ratio"),
    "token-draft": TokenSpecific(alpha=0.2, accepts="draft"),
    "lossy": Lossy(alpha=0.3),
    "lossy-greedy": Lossy(alpha=0.3, greedy_lenience=True),
    "lossy-star": LossyStar(alpha=0.3),
    "lossy-budget": LossyStar(budget=0.05),
}
BONUS = ("deferred", "exact", "none")


def speculative(target, gamma=2, bonus="deferred", stop=None):
    return Speculative(
        proposer=DraftModel(model="a", gamma=gamma, stop=stop), scorers=("a", "b"), target=target, bonus=bonus
    )


def reference(target, models, length, **sampling):
    return law(Autoregressive(scorers=("a", "b"), target=target), models, length, **sampling)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("bonus", BONUS)
@pytest.mark.parametrize("target", RULES.values(), ids=RULES)
def test_every_rule_has_its_law_under_every_exact_bonus(target, bonus, sampling):
    models = table_world(3, seed=1)
    found = law(speculative(target, 1, bonus), models, 3, **sampling)
    assert abs(sum(found.values()) - 1.0) < 1e-9
    assert distance(found, reference(target, models, 3, **sampling)) < ROUNDING


@pytest.mark.parametrize("bonus", BONUS)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_drafts_of_any_length_have_the_rules_law(gamma, bonus):
    models, target = table_world(2, seed=2), Diff(alpha=0.05)
    assert distance(law(speculative(target, gamma, bonus), models, 5), reference(target, models, 5)) < ROUNDING


@pytest.mark.parametrize("bonus", BONUS)
@pytest.mark.parametrize("target", [Mixture(), Contrastive(mu=0.5)], ids=["mixture", "contrastive"])
def test_ensembles_of_three_have_their_law_under_every_exact_bonus(target, bonus):
    roles, models = ("a", "b", "c"), table_world(2)
    method = Speculative(proposer=DraftModel(model="a", gamma=2), scorers=roles, target=target, bonus=bonus)
    assert distance(law(method, models, 4), law(Autoregressive(scorers=roles, target=target), models, 4)) < ROUNDING


@pytest.mark.parametrize("bonus", BONUS)
def test_a_stop_rule_biases_nothing(bonus):
    """It looks at a law before anything is drawn from it; where it stops at once, a token still comes."""
    models, target = table_world(3, seed=3), Diff(alpha=0.05)
    lengths = set()
    for threshold in (0.0, 0.5, 0.7, 1.1):
        method = speculative(target, 2, bonus, Unsure(threshold=threshold))
        assert distance(law(method, models, 3), reference(target, models, 3)) < ROUNDING
        lengths |= {step.drafted for step in generate(method, models, T1, 8)[1]}
    assert len(lengths) >= 2


@pytest.mark.parametrize(("gamma", "least"), [(1, 0.05), (3, 0.005)])
def test_the_papers_bonus_is_biased(gamma, least):
    """Control: drawn from p although pi is not p (erratum SC-1), the output leaves its law; less so behind longer drafts."""
    models, target = table_world(3, seed=4), Diff(alpha=0.05)
    biased = distance(law(speculative(target, gamma, "paper"), models, 4), reference(target, models, 4))
    assert biased > least
    assert speculative(target, gamma, "paper").law() is None


def test_the_papers_bonus_is_exact_where_the_target_is_the_large_model():
    models = table_world(3)
    method = speculative(Last(), 2, "paper")
    assert distance(law(method, models, 4), reference(Last(), models, 4)) < ROUNDING


def test_a_pending_token_tested_with_the_drafters_law_fails(monkeypatch):
    """Mutation control: t was drawn from p; tested as if from q, it leaves the law."""
    from specbench.methods import speculative as module

    models, target = table_world(3, seed=5), Diff(alpha=0.05)
    real = module.Draft

    def mislabelled(tokens, law_):
        asked = models["b"].asked
        return real(tokens, T1.probs(models["a"].score(asked, len(asked) - 1)))

    monkeypatch.setattr(module, "Draft", mislabelled)
    assert distance(law(speculative(target, 1), models, 4), reference(target, models, 4)) > 0.02


def test_the_unnormalised_target_that_the_paper_prints_fails():
    """Control: max{min{q, p / (1 - alpha)}, p} sums to 1.1, and under an exact bonus its law is not lossy's."""

    class Printed(Lossy, name="printed-lossy"):
        def __call__(self, logits, sampler):
            q, p = (sampler.probs(each) for each in logits)
            return torch.maximum(torch.minimum(q, p / (1.0 - self.alpha)), p)

    assert Printed(alpha=0.2)(LOGITS, T1).sum().item() == pytest.approx(1.10)
    models = table_world(3, seed=6)
    expected = reference(Lossy(alpha=0.4), models, 3)
    assert distance(law(speculative(Printed(alpha=0.4), 1, "exact"), models, 3), expected) > 0.02


def test_an_eos_ends_a_draft_and_a_pending_token_without_bias():
    eos, models = 1, table_world(3, seed=7)
    target = Diff(alpha=0.05)

    def until_eos(method, sampler):
        out = []
        for step in method.steps(models, sampler, End(frozenset({eos}), 1 + 3)):
            for token in step.tokens:
                out.append(token)
                if token == eos or len(out) == 3:
                    return tuple(out)
        raise AssertionError("it ended early")

    plain = exact_law(lambda s: until_eos(Autoregressive(scorers=("a", "b"), target=target), s))
    for bonus in BONUS:
        found = exact_law(lambda s, b=bonus: until_eos(speculative(target, 2, b), s))
        assert distance(found, plain) < ROUNDING


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
    def test_law_and_acceptance(self, target, law_, acceptance):
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


def random_laws(n=4000, vocabulary=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(2, n, vocabulary, generator=generator, dtype=torch.float64) ** 3 + 1e-9
    return tuple(rows / rows.sum(-1, keepdim=True))


def test_beta_star_is_what_it_is_said_to_be():
    """It balances the residual, is at least 1, is 1 at alpha 0, makes the printed target a law, and that law the output's."""
    q, p = random_laws()
    assert torch.allclose(beta_star(q, p, 0.0), torch.ones(len(q), 1, dtype=q.dtype))
    for alpha in (0.05, 0.3, 0.7):
        beta = beta_star(q, p, alpha)
        refused = (q - p / (1 - alpha)).clamp_min(0).sum(-1)
        some = refused > 0
        assert some.any() and (beta >= 1.0 - 1e-12).all()
        assert torch.allclose((p / beta - q).clamp_min(0).sum(-1)[some], refused[some])
        printed = torch.maximum(torch.minimum(q, p / (1 - alpha)), p / beta)
        assert torch.allclose(printed.sum(-1)[some], torch.ones(int(some.sum()), dtype=q.dtype))
        assert torch.allclose(printed[some], lossy(q, p, alpha, beta)[some])
        assert (kl(p, lossy(q, p, alpha, beta)) <= kl(p, lossy(q, p, alpha, 1.0)) + 1e-12).all()
        assert torch.allclose(lossy(q, p, alpha, 1.0).sum(-1), torch.ones(len(q), dtype=q.dtype))


def test_no_other_replacement_is_nearer_to_p_than_beta_stars():
    """For the same share refused: mixing the replacement with any other law never lowers KL(p || pi)."""
    q, p = random_laws(500)
    pi = LossyStar(alpha=0.3)([q.log(), p.log()], T1)
    kept = torch.minimum(q, p / 0.7)
    refused = 1 - kept.sum(-1, keepdim=True)
    for seed in range(5):
        other = random_laws(500, seed=10 + seed)[0]
        for share in (0.05, 0.5, 1.0):
            mixed = kept + (1 - share) * (pi - kept) + share * refused * other
            assert (kl(p, mixed) >= kl(p, pi) - 1e-12).all()


def test_a_budget_is_kept_and_used():
    q, p = random_laws(500)
    for budget in (0.0, 0.02, 0.3):
        spent = kl(p, LossyStar(budget=budget)([q.log(), p.log()], T1))
        free = kl(p, q)  # what alpha = 1 would spend
        assert (spent <= budget + 1e-9).all()
        assert torch.allclose(spent, free.clamp_max(budget), atol=1e-4)


def test_lossys_law_is_that_of_its_own_steps():
    """Verifying against the law performs the lenient test's steps: min(1, p / ((1 - alpha) q)), and p - q for a residual."""
    q, p = random_laws(300)
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
def test_a_range_ends_at_the_large_and_at_the_small_model(large, small):
    q, p = random_laws(500, vocabulary=4)
    for target, expected in ((large, p), (small, q)):
        assert torch.allclose(target([q.log(), p.log()], T1), expected, atol=1e-5)


def test_opt_is_diff_when_greedy():
    """Remark 4: the output laws are equal at T = 0 for every alpha in [0, 1), though the rules may differ."""
    q, p = random_laws(20_000)
    for alpha in (0.0, 0.1, 0.5, 0.9):
        laws = [rule(alpha=alpha)([q.log(), p.log()], GREEDY) for rule in (Opt, Diff)]
        assert torch.equal(*laws)


@pytest.mark.parametrize("name", ["chow", "diff", "opt", "opt-log", "bild"])
def test_a_rule_rejects_where_it_defers_by_the_total_variation(name):
    """Lemma 3: the chance of a rejection at a position is delta TV(p, q)."""
    q, p = random_laws(2000)
    pi, deferred = RULES[name].ruled([q.log(), p.log()], T1)
    assert deferred.any() and not deferred.all()
    assert torch.allclose(tv(q, pi), deferred * tv(p, q))


def test_greedy_lenience_keeps_what_is_likely_enough():
    q, p = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.45, 0.55]]).log()
    for alpha, expected in ((0.1, [0.0, 1.0]), (0.3, [1.0, 0.0])):
        assert Lossy(alpha=alpha, greedy_lenience=True)([q, p], GREEDY).tolist() == [expected]
        assert Lossy(alpha=alpha)([q, p], GREEDY).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("target", [Chow(alpha=0.45), ChowLog(h0=0.7), Chow(alpha=0.45, scaled=True)])
def test_a_token_cascade_has_its_rules_law(target, sampling):
    models = table_world(3, seed=8)
    method = TokenCascade(small="a", large="b", target=target)
    assert distance(law(method, models, 3, **sampling), reference(target, models, 3, **sampling)) < ROUNDING


def test_a_token_cascade_wants_a_rule_of_the_small_model():
    with pytest.raises(ValueError, match="needs the large model at every position"):
        TokenCascade(small="a", large="b", target=Diff(alpha=0.1))


class Counting:
    """A table session as a cache would see it: forwards, and tokens fed to each."""

    def __init__(self, inner):
        self.inner, self.calls, self.read, self.fed = inner, Calls(), [], []

    def score(self, ids, start):
        known = 0
        while known < min(len(ids), len(self.read)) and ids[known] == self.read[known]:
            known += 1
        if known < len(ids):
            self.fed.append(len(ids) - known)
            self.read = list(ids)
        return self.inner.score(ids, start)

    def roll(self, ids, k, sampler, eos):
        return roll(self, ids, k, sampler, eos)


def counting(seed, vocabulary=6):
    models = table_world(vocabulary, seed)
    return Opened({role: Counting(models[role]) for role in "ab"})


def test_a_token_cascade_calls_the_large_model_once_a_deferral():
    models = counting(9)
    method = TokenCascade(small="a", large="b", target=Chow(alpha=0.6))
    _, steps = generate(method, models, Sampler(generator=torch.Generator().manual_seed(1)), 40)
    deferrals = sum(step.noted["deferrals"] for step in steps)
    assert 0 < deferrals < 40
    assert len(models["b"].fed) == deferrals
    assert models["a"].fed == [1] * 40
    assert sum(models["b"].fed) == max(i for i, step in enumerate(steps) if step.noted["deferrals"]) + 1


def test_a_deferred_bonus_costs_a_forward_only_where_it_is_refused():
    """methods 4.4: the drafter reads t with the draft's end: gamma forwards a round, and one alone for a refusal."""
    models, gamma = counting(10), 3
    sampler = Sampler(generator=torch.Generator().manual_seed(2))
    _, steps = generate(speculative(Diff(alpha=0.05), gamma), models, sampler, 300)
    pending = [step for step in steps if step.by[:1] == ("b",)]
    refused = [step for step in pending if not step.accepted]
    blocks = len(steps) - len(refused)
    assert refused and len(pending) > len(refused)
    drafted = sum(step.by.count("a") > 0 for step in steps)
    assert drafted == blocks
    assert len(models["b"].fed) == blocks
    last = steps[-1]
    full = gamma * (blocks - 1) + last.drafted  # the length limit cuts the last draft alone
    assert len(models["a"].fed) <= full + len(refused)
    assert len(models["a"].fed) >= full + len(refused) - gamma


def test_steps_account_for_every_token():
    models = counting(11)
    for bonus in (*BONUS, "paper"):
        sampler = Sampler(generator=torch.Generator().manual_seed(3))
        tokens, steps = generate(speculative(Diff(alpha=0.05), 3, bonus), models, sampler, 200)
        assert len(tokens) == 200
        assert all(step.tested == len(step.by) and 0 <= step.tested - step.accepted <= 1 for step in steps)
        assert all(len(step.tokens) - step.accepted in (0, 1) for step in steps)
        assert sum(step.drafted for step in steps) >= sum(step.tested for step in steps)
        assert all(0 <= step.noted["deferrals"] <= step.noted["positions"] for step in steps)
        assert sum(step.noted["positions"] for step in steps) + (bonus == "paper") * sum(
            len(step.tokens) - step.accepted == 1 and step.accepted == step.tested for step in steps
        ) == 200  # fmt: skip


def sequences(models, role, length):
    return law(Autoregressive(scorers=(role,), target=Last()), models, length)


@pytest.mark.parametrize("score", ["product", "mean", "min"])
def test_a_sequence_cascade_keeps_what_the_small_model_was_sure_of(score):
    """Its exact law: a kept sequence with the small model's probability, any with the large one's for the share deferred."""
    models, length = table_world(3, seed=12), 3
    small, large = sequences(models, "a", length), sequences(models, "b", length)

    def score_of(tokens):
        ids, chances = [0], []
        for token in tokens:
            chances.append(T1.probs(models["a"].score(ids, len(ids) - 1))[0, token].item())
            ids.append(token)
        logs = [math.log(c) for c in chances]
        return {"product": sum(logs), "mean": sum(logs) / length, "min": min(logs)}[score]

    scores = {tokens: score_of(tokens) for tokens in small}
    best = sorted(set(scores.values()), reverse=True)
    threshold = (best[1] + best[2]) / 2
    kept = {tokens: mass for tokens, mass in small.items() if scores[tokens] >= threshold}
    deferred = 1.0 - sum(kept.values())
    expected = {tokens: kept.get(tokens, 0.0) + deferred * large[tokens] for tokens in large}
    found = law(SequenceCascade(small="a", large="b", score=score, threshold=threshold), models, length)
    assert 0.05 < deferred < 0.99
    assert distance(found, expected) < 1e-9


def test_a_quantile_of_the_scores_defers_that_share():
    models = table_world(4, seed=13)

    def pilot(method):
        for seed in range(50):
            yield generate(method, models, Sampler(generator=torch.Generator().manual_seed(seed)), 5)[1]

    for quantile, share in ((0.0, 0.0), (0.3, 0.3), (1.0, 1.0)):
        settled = SequenceCascade(small="a", large="b", quantile=quantile).piloted(pilot)
        deferrals = [steps[0].noted["deferrals"] for steps in pilot(settled)]
        assert sum(deferrals) / 50 == pytest.approx(share, abs=0.021)


@pytest.mark.parametrize("score", ["product", "mean", "min"])
def test_a_greedy_sequence_cascade_defers_by_unscaled_confidence(score):
    """At T = 0 laws are one-hot and say nothing of how sure the model is; qbar does."""
    deferrals = set()
    for seed in range(12):
        method = SequenceCascade(small="a", large="b", score=score, threshold=-1.2 if score == "product" else -0.5)
        models = table_world(3, seed)
        tokens, steps = generate(method, models, GREEDY, 3)
        deferred = steps[0].noted["deferrals"]
        role = "b" if deferred else "a"
        assert tokens == generate(Autoregressive(scorers=(role,), target=Last()), models, GREEDY, 3)[0]
        deferrals.add(deferred)
    assert deferrals == {0, 1}


def test_a_long_product_does_not_underflow():
    """400 tokens of about two nats each: the scores stay apart, and half are deferred."""
    models = table_world(30, seed=14)

    def pilot(method):
        for seed in range(6):
            yield generate(method, models, Sampler(generator=torch.Generator().manual_seed(seed)), 400)[1]

    settled = SequenceCascade(small="a", large="b", quantile=0.5).piloted(pilot)
    assert settled.threshold < -700
    assert sum(steps[0].noted["deferrals"] for steps in pilot(settled)) == 3


def test_a_pilot_that_finds_nothing_defers_nothing():
    assert SequenceCascade(small="a", large="b", quantile=0.5).piloted(lambda method: []).threshold == -math.inf


def test_a_pending_token_belongs_to_the_model_that_drew_it():
    """Also where the drafting model is the last scorer: t is the other one's."""
    method = Speculative(proposer=DraftModel(model="b", gamma=1), scorers=("a", "b"), target=Diff(alpha=0.05))
    models = table_world(3, seed=3)
    assert distance(law(method, models, 4), reference(Diff(alpha=0.05), models, 4)) < ROUNDING
    _, steps = generate(method, models, Sampler(generator=torch.Generator().manual_seed(1)), 60)
    assert {step.by[0] for step in steps if step.by} == {"a", "b"}


def test_an_exact_bonus_costs_a_forward_only_where_a_draft_was_accepted_whole():
    models, gamma = counting(10), 3
    sampler = Sampler(generator=torch.Generator().manual_seed(2))
    _, steps = generate(speculative(Diff(alpha=0.05), gamma, "exact"), models, sampler, 300)
    whole = sum(step.accepted == step.drafted for step in steps)
    assert 0 < whole < len(steps) / 2
    drafted = sum(step.drafted for step in steps)
    assert drafted <= len(models["a"].fed) <= drafted + whole
    assert len(models["b"].fed) == len(steps)


def bild_by_hand(models, length, fallback, rollback, most):
    """The loop over token laws, without sessions and caches."""
    laws = {role: lambda ids, r=role: models[r].score(ids, len(ids) - 1)[0].softmax(-1) for role in "ab"}
    ids = [0]
    ids.append(int(laws["b"](ids).argmax()))
    while len(ids) - 1 < length:
        written = []
        while len(written) < min(most, length - (len(ids) - 1)):
            small = laws["a"](ids + written)
            if small.max() < fallback:
                break
            written.append(int(small.argmax()))
        for i, token in enumerate(written):
            large = laws["b"](ids + written[:i])
            if -large[token].log() > rollback and int(large.argmax()) != token:
                ids += [*written[:i], int(large.argmax())]
                break
        else:
            ids += written
            if len(ids) - 1 < length:
                ids.append(int(laws["b"](ids).argmax()))
    return ids[1:]


@pytest.mark.parametrize(("fallback", "rollback"), [(0.6, 5.0), (0.4, 1.0), (0.0, 0.5), (1.1, 5.0)])
def test_bild_is_its_loop_written_out(fallback, rollback):
    noted = {}
    for seed in range(20):
        models = table_world(5, seed)
        method = OriginalBild(small="a", large="b", fallback=fallback, rollback=rollback, gamma=4)
        tokens, steps = generate(method, models, GREEDY, 20)
        assert tokens == bild_by_hand(models, 20, fallback, rollback, 4)
        for step in steps:
            for key, count in step.noted.items():
                noted[key] = noted.get(key, 0) + count
    assert (noted.get("fallbacks", 0) > 0) == (fallback > 0)
    assert (noted["rollbacks"] > 0) == (fallback < 1)


def test_bild_may_end_at_an_unread_eos():
    """The authors' code ends where the small model says EOS; by default the large model looks first."""
    for seed in range(40):
        models = table_world(4, seed, spread=4.0)
        eos = int(models["a"].score([0], 0)[0].argmax())
        first = int(models["b"].score([0], 0)[0].argmax())
        eos = int(models["a"].score([0, first], 1)[0].argmax())
        if first == eos or int(models["b"].score([0, first], 1)[0].argmax()) == eos:
            continue
        ends = []
        for check in (True, False):
            method = OriginalBild(small="a", large="b", fallback=0.0, rollback=0.01, gamma=4, check_eos=check)
            steps = method.steps(models, GREEDY, End(frozenset({eos}), 9))
            next(steps)
            ends.append(next(steps).tokens)
        assert ends[1] == [eos] != ends[0]
        return
    raise AssertionError("no world in which it matters")
