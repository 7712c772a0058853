"""Rejection rules as objects: the default is stored as None, and another rule is used wherever drafts are tested."""

from dataclasses import dataclass

import pytest
import torch

from specbench.config.construct import construct, to_table
from specbench.decoding.rejection import BY_TOKEN, Rejection, TokenRejection
from specbench.decoding.targets import Last, Mixture
from specbench.decoding.verify import Verified
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.verification.enumeration import examine


@dataclass(frozen=True, kw_only=True)
class Match(Rejection, name="match"):
    """Accepts a token that equals one drawn from pi, which replaces it otherwise."""

    def __call__(self, draft, pi, sampler, unread=None):
        tokens, accepted = [], 0
        for i in range(len(pi)):
            tokens.append(int(sampler.choose(pi[i])))
            if i == len(draft.tokens) or tokens[i] != draft.tokens[i]:
                break
            accepted += 1
        return Verified(tokens, accepted, [] if unread is None else unread.tolist())


DRAFT = DraftModel(model="draft", gamma=2)


def methods(rejection):
    chain = Chain(proposer=DRAFT, model="middle", threshold=2, rejection=rejection)
    return [
        Speculative(proposer=DRAFT, scorers=("target",), target=Last(), rejection=rejection),
        Speculative(proposer=chain, scorers=("target",), target=Last(), rejection=rejection),
        SpeculativeEnsemble(models=("draft", "target"), gamma=(1, 1), target=Mixture(), rejection=rejection),
    ]


@pytest.mark.parametrize("method", methods(TokenRejection()), ids=["speculative", "chain", "ensemble"])
def test_the_default_rule_named_is_the_default_rule(method):
    assert method.rejection is None and "rejection" not in str(to_table(method))
    assert all(test.rejection is BY_TOKEN for test in method.verifications())


@pytest.mark.parametrize("method", methods(Match()), ids=["speculative", "chain", "ensemble"])
def test_another_rule_is_applied_at_every_level_and_recorded(method):
    assert to_table(method)["rejection"] == {"name": "match"}
    assert all(test.rejection == Match() for test in method.verifications())
    assert method.theory() is None, "formulas assume tests token by token"
    assert construct(type(method), {k: v for k, v in to_table(method).items() if k != "name"}, "x") == method


@pytest.mark.parametrize("method", methods(Match()), ids=["speculative", "chain", "ensemble"])
def test_methods_stay_exact_under_another_exact_rule(method):
    assert all(comparison.exact for comparison in examine(method))


@dataclass(frozen=True, kw_only=True)
class AcceptAll(Rejection, name="accept-all"):
    """Commits every draft untested, which does not follow pi."""

    def __call__(self, draft, pi, sampler, unread=None):
        read = [] if unread is None else unread.tolist()
        return Verified(list(draft.tokens) or [int(sampler.choose(pi[0]))], len(draft.tokens), read)


@pytest.mark.parametrize("method", methods(AcceptAll()), ids=["speculative", "chain", "ensemble"])
def test_a_rule_that_is_not_exact_is_found_by_enumeration(method):
    """Every level of every method applies its own rule."""
    assert not all(comparison.exact for comparison in examine(method))


def test_a_rule_without_a_closed_form_expects_nothing():
    q, pi = torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8])
    assert float(BY_TOKEN.expected(q, pi)) == pytest.approx(0.7)
    assert Match().expected(q, pi) is None, "the default"
