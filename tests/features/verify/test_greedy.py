"""At T = 0 in float32 every lossless method gives exactly the tokens of its baseline, in all six model families."""

import pytest

from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Chow, Contrastive, Diff, Last, Mixture, Opt
from specbench.features.verify.enumeration import generate
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.lookups import PromptLookup
from specbench.methods.proposers import Chain, DraftModel, Eagle
from specbench.methods.sequential_cascades import TokenCascade
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.methods.stopping import AdaEDL, Confidence, Dsl, SpecDecPlusPlus
from specbench.methods.tree_drafts import Eagle2, EagleTree, ModelTree
from specbench.models.heads import AcceptanceHead, Eagle1Head, LengthHead
from tests.fixtures.worlds import FAMILIES, open_models, random_model, spread_out

PROMPT = [5, 17, 2, 31]
LENGTH = 23
BOTH = ("a", "b")
METHODS = {
    "sd": (Speculative(proposer=DraftModel(model="a", gamma=4), scorers=("b",), target=Last()), ("b",), Last()),
    "we-sd": (
        Speculative(proposer=DraftModel(model="a", gamma=3), scorers=BOTH, target=Mixture(), bonus="none"),
        BOTH,
        Mixture(),
    ),
    "we-se": (SpeculativeEnsemble(models=BOTH, gamma=(5, 1), target=Mixture()), BOTH, Mixture()),
    "cd-se": (SpeculativeEnsemble(models=BOTH, gamma=(1, 1), target=Contrastive()), BOTH, Contrastive()),
    "cascade-diff": (
        Speculative(proposer=DraftModel(model="a", gamma=3), scorers=BOTH, target=Diff(alpha=0.05)),
        BOTH,
        Diff(alpha=0.05),
    ),
    "cascade-opt, exact": (
        Speculative(proposer=DraftModel(model="a", gamma=2), scorers=BOTH, target=Opt(alpha=0.1), bonus="exact"),
        BOTH,
        Opt(alpha=0.1),
    ),
    "we-sd-tree": (
        Speculative(proposer=ModelTree(model="a", widths=(2, 2)), scorers=BOTH, target=Mixture(), bonus="none"),
        BOTH,
        Mixture(),
    ),
    "token-cascade": (TokenCascade(small="a", large="b", target=Chow(alpha=0.5)), BOTH, Chow(alpha=0.5)),
    "we-se, n = 3": (
        SpeculativeEnsemble(models=("a", "b", "c"), gamma=(3, 2, 1), target=Mixture()),
        ("a", "b", "c"),
        Mixture(),
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def models(request):
    """Three models: the second is a copy of the first, slightly disturbed, so that drafts are sometimes right."""
    import torch

    first, second, third = (random_model(request.param, seed) for seed in (1, 1, 2))
    with torch.no_grad():
        for weight in second.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    return {"a": first, "b": second, "c": third}


@pytest.mark.parametrize("name", METHODS)
def test_greedy_equals_the_baseline(models, name):
    method, scorers, target = METHODS[name]
    greedy, engine = Sampler(temperature=0.0), "lean" if "tree" in name else "eager"
    plain, _ = generate(
        Autoregressive(scorers=scorers, target=target), open_models(models, PROMPT, engine), greedy, LENGTH
    )
    tokens, steps = generate(method, open_models(models, PROMPT, engine), greedy, LENGTH)
    assert tokens == plain
    assert sum(round_.tested for round_ in steps) > 0 or name == "token-cascade"


def test_the_perturbed_pair_accepts_some_drafts_and_rejects_others():
    """Otherwise the tests above would not see both branches."""
    import torch

    model, other = random_model("llama", 1), random_model("llama", 1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    method = METHODS["sd"][0]
    _, steps = generate(method, open_models({"a": model, "b": other}, PROMPT), Sampler(temperature=0.0), 50)
    accepted, tested = sum(s.accepted for s in steps), sum(s.tested for s in steps)
    assert 0.2 < accepted / tested < 1.0


def chain(proposer, *thresholds):
    """Verified by b, and where there are two thresholds by c."""
    for role, threshold in zip("bc", thresholds, strict=False):
        proposer = Chain(proposer=proposer, model=role, threshold=threshold)
    return proposer


SMALL = DraftModel(model="a", gamma=3)
PROPOSERS = {
    "adaedl": DraftModel(model="a", gamma=5, stop=AdaEDL(lam=0.5)),
    "specdec++": DraftModel(model="a", gamma=5, stop=SpecDecPlusPlus(head="accepts")),
    "dsl": DraftModel(model="a", gamma=5, stop=Dsl(head="long", threshold=0.38)),
    "confidence": DraftModel(model="a", gamma=5, stop=Confidence()),
    "pld": PromptLookup(gamma=4),
    "eagle": Eagle(head="eagle", base="d", gamma=3),
    "chain": chain(SMALL, 4),
    "chain of pld": chain(PromptLookup(gamma=3), 3),
    "chain of eagle": chain(Eagle(head="eagle", base="b", gamma=3), 4),
    "chain of eagle, no catch-up": chain(Eagle(head="eagle", base="b", gamma=3, catch_up=False), 4),
    "chain of four": chain(SMALL, 3, 5),
    "tree": ModelTree(model="a", widths=(2, 2, 1)),
    "eagle-tree": EagleTree(head="eagle", base="d"),
    "eagle2": Eagle2(head="eagle", base="d", width=3, depth=3, size=8),
    "chain of a tree": chain(EagleTree(head="eagle", base="b"), 4),
}


@pytest.fixture(scope="module", params=["llama", "qwen2", "gpt2", "t5"])
def world(request):
    """Four models, each a little less like the first than the one before it.

    Random heads; what the last one says alone.
    """
    import torch

    models = {role: random_model(request.param, 1) for role in "abcd"}
    with torch.no_grad():
        for i, model in enumerate(models.values()):
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * i * (0.003 if request.param == "t5" else 0.01))
    heads = {"accepts": spread_out(AcceptanceHead(32)), "long": spread_out(LengthHead())}
    eagle = Eagle1Head.of(models["b"].config)

    def opened(name, engine):
        out = open_models(models, PROMPT, engine)
        base = models["b" if "chain" in name else "d"]
        out.heads, out.vocabulary = (
            heads | {"eagle": eagle.goes_with(base.get_input_embeddings().weight, base.config)},
            40,
        )
        return out

    alone = Autoregressive(scorers=("d",), target=Last())
    return opened, generate(alone, opened("", "eager"), Sampler(temperature=0.0), 16)[0]


EAGERLY = ("specdec++", "eagle", "chain of eagle, no catch-up")  # those that read states


@pytest.mark.parametrize(("name", "engine"), [*((n, "lean") for n in PROPOSERS), *((n, "eager") for n in EAGERLY)])
def test_greedy_equals_the_target_for_every_proposer_and_draft_length(world, name, engine):
    """Stop rules, prompt lookup, EAGLE heads and chains, by transformers and by us, against transformers' own tokens."""
    opened, plain = world
    method = Speculative(proposer=PROPOSERS[name], scorers=("d",), target=Last())
    tokens, steps = generate(method, opened(name, engine), Sampler(temperature=0.0), 16)
    assert tokens == plain
    assert sum(round_.tested for round_ in steps) > 0
    assert bool(steps[0].inner) == ("chain" in name)


@pytest.mark.parametrize(
    ("tree", "chain_of_it"),
    [
        (ModelTree(model="a", widths=(1, 1, 1)), DraftModel(model="a", gamma=3)),
        (EagleTree(head="eagle", base="d", paths=((0,), (0, 0), (0, 0, 0))), Eagle(head="eagle", base="d", gamma=3)),
    ],
    ids=["model", "head"],
)
def test_a_tree_with_one_token_per_depth_has_the_rounds_of_a_chain(world, tree, chain_of_it):
    """Rounds without an accepted token included: states that are kept after one would change what the head drafts next."""
    opened, _ = world
    rounds = [
        generate(
            Speculative(proposer=each, scorers=("d",), target=Last()), opened("", "lean"), Sampler(temperature=0.0), 16
        )[1]
        for each in (tree, chain_of_it)
    ]
    assert [entry.accepted for entry in rounds[0]] == [entry.accepted for entry in rounds[1]]
    assert sum(entry.tested for entry in rounds[0]) > 0
