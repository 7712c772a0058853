"""Chains are exact: joint distributions of five tokens by enumeration, for three and four levels over every kind of
drafter.

The target is the last of `roles`; tokens of a middle model are verified with its own distribution
(docs/papers/polybasic.md, Chain of n models).
"""

import pytest
import torch

from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Draft, Sampler, exact_distribution
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import Distribution, TableModels, distance, joint_distribution, tables
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.lookups import PromptLookup
from specbench.methods.proposers import Chain, DraftModel, Eagle
from specbench.methods.speculative import Speculative
from specbench.methods.stopping import AdaEDL, Confidence
from tests.fixtures.worlds import until_eos

ROUNDING = 1e-9
LENGTH = 5
SHARP = {"temperature": 1.0, "top_p": 0.9}  # most rows of spread-out tables are one-hot then, which keeps branches few
HEADS = {"eagle": "eagle"}


def drafter(kind: str, base: str):
    return {
        "model": DraftModel(model="a", gamma=1),
        "pld": PromptLookup(gamma=1, ngram=2),
        "eagle": Eagle(head="eagle", base=base, gamma=1),
        "eagle, no catch-up": Eagle(head="eagle", base=base, gamma=1, catch_up=False),
    }[kind]


DRAFTERS = ("model", "pld", "eagle", "eagle, no catch-up")


def over(proposer, target: str) -> Speculative:
    return Speculative(proposer=proposer, scorers=(target,), target=Last())


def three(kind: str, threshold: int) -> Speculative:
    return over(Chain(proposer=drafter(kind, "b"), model="b", threshold=threshold), "c")


def four(kind: str, thresholds: tuple[int, int]) -> Speculative:
    inner = Chain(proposer=drafter(kind, "b"), model="b", threshold=thresholds[0])
    return over(Chain(proposer=inner, model="c", threshold=thresholds[1]), "d")


def world(roles: str, seed: int = 0, spread: float = 1.5, vocabulary: int = 2) -> TableModels:
    return tables(tuple(roles), vocabulary, seed, spread, heads=HEADS)


def plain(models: TableModels, target: str, length: int = LENGTH, **sampling) -> Distribution:
    return joint_distribution(Autoregressive(scorers=(target,), target=Last()), models, length, **sampling)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_chain_of_three_follows_the_target(kind):
    """Threshold 1, where every inner round goes up by itself: all 32 sequences."""
    models = world("abc", seed=1)
    assert distance(joint_distribution(three(kind, 1), models, LENGTH), plain(models, "c")) < ROUNDING


@pytest.mark.parametrize("threshold", [2, 3])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_chain_of_three_that_collects_follows_the_target(kind, threshold):
    """Polybasic, Algorithm 1.

    The twelve sequences of five tokens that sharp models leave, and for a small model all 16 of four."""
    models, sharp = world("abc", seed=1), world("abc", seed=58, spread=3.0)
    if threshold == 2 and kind == "model":
        assert distance(joint_distribution(three(kind, threshold), models, 4), plain(models, "c", 4)) < ROUNDING
    expected = plain(sharp, "c", **SHARP)
    assert len(expected) == 12
    assert distance(joint_distribution(three(kind, threshold), sharp, LENGTH, **SHARP), expected) < ROUNDING


@pytest.mark.parametrize(
    ("kind", "thresholds"),
    [
        *((kind, thresholds) for kind in ("model", "pld") for thresholds in ((1, 2), (2, 3), (3, 1))),
        *((kind, thresholds) for kind in DRAFTERS[2:] for thresholds in ((1, 2), (3, 1))),
    ],
)
def test_a_chain_of_four_follows_the_target(kind, thresholds):
    """A chain is a proposer, so a chain of chains needs no code; a head on the lowest middle, as in the paper."""
    models = world("abcd", seed=47, spread=3.0)
    expected = plain(models, "d", **SHARP)
    assert len(expected) == 8
    assert distance(joint_distribution(four(kind, thresholds), models, LENGTH, **SHARP), expected) < ROUNDING


