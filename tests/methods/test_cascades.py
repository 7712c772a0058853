"""Speculative cascades and lossy speculation.

Every rule's distribution by enumeration, under every bonus mode, and what it costs.
"""

import pytest
import torch

from specbench.decoding.drafting import roll
from specbench.decoding.sampling import Sampler, exact_distribution
from specbench.decoding.session import Usage
from specbench.decoding.targets import (
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
from specbench.features.verify.enumeration import TableModels, distance, generate, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.stopping import Unsure
from tests.fixtures.worlds import table_world, until_eos

ROUNDING = 1e-12
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
    return joint_distribution(Autoregressive(scorers=("a", "b"), target=target), models, length, **sampling)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("bonus", BONUS)
@pytest.mark.parametrize("target", RULES.values(), ids=RULES)
def test_every_rule_follows_its_distribution_under_every_exact_bonus(target, bonus, sampling):
    """SpecCascade, Table 1; SpecCascade, Algorithm 5."""
    models = table_world(3, seed=1)
    found = joint_distribution(speculative(target, 1, bonus), models, 3, **sampling)
    assert abs(sum(found.values()) - 1.0) < 1e-9
    assert distance(found, reference(target, models, 3, **sampling)) < ROUNDING


@pytest.mark.parametrize("bonus", BONUS)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_drafts_of_any_length_follow_the_rule(gamma, bonus):
    """SpecCascade, Algorithm 4."""
    models, target = table_world(2, seed=2), Diff(alpha=0.05)
    assert (
        distance(joint_distribution(speculative(target, gamma, bonus), models, 5), reference(target, models, 5))
        < ROUNDING
    )


@pytest.mark.parametrize("bonus", BONUS)
@pytest.mark.parametrize("target", [Mixture(), Contrastive(mu=0.5)], ids=["mixture", "contrastive"])
def test_ensembles_of_three_follow_their_distribution_under_every_exact_bonus(target, bonus):
    roles, models = ("a", "b", "c"), table_world(2)
    method = Speculative(proposer=DraftModel(model="a", gamma=2), scorers=roles, target=target, bonus=bonus)
    assert (
        distance(
            joint_distribution(method, models, 4),
            joint_distribution(Autoregressive(scorers=roles, target=target), models, 4),
        )
        < ROUNDING
    )


@pytest.mark.parametrize("bonus", BONUS)
def test_a_stop_rule_does_not_bias_the_output(bonus):
    """It looks at a distribution before anything is drawn from it; where it stops at once, a token still comes."""
    models, target = table_world(3, seed=3), Diff(alpha=0.05)
    lengths = set()
    for threshold in (0.0, 0.5, 0.7, 1.1):
        method = speculative(target, 2, bonus, Unsure(threshold=threshold))
        assert distance(joint_distribution(method, models, 3), reference(target, models, 3)) < ROUNDING
        lengths |= {round_.drafted for round_ in generate(method, models, T1, 8)[1]}
    assert len(lengths) >= 2


@pytest.mark.parametrize(("gamma", "least"), [(1, 0.05), (3, 0.005)])
def test_the_papers_bonus_is_biased(gamma, least):
    """Control: a bonus from p although pi is not p biases the output; less so with longer drafts.

    See erratum SC-1, docs/papers/speccascade.md, Errata.
    """
    models, target = table_world(3, seed=4), Diff(alpha=0.05)
    biased = distance(joint_distribution(speculative(target, gamma, "paper"), models, 4), reference(target, models, 4))
    assert biased > least
    assert speculative(target, gamma, "paper").declared_distribution() is None


def test_the_papers_bonus_is_exact_where_the_target_is_the_large_model():
    models = table_world(3)
    method = speculative(Last(), 2, "paper")
    assert distance(joint_distribution(method, models, 4), reference(Last(), models, 4)) < ROUNDING


def test_a_pending_token_tested_with_the_drafters_distribution_fails(monkeypatch):
    """Mutation control: t was drawn from p; tested as if from q, it leaves the distribution."""
    from specbench.methods import speculative as module

    models, target = table_world(3, seed=5), Diff(alpha=0.05)
    real = module.Draft

    def mislabelled(tokens, law_):
        ids = models["b"].last_scored
        return real(tokens, T1.probs(models["a"].score(ids, len(ids) - 1)))

    monkeypatch.setattr(module, "Draft", mislabelled)
    assert distance(joint_distribution(speculative(target, 1), models, 4), reference(target, models, 4)) > 0.02


def test_the_unnormalised_target_that_the_paper_prints_is_rejected():
    """SpecCascade, Lemma 2.

    Control: max{min{q, p / (1 - alpha)}, p} is not a distribution for beta = 1, and raises an error.

    See erratum SC-2, docs/papers/speccascade.md, Errata.
    """

    class Printed(Lossy, name="printed-lossy"):
        def __call__(self, logits, sampler):
            q, p = (sampler.probs(each) for each in logits)
            return torch.maximum(torch.minimum(q, p / (1.0 - self.alpha)), p)

    q, p = torch.tensor([[0.5, 0.3, 0.15, 0.05]]), torch.tensor([[0.2, 0.2, 0.5, 0.1]])
    assert Printed(alpha=0.2)([q.log(), p.log()], T1).sum().item() == pytest.approx(1.10)
    for bonus in BONUS:
        with pytest.raises(FloatingPointError, match="a distribution sums to 1"):
            joint_distribution(speculative(Printed(alpha=0.4), 1, bonus), table_world(3, seed=6), 3)


def test_an_eos_ends_a_draft_and_a_pending_token_without_bias():
    eos, models = 1, table_world(3, seed=7)
    target = Diff(alpha=0.05)

    plain = exact_distribution(lambda s: until_eos(Autoregressive(scorers=("a", "b"), target=target), models, eos, s))
    for bonus in BONUS:
        found = exact_distribution(lambda s, b=bonus: until_eos(speculative(target, 2, b), models, eos, s))
        assert distance(found, plain) < ROUNDING


class Counting:
    """A table session as a cache would see it: forwards, and tokens fed to each."""

    def __init__(self, inner):
        self.inner, self.usage, self.read, self.fed = inner, Usage(), [], []

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

    def room(self, ids):
        return self.inner.room(ids)


def counting(seed, vocabulary=6):
    models = table_world(vocabulary, seed)
    return TableModels({role: Counting(models[role]) for role in "ab"}, vocabulary=vocabulary)


def test_a_deferred_bonus_costs_a_forward_only_where_it_is_rejected():
    """docs/papers/speccascade.md, Bonus token:

    the drafter reads t with the last drafted token: gamma forwards per round, and one more after a rejection.
    """
    models, gamma = counting(10), 3
    sampler = Sampler(generator=torch.Generator().manual_seed(2))
    _, steps = generate(speculative(Diff(alpha=0.05), gamma), models, sampler, 300)
    pending = [round_ for round_ in steps if round_.proposers[:1] == ("b",)]
    rejected = [round_ for round_ in pending if not round_.accepted]
    blocks = len(steps) - len(rejected)
    assert rejected and len(pending) > len(rejected)
    drafted = sum(round_.proposers.count("a") > 0 for round_ in steps)
    assert drafted == blocks
    assert len(models["b"].fed) == blocks
    last = steps[-1]
    full = gamma * (blocks - 1) + last.drafted  # the length limit cuts the last draft alone
    assert len(models["a"].fed) <= full + len(rejected)
    assert len(models["a"].fed) >= full + len(rejected) - gamma


def test_rounds_account_for_every_token():
    models = counting(11)
    for bonus in (*BONUS, "paper"):
        sampler = Sampler(generator=torch.Generator().manual_seed(3))
        tokens, steps = generate(speculative(Diff(alpha=0.05), 3, bonus), models, sampler, 200)
        assert len(tokens) == 200
        assert all(
            round_.tested == len(round_.proposers) and 0 <= round_.tested - round_.accepted <= 1 for round_ in steps
        )
        assert all(len(round_.tokens) - round_.accepted in (0, 1) for round_ in steps)
        assert sum(round_.drafted for round_ in steps) >= sum(round_.tested for round_ in steps)
        assert all(0 <= round_.counters["deferrals"] <= round_.counters["positions"] for round_ in steps)
        assert sum(round_.counters["positions"] for round_ in steps) + (bonus == "paper") * sum(
            len(round_.tokens) - round_.accepted == 1 and round_.accepted == round_.tested for round_ in steps
        ) == 200  # fmt: skip


def test_a_pending_token_belongs_to_the_model_that_drew_it():
    """Also where the drafting model is the last scorer: t is the other one's."""
    method = Speculative(proposer=DraftModel(model="b", gamma=1), scorers=("a", "b"), target=Diff(alpha=0.05))
    models = table_world(3, seed=3)
    assert distance(joint_distribution(method, models, 4), reference(Diff(alpha=0.05), models, 4)) < ROUNDING
    _, steps = generate(method, models, Sampler(generator=torch.Generator().manual_seed(1)), 60)
    assert {round_.proposers[0] for round_ in steps if round_.proposers} == {"a", "b"}


def test_an_exact_bonus_costs_a_forward_only_where_a_draft_was_accepted_whole():
    models, gamma = counting(10), 3
    sampler = Sampler(generator=torch.Generator().manual_seed(2))
    _, steps = generate(speculative(Diff(alpha=0.05), gamma, "exact"), models, sampler, 300)
    whole = sum(round_.accepted == round_.drafted for round_ in steps)
    assert 0 < whole < len(steps) / 2
    drafted = sum(round_.drafted for round_ in steps)
    assert drafted <= len(models["a"].fed) <= drafted + whole
    assert len(models["b"].fed) == len(steps)
