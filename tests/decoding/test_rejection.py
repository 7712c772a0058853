"""Rejection rules as objects: the default is stored as None, and another rule is used wherever drafts are tested."""

from dataclasses import dataclass

import pytest
import torch

from specbench.config.construct import construct, to_table
from specbench.decoding import rejection
from specbench.decoding.method import StopCriteria
from specbench.decoding.rejection import (
    BY_TOKEN,
    BlockRejection,
    Rejection,
    TokenRejection,
    Verified,
    verify,
    verify_at_once,
)
from specbench.decoding.sampling import Draft, exact_distribution
from specbench.decoding.targets import Last, Mixture, Opt
from specbench.features.verify.enumeration import examine, tables
from specbench.methods.lookups import PromptLookup
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.methods.stopping import Confidence
from tests.fixtures.console import specbench


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


OF_MATCH = dict(zip(("speculative", "chain", "ensemble"), methods(Match()), strict=True))


@pytest.mark.parametrize("method", OF_MATCH.values(), ids=OF_MATCH)
def test_another_rule_is_applied_at_every_level_and_recorded(method):
    assert to_table(method)["rejection"] == {"name": "match"}
    assert all(test.rejection == Match() for test in method.verifications())
    assert method.theory() is None, "formulas assume tests token by token"
    assert construct(type(method), {k: v for k, v in to_table(method).items() if k != "name"}, "x") == method


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(each, marks=pytest.mark.slow if name == "ensemble" else (), id=name)
        for name, each in OF_MATCH.items()
    ],
)
def test_methods_stay_exact_under_another_exact_rule(method):
    assert all(comparison.exact for comparison in examine(method))


@dataclass(frozen=True, kw_only=True)
class AcceptAll(Rejection, name="accept-all"):
    """Commits every draft untested, which does not follow pi."""

    def __call__(self, draft, pi, sampler, unread=None):
        read = [] if unread is None else unread.tolist()
        last = [int(sampler.choose(pi[-1]))] if len(pi) > len(draft.tokens) else []
        return Verified([*draft.tokens, *last], len(draft.tokens), read)


@pytest.mark.parametrize("method", methods(AcceptAll()), ids=["speculative", "chain", "ensemble"])
def test_a_rule_that_is_not_exact_is_found_by_enumeration(method):
    """Every level of every method applies its own rule."""
    assert not all(comparison.exact for comparison in examine(method))


def test_a_rule_without_a_closed_form_expects_nothing():
    q, pi = torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8])
    assert float(BY_TOKEN.expected(q, pi)) == pytest.approx(0.7)
    assert Match().expected(q, pi) is None, "the default"


@pytest.mark.parametrize("rows", [2, 3], ids=["no bonus", "bonus"])
def test_verification_with_one_read_has_the_distribution_of_verification(rows):
    pi = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)[:rows]
    draft = Draft([0, 1], torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]], dtype=torch.float64))
    one, two = (
        exact_distribution(lambda sampler, test=test: tuple(test(draft, pi, sampler).tokens))
        for test in (verify, verify_at_once)
    )
    assert one == pytest.approx(two) and len(one) > rows


BLOCK = BlockRejection()
LONGER = DraftModel(model="draft", gamma=3)
STOPPED = DraftModel(model="draft", gamma=3, stop=Confidence(threshold=0.5))
IN_BLOCKS = {
    "draft model": Speculative(proposer=LONGER, scorers=("target",), target=Last(), rejection=BLOCK),
    "stop rule": Speculative(proposer=STOPPED, scorers=("target",), target=Last(), rejection=BLOCK),
    "lookup": Speculative(proposer=PromptLookup(gamma=3), scorers=("target",), target=Last(), rejection=BLOCK),
    "cascade": Speculative(proposer=LONGER, scorers=("draft", "target"), target=Opt(alpha=0.3), rejection=BLOCK),
    "no bonus": Speculative(
        proposer=LONGER, scorers=("draft", "target"), target=Mixture(), bonus="none", rejection=BLOCK
    ),
    "chain": methods(BLOCK)[1],
    "ensemble": methods(BLOCK)[2],
}


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_block_rejection_is_exact(name):
    """Sun et al. 2024, Theorem 1, also for targets over several models, stop rules, and drafts without a bonus token."""
    tokens = 3 if name == "draft model" else 2
    assert all(comparison.exact for comparison in examine(IN_BLOCKS[name], vocabulary=tokens))


