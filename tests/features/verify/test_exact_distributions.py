"""Every lossless method has exactly its target's joint distribution, by enumeration: no sampling, no noise floor.

Sequences have at least three tokens, so that a bonus or pending token of one round is verified in a later one.
"""

from collections.abc import Callable

import pytest
import torch

from specbench.decoding.method import Method, Round, StopCriteria
from specbench.decoding.rejection import verify
from specbench.decoding.sampling import Draft, Sampler, exact_distribution
from specbench.decoding.targets import Contrastive, Last, Mixture, Realigned, Target
from specbench.features.verify.enumeration import TableModels, distance, generate, joint_distribution
from specbench.methods import speculative_ensemble
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from tests.fixtures.worlds import table_world, until_eos

ROUNDING = 1e-12
SAMPLING = {
    "T=1": {"temperature": 1.0},
    "T=0.7": {"temperature": 0.7},
    "top-k": {"temperature": 1.0, "top_k": 2},
    "top-p": {"temperature": 0.7, "top_p": 0.75},
}
LAST = Last()
SEED, KEPT = 8, 6
SHARP = {"temperature": 1.0, "top_p": 0.8}  # with a spread of 4 most rows are one-hot, which keeps enumeration small
TARGETS = {
    "mixture": Mixture(),
    "weighted": Mixture(weights=(0.2, 0.8)),
    "contrastive": Contrastive(mu=0.5),
    "realigned": Realigned(lam=1.5),
}
TARGETS_OF_THREE = (TARGETS["mixture"], TARGETS["contrastive"])
FILTERED = ("top-k", "top-p")  # the settings of all targets but the mixture, which has all
SAMPLED = [
    pytest.param(target, sampling, id=f"{name}-{setting}")
    for name, target in TARGETS.items()
    for setting, sampling in SAMPLING.items()
    if name == "mixture" or setting in FILTERED
]


def reference(models: TableModels, scorers: tuple[str, ...], target: Target, length: int, **sampling: float):
    return joint_distribution(Autoregressive(scorers=scorers, target=target), models, length, **sampling)


def sd(gamma: int, target: Target = LAST, scorers: tuple[str, ...] = ("b",), bonus: str = "exact") -> Speculative:
    return Speculative(proposer=DraftModel(model="a", gamma=gamma), scorers=scorers, target=target, bonus=bonus)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("gamma", [1, 2])
def test_speculative_decoding_follows_the_target(gamma, sampling):
    """SpecCascade, Algorithm 1."""
    models = table_world(3)
    expected = reference(models, ("b",), Last(), 3, **sampling)
    assert distance(joint_distribution(sd(gamma), models, 3, **sampling), expected) < ROUNDING


def test_speculative_decoding_with_whole_drafts_of_five_follows_the_target():
    models = table_world(2, seed=SEED, spread=4.0)
    found = exact_distribution(_prefix(sd(5), models, KEPT, set()), **SHARP)
    assert distance(found, reference(models, ("b",), Last(), KEPT, **SHARP)) < ROUNDING


@pytest.mark.parametrize("bonus", ["none", "exact"])
@pytest.mark.parametrize(("target", "sampling"), SAMPLED)
def test_naive_speculative_ensembles_follow_the_ensemble(target, bonus, sampling):
    """Speculative Ensemble, Appendix A.1."""
    models = table_world(3)
    expected = reference(models, ("a", "b"), target, 3, **sampling)
    assert distance(joint_distribution(sd(2, target, ("a", "b"), bonus), models, 3, **sampling), expected) < ROUNDING


@pytest.mark.parametrize(("vocabulary", "length", "gamma"), [(3, 3, (1, 1)), (2, 4, (5, 1)), (2, 4, (2, 3))])
@pytest.mark.parametrize(("target", "sampling"), SAMPLED)
def test_speculative_ensembles_of_two_follow_the_ensemble(target, vocabulary, length, gamma, sampling):
    """Speculative Ensemble, Algorithm 1."""
    models = table_world(vocabulary)
    expected = reference(models, ("a", "b"), target, length, **sampling)
    method = SpeculativeEnsemble(models=("a", "b"), gamma=gamma, target=target)
    assert distance(joint_distribution(method, models, length, **sampling), expected) < ROUNDING