@pytest.mark.parametrize("stop", [Confidence(threshold=0.5), AdaEDL(lam=0.6)], ids=lambda stop: stop.name)
def test_a_proposer_that_stops_early_does_not_bias_a_chain(stop):
    models = world("abc", seed=58, spread=3.0)
    method = over(Chain(proposer=DraftModel(model="a", gamma=2, stop=stop), model="b", threshold=2), "c")
    assert distance(joint_distribution(method, models, 4, **SHARP), plain(models, "c", 4, **SHARP)) < ROUNDING


class ProposersDistribution(Chain, name="proposers-distribution-mutant"):
    """A mutant: what a middle has verified is handed up with the drafter's distribution."""

    def open(self, models, sampler, stop):
        inner, session = super().open(models, sampler, stop), models["a"]

        def propose(ids, room):
            draft = inner(ids, room)
            if not draft.tokens:
                return draft
            rows = session.score(ids + draft.tokens[:-1], len(ids) - 1)
            return Draft(draft.tokens, sampler.probs(rows), rounds=draft.rounds)

        return propose


class DropsRounds(Chain, name="last-round-mutant"):
    """A mutant.

    The round that ended the collecting is dropped where its last token is a 1 (as Algorithm 1's line 15 may).
    """

    def open(self, models, sampler, stop):
        inner = super().open(models, sampler, stop)

        def propose(ids, room):
            draft = inner(ids, room)
            dropped = len(draft.rounds[-1].tokens) if draft.rounds and draft.tokens[-1] == 1 else 0
            kept = len(draft.tokens) - dropped
            return Draft(draft.tokens[:kept], draft.probs[:kept], rounds=draft.rounds)

        return propose


@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("mutant", [ProposersDistribution, DropsRounds])
def test_a_chain_with_a_wrong_distribution_fails(mutant, threshold):
    """Mutation controls:

    the drafter's distribution in the outer test, and tokens dropped because of their values (docs/papers/drafting.md,
    Exactness of draft-length rules).

    See docs/papers/polybasic.md, Chain of n models.
    """
    method = over(mutant(proposer=DraftModel(model="a", gamma=1), model="b", threshold=threshold), "c")
    models, sharp = world("abc", seed=3), world("abc", seed=58, spread=3.0)
    assert distance(joint_distribution(method, models, 3), plain(models, "c", 3)) > 0.1
    if mutant is ProposersDistribution:
        assert distance(joint_distribution(method, sharp, LENGTH, **SHARP), plain(sharp, "c", **SHARP)) > 0.1


def test_the_drafters_distribution_in_the_middle_of_a_chain_of_four_fails():
    """The same mutant one level down, in the world that the chains of four are held against."""
    inner = ProposersDistribution(proposer=DraftModel(model="a", gamma=1), model="b", threshold=1)
    method, models = over(Chain(proposer=inner, model="c", threshold=2), "d"), world("abcd", seed=47, spread=3.0)
    assert distance(joint_distribution(method, models, LENGTH, **SHARP), plain(models, "d", **SHARP)) > 0.1


@pytest.mark.parametrize("kind", DRAFTERS)
def test_an_eos_inside_a_block_ends_it_and_does_not_bias_the_output(kind):
    """Up to the first EOS the distribution is the target's; no round, inner or outer, has a token after an EOS."""
    eos, models = 1, world("abc", seed=3)
    expected = exact_distribution(lambda s: until_eos(Autoregressive(scorers=("c",), target=Last()), models, eos, s, 4))
    method = three(kind, 3)
    assert distance(exact_distribution(lambda s: until_eos(method, models, eos, s, 4)), expected) < ROUNDING
    shortened = 0
    for seed in range(30):
        sampler = Sampler(generator=torch.Generator().manual_seed(seed))
        round_ = next(method.rounds(models, sampler, StopCriteria(frozenset({eos}), 20)))
        inner = [token for each in round_.inner for token in each.tokens]
        assert eos not in inner[:-1] and eos not in round_.tokens[:-1]
        shortened += len(inner) < 3
    assert shortened > 0