def accepted(rule, seed):
    """The expected number of accepted tokens of a first draft of three."""
    method = Speculative(proposer=LONGER, scorers=("target",), target=Last(), rejection=rule)
    world = tables(("draft", "target"), 3, seed)
    stop = StopCriteria(frozenset(), len(world.ids) + 4)
    counts = exact_distribution(lambda sampler: next(method.rounds(world, sampler, stop)).accepted)
    return sum(count * mass for count, mass in counts.items())


@pytest.mark.parametrize("seed", range(2))
def test_block_rejection_accepts_more_than_token_by_token(seed):
    assert accepted(BLOCK, seed) > accepted(None, seed) + 0.01


@pytest.mark.parametrize("mutant", ["product without a limit", "residual of the last prefix", "limit only at the end"])
def test_mutants_of_block_rejection_are_not_exact(mutant, monkeypatch):
    right = rejection.prefix_weights

    def wrong(x, pi, q):
        ratios = (pi.gather(-1, x) / q.gather(-1, x)).squeeze(-1)
        products = torch.cat([ratios.new_ones(1), ratios.cumprod(0)])
        if mutant == "product without a limit":
            return products.clamp(max=1.0)
        if mutant == "limit only at the end":
            return torch.cat([right(x, pi, q)[:-1], products[-1:].clamp(max=1.0)])
        return right(x, pi, q).roll(1, 0)

    monkeypatch.setattr(rejection, "prefix_weights", wrong)
    assert not all(comparison.exact for comparison in examine(IN_BLOCKS["draft model"]))


def test_a_rule_is_set_swept_and_corrected_by_name(tmp_path):
    few = ("-m", "sd", "-p", "tiny", "-t", "gsm8k", "--data", "synthetic", "-n", "1", "--repeats", "1")
    few = (*few, "--max-new-tokens", "8", "--temperature", "1")
    shown = specbench("run", *few, "--over", 'method.rejection.name=["token", "block"]', cwd=tmp_path).stdout
    assert "sd(rejection=token)" in shown and "sd(rejection=block)" in shown
    shown = specbench("run", *few, "--set", "method.rejection.name=blok", cwd=tmp_path, code=2).stderr
    assert "did you mean 'block'" in shown


RULE = '''
from dataclasses import dataclass

from specbench.decoding.rejection import Rejection
from specbench.decoding.rejection import Verified


@dataclass(frozen=True, kw_only=True)
class Wrong(Rejection, name="wrong"):
    """A rule of a plugin."""

    def __call__(self, draft, pi, sampler, unread=None):
        RETURN
'''


@pytest.mark.parametrize(("returned", "message"), [
    ("return Verified([], 0, [])", "must be the 0 accepted tokens and 1 after them"),
    ("return [], 0", "is not a Verified"),
    ("return Verified(draft.tokens, len(draft.tokens) + 1, [])", "must be an int from 0 to "),
])  # fmt: skip
def test_what_a_rule_must_not_return_fails_the_generation_and_names_the_rule(returned, message, tmp_path):
    (tmp_path / "wrong.py").write_text(RULE.replace("RETURN", returned))
    few = ("-m", "sd", "-p", "tiny", "-t", "gsm8k", "--data", "synthetic", "-n", "1", "--max-new-tokens", "8")
    chosen = ("--plugin", "wrong.py", "--set", "method.rejection.name=wrong")
    specbench("run", *few, "--repeats", "1", *chosen, cwd=tmp_path, code=3)
    (path,) = tmp_path.glob("results/*/samples.jsonl")
    assert "the rejection rule 'wrong': " in path.read_text() and message in path.read_text()


@pytest.mark.parametrize(
    "key", ["method.foo.bar", "method.rejection.nam", "method.proposer.gama", "pair.foo", "task.foo"]
)
def test_no_command_ignores_an_override(key, tmp_path):
    """A rule that is not applied must not be called exact."""
    commands = (
        ("enumerate",),
        ("verify", "-p", "tiny", "-t", "gsm8k", "--data", "synthetic"),
        ("trace", "-p", "tiny", "one"),
    )
    for command in commands:
        done = specbench(command[0], "-m", "sd", *command[1:], "--set", f"{key}=3", cwd=tmp_path, code=2)
        assert f"--set {key}" in " ".join(done.stderr.split())