@pytest.mark.parametrize(("vocabulary", "length", "gamma"), [(3, 3, (1, 1, 1)), (2, 3, (3, 2, 1)), (2, 3, (2, 3, 2))])
@pytest.mark.parametrize(("target", "sampling"), [each for each in SAMPLED if each.values[0] in TARGETS_OF_THREE])
def test_speculative_ensembles_of_three_follow_the_ensemble(target, vocabulary, length, gamma, sampling):
    """Speculative Ensemble, Algorithm 2."""
    models, roles = table_world(vocabulary), ("a", "b", "c")
    expected = reference(models, roles, target, length, **sampling)
    method = SpeculativeEnsemble(models=roles, gamma=gamma, target=target)
    assert distance(joint_distribution(method, models, length, **sampling), expected) < ROUNDING


def test_greedy_ensembles_equal_the_arg_max_of_the_mixture():
    """At T = 0 the mixture is the arg max of the T = 1 mixture, by brute force and for every method.

    See docs/papers/speculative-ensemble.md, Ensemble distributions.
    """
    roles = ("a", "b", "c")
    for seed in range(8):
        models, ids = table_world(5, seed), [0]
        for _ in range(6):
            mixed = sum(models[role].score(ids, len(ids) - 1)[0].softmax(-1) for role in roles)
            ids.append(int(mixed.argmax()))
        methods = [
            Autoregressive(scorers=roles, target=Mixture()),
            SpeculativeEnsemble(models=roles, gamma=(3, 2, 1), target=Mixture()),
            Speculative(proposer=DraftModel(model="a", gamma=3), scorers=roles, target=Mixture(), bonus="none"),
        ]
        for method in methods:
            assert generate(method, models, Sampler(temperature=0.0), 6)[0] == ids[1:]


class _BonusFromLast(Speculative, name="bonus-from-last"):
    """A mutant: the bonus comes from the last model's distribution although the distribution is a mixture."""

    def rounds(self, models, sampler, stop):
        ids, session = list(models.ids), models["b"]
        propose = self.proposer.open(models, sampler, stop)
        while stop.room(ids) > 0:
            draft = propose(ids, stop.room(ids) - 1)
            k = len(draft.tokens)
            rows = session.score(ids + draft.tokens, len(ids) - 1)
            pi = torch.cat([self.target([models["a"].score(ids + draft.tokens, len(ids) - 1), rows], sampler)[:k],
                            sampler.probs(rows[k:])])  # fmt: skip
            out = verify(draft, pi, sampler)
            ids += out.tokens
            yield Round(out.tokens)


def test_a_bonus_from_the_last_model_alone_fails():
    """Mutation control: transformers' assisted ensembles and SpecCascade's Algorithm 4 have this bias."""
    models, target = table_world(3), Mixture()
    mutant = _BonusFromLast(proposer=DraftModel(model="a", gamma=1), scorers=("a", "b"), target=target)
    assert distance(joint_distribution(mutant, models, 3), reference(models, ("a", "b"), target, 3)) > 0.02


def _prefix(method: Method, models: TableModels, kept: int, owners: set[str]) -> Callable[[Sampler], tuple[int, ...]]:
    """The first `kept` tokens of a sequence whose limit is far away, so that drafts have their whole length."""

    def run(sampler: Sampler) -> tuple[int, ...]:
        out: list[int] = []
        for round_ in method.rounds(models, sampler, StopCriteria(frozenset(), 40)):
            owners.update(round_.proposers)
            out += round_.tokens
            if len(out) >= kept:
                break
        return tuple(out[:kept])

    return run


