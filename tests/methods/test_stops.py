"""Stop rules are lossless, whatever they learn and look at.

One that drops what it looked at is not. All by enumeration.
"""

import pytest
import torch

from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import TableModels, distance, generate, joint_distribution, tables
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.stopping import AdaEDL, Confidence, Dsl, SpecDecPlusPlus, Stop, Unsure
from specbench.models.heads import LengthHead
from tests.fixtures.worlds import spread_out, table_world

ROUNDING = 1e-9
SAMPLING = {
    "T=1": {"temperature": 1.0},
    "T=0.7": {"temperature": 0.7},
    "T=0": {"temperature": 0.0},
}
HEADS = {"accepts": "specdec++", "long": "dsl"}
RULES: dict[str, Stop] = {
    "unsure": Unsure(threshold=0.6),
    "confidence": Confidence(threshold=0.4),
    "adaedl": AdaEDL(lam=0.6, step=0.2),  # the threshold moves far in few rounds
    "specdec++": SpecDecPlusPlus(head="accepts", threshold=0.5, min_len=1),
    "dsl": Dsl(head="long", threshold=0.455),
}
NO_EOS = frozenset[int]()


def sampler(seed: int = 0, temperature: float = 1.0) -> Sampler:
    return Sampler(temperature, generator=torch.Generator().manual_seed(seed))


def stopped(stop: Stop | None, gamma: int = 3, kind: type[DraftModel] = DraftModel) -> Speculative:
    return Speculative(proposer=kind(model="a", gamma=gamma, stop=stop), scorers=("b",), target=Last())


def plain(models: TableModels, length: int, **sampling):
    return joint_distribution(Autoregressive(scorers=("b",), target=Last()), models, length, **sampling)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("name", RULES)
def test_a_stop_rule_does_not_bias_the_output(name, sampling):
    """By enumeration, in a world where the rule both stops drafts and lets them go on."""
    models = tables(("a", "b"), 2, seed=4, heads=HEADS)
    models.heads["long"] = spread_out(LengthHead())
    method = stopped(RULES[name])
    assert distance(joint_distribution(method, models, 4, **sampling), plain(models, 4, **sampling)) < ROUNDING
    drafted = {round_.drafted for seed in range(8) for round_ in generate(method, models, sampler(seed), 12)[1][:-2]}
    assert len(drafted) > 1 and min(drafted) < 3


class Drops(DraftModel, name="drops-mutant"):
    """A mutant: the token that a rule looked at, and stopped at, is dropped."""

    def open(self, models, chance, end):
        inner = super().open(models, chance, end)

        def propose(ids, room):
            draft = inner(ids, room)
            kept = len(draft.tokens) - draft.stopped
            return Draft(draft.tokens[:kept], draft.probs[:kept], draft.stopped)

        return propose


@pytest.mark.parametrize("name", ["confidence", "specdec++", "dsl"])
def test_a_rule_that_drops_a_token_it_has_read_fails(name):
    """Mutation control for the rules that are shown a token (docs/papers/drafting.md, Exactness of draft-length rules).

    SpecDec++ and DSL do not look at its value: the one speaks of the tokens before it, the other of the distribution.
    Dropping it biases nothing there, which this knows as well.
    """
    models = tables(("a", "b"), 3, seed=4, heads=HEADS)
    away = distance(joint_distribution(stopped(RULES[name], 2, Drops), models, 3), plain(models, 3))
    assert away > 0.02 if name == "confidence" else away < ROUNDING


class LooksAtValue(Stop, name="value-mutant"):
    """Stops after a token 1: whatever it looks at, it is kept."""

    def after(self, token: int, logits: torch.Tensor, chance: Sampler) -> bool:
        return token == 1


def test_a_rule_may_read_a_token_but_not_drop_it():
    models = table_world(3, seed=4)
    assert distance(joint_distribution(stopped(LooksAtValue()), models, 3), plain(models, 3)) < ROUNDING
    assert distance(joint_distribution(stopped(LooksAtValue(), 3, Drops), models, 3), plain(models, 3)) > 0.1


@pytest.mark.parametrize("stop", [
    Confidence(threshold=1.0, min_len=2), AdaEDL(lam=1.1, min_len=2), Dsl(head="long", threshold=1.1, min_len=2),
    SpecDecPlusPlus(head="accepts", threshold=-1.0, min_len=2),
], ids=lambda stop: stop.name)  # fmt: skip
def test_at_least_min_len_tokens_are_drafted(stop):
    """A rule that always wants to stop gets its way after min_len tokens, not before.

    Limits alone make drafts shorter.
    """
    models = tables(("a", "b"), 3, seed=1, heads=HEADS)
    _, steps = generate(stopped(stop, 5), models, sampler(), 60)
    assert {round_.drafted for round_ in steps[:-2]} == {2}
    assert all(round_.counters == {"fallbacks": 1} for round_ in steps[:-2])
    with pytest.raises(ValueError, match="min_len"):
        type(stop)(**{**vars(stop), "min_len": 0})
