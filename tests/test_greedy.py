"""At T = 0 in float32 every lossless method gives exactly the tokens of its baseline, in all six model families."""

import pytest
from worlds import FAMILIES, open_models, random_model

from specbench.laws import generate
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.methods.token_cascade import TokenCascade
from specbench.proposers import DraftModel
from specbench.sampling import Sampler
from specbench.targets import Chow, Contrastive, Diff, Last, Mixture, Opt

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
    greedy = Sampler(temperature=0.0)
    plain, _ = generate(Autoregressive(scorers=scorers, target=target), open_models(models, PROMPT), greedy, LENGTH)
    tokens, steps = generate(method, open_models(models, PROMPT), greedy, LENGTH)
    assert tokens == plain
    assert sum(step.tested for step in steps) > 0 or name == "token-cascade"


def test_the_disturbed_pair_is_neither_always_nor_never_right():
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