@pytest.mark.parametrize("gamma", [(5, 1), (2, 3), (3, 2, 1)])
def test_whole_drafts_of_every_owner_follow_the_ensemble(gamma):
    """Far from the length limit: every model's own proposals are tested, after drafts of full length."""
    roles, models, owners = tuple("abc"[: len(gamma)]), table_world(2, seed=SEED, spread=4.0), set()
    method = SpeculativeEnsemble(models=roles, gamma=gamma, target=Mixture())
    expected = reference(models, roles, Mixture(), KEPT, **SHARP)
    assert distance(exact_distribution(_prefix(method, models, KEPT, owners), **SHARP), expected) < ROUNDING
    assert owners == set(roles)
    assert 4 <= len(expected) < 2**KEPT


@pytest.mark.parametrize("gamma", [(5, 1), (2, 3), (3, 2, 1), (1, 1), (1, 1, 1)])
def test_testing_with_the_default_proposers_distribution_fails(gamma, monkeypatch):
    """Mutation control: every proposal is tested with the distribution of M_1 instead of that of its owner.

    See erratum SE-7, docs/papers/speculative-ensemble.md, Errata.
    """
    roles, models, owners = tuple("abc"[: len(gamma)]), table_world(2, seed=SEED, spread=4.0), set()

    def mislabelled(token: int, probs: torch.Tensor, owner: str) -> speculative_ensemble.Proposal:
        read = models[owner].last_scored
        first = Sampler(**SHARP).probs(models["a"].score(read, len(read) - 1))
        return Proposal(token, first, owner)

    Proposal = speculative_ensemble.Proposal
    monkeypatch.setattr(speculative_ensemble, "Proposal", mislabelled)
    method = SpeculativeEnsemble(models=roles, gamma=gamma, target=Mixture())
    expected = reference(models, roles, Mixture(), KEPT, **SHARP)
    assert distance(exact_distribution(_prefix(method, models, KEPT, owners), **SHARP), expected) > 0.02


def test_a_greedy_draft_with_soft_distributions_fails():
    """Mutation control: q is not the distribution that was sampled from."""

    class Greedy(DraftModel, name="greedy-mutant"):
        def open(self, models, sampler, stop):
            inner, session = super().open(models, Sampler(temperature=0.0), stop), models[self.model]

            def propose(ids, room):
                draft = inner(ids, room)
                rows = session.score(ids + draft.tokens, len(ids) - 1)[: len(draft.tokens)]
                return Draft(draft.tokens, sampler.probs(rows))

            return propose

    models = table_world(3)
    mutant = Speculative(proposer=Greedy(model="a", gamma=2), scorers=("b",), target=Last())
    assert distance(joint_distribution(mutant, models, 3), reference(models, ("b",), Last(), 3)) > 0.02


def test_length_limits_do_not_bias_the_output():
    """The distribution of the first three tokens is the same whether three or four are requested."""
    models = table_world(2)
    method = SpeculativeEnsemble(models=("a", "b"), gamma=(3, 1), target=Mixture())
    longer: dict[tuple[int, ...], float] = {}
    for tokens, weight in joint_distribution(method, models, 4).items():
        longer[tokens[:3]] = longer.get(tokens[:3], 0.0) + weight
    assert distance(longer, joint_distribution(method, models, 3)) < ROUNDING


def test_an_eos_in_the_draft_does_not_bias_the_output():
    """A drafter stops after an EOS; the distribution up to the first EOS is the ensemble's, for every method."""
    eos, models = 1, table_world(3)

    target = Mixture()
    methods = {
        "we": Autoregressive(scorers=("a", "b"), target=target),
        "we-sd": sd(3, target, ("a", "b"), "none"),
        "we-se": SpeculativeEnsemble(models=("a", "b"), gamma=(2, 2), target=target),
        "we-se, one model twice": SpeculativeEnsemble(
            models=("a", "b", "b"), gamma=(2, 1, 1), target=Mixture(weights=(0.5, 0.25, 0.25))
        ),
    }
    distributions = {
        name: exact_distribution(lambda sampler, m=method: until_eos(m, models, eos, sampler))
        for name, method in methods.items()
    }
    for name, found in distributions.items():
        assert abs(sum(found.values()) - 1.0) < ROUNDING
        assert distance(found, distributions["we"]) < ROUNDING, name
