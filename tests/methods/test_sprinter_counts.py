"""What SPRINTER's rounds count, what its models read, and that a step cut short still accounts for its tokens."""

from dataclasses import replace

import pytest
import torch

from specbench.decoding.loop import GenerationLimits
from specbench.decoding.method import StopCriteria
from specbench.decoding.round import Round
from specbench.decoding.sampling import Sampler
from specbench.features.verify.enumeration import generate, tables
from specbench.methods.sprinter import Sprinter
from specbench.models.heads import Verifier
from tests.fixtures.worlds import decode, open_models, random_model


class Coin(Verifier):
    """Accepts at a rate that depends on nothing, by a generator of its own."""

    kind = "coin-stub"

    def __init__(self, rate: float) -> None:
        super().__init__(8)
        self.rate, self.generator, self.calls = rate, torch.Generator().manual_seed(1), 0

    def accepts(self, state, x, q):
        assert state.ndim == 2 and len(state) == len(x) == len(q) == 1
        self.calls += 1
        return (torch.rand(1, generator=self.generator) < self.rate).double()


def sprinter(**settings) -> Sprinter:
    return Sprinter(draft="draft", target="target", head="gate", **settings)


def world(rate: float, vocabulary: int = 4):
    models = tables(("draft", "target"), vocabulary, seed=3)
    models.heads = {"gate": Coin(rate)}
    return models


def sampler(seed: int = 0) -> Sampler:
    return Sampler(generator=torch.Generator().manual_seed(seed))


def kinds(round_: Round) -> str:
    """One letter a token: u(ntested), a(ccepted), r(eplaced), b(onus)."""
    return "u" * round_.untested + "a" * round_.accepted + "r" * (round_.tested - round_.accepted) + "b" * bonus(round_)


def bonus(round_: Round) -> int:
    return len(round_.tokens) - round_.untested - round_.tested


@pytest.mark.parametrize(
    "settings", [{}, {"bonus": False}, {"max_run": 2}, {"max_run": 2, "test_on_cap": False}], ids=str
)
def test_a_rounds_tokens_are_untested_accepted_replaced_and_bonus(settings):
    """committed = untested + accepted + replaced + bonus, a draft forward and a verdict a drafted token, a target's a
    run.
    """
    models, length = world(0.7), 300
    tokens, steps = generate(sprinter(**settings), models, sampler(), length)
    assert len(tokens) == length
    for round_ in steps:
        assert 0 <= round_.tested - round_.accepted <= 1
        assert 0 <= bonus(round_) <= (round_.accepted if settings.get("bonus", True) else 0)
        assert round_.drafted == round_.untested + round_.tested == round_.counters["verifier_calls"]
        assert round_.proposers == ("draft",) * round_.tested and round_.tested <= 1
        assert round_.counters["verifier_accepts"] in (round_.drafted, round_.drafted - 1)
        assert round_.drafted <= settings.get("max_run", 20)
    drafted, tested = (sum(getattr(round_, what) for round_ in steps) for what in ("drafted", "tested"))
    assert models["draft"].usage.forwards == models.heads["gate"].calls == drafted
    assert models["target"].usage.forwards == tested < drafted
    assert "".join(map(kinds, steps)).count("u") > 0
    seen = set("".join(map(kinds, steps)))
    assert seen == set("uarb" if settings.get("bonus", True) else "uar")


def test_the_last_token_at_the_cap_is_tested_only_with_test_on_cap():
    """A gate that always accepts: whole runs of max_run, the last tested; without `test_on_cap`, none, and no target."""
    models = world(1.0)
    _, steps = generate(sprinter(max_run=3), models, sampler(), 60)
    assert {(round_.drafted, round_.untested, round_.tested) for round_ in steps[:-1]} == {(3, 2, 1)}
    models = world(1.0)
    _, steps = generate(sprinter(max_run=3, test_on_cap=False), models, sampler(), 60)
    assert {(round_.drafted, round_.untested, round_.tested) for round_ in steps} == {(3, 3, 0)}
    assert models["target"].usage.forwards == 0


@pytest.mark.parametrize(("rate", "kind"), [(0.0, "ar"), (1.0, "u")])
def test_a_single_token_is_drafted_and_tested_like_any_other(rate, kind):
    """max_new_tokens = 1: one committed token, no bonus, whether the gate took it or the target had to say."""
    seen = set()
    for seed in range(20):
        tokens, steps = generate(sprinter(), world(rate), sampler(seed), 1)
        assert (len(tokens), len(steps)) == (1, 1)
        seen.add(kinds(steps[0]))
    assert seen == set(kind)


def test_an_eos_in_a_run_ends_it_with_its_round():
    """After an EOS that is untested, accepted or a replacement, nothing is committed, drafted or counted as a bonus."""
    ends = set()
    for seed in range(40):
        out = decode(sprinter(), world(0.5), sampler(seed), GenerationLimits(frozenset({2}), 12))
        assert 2 not in out.tokens[:-1]
        for round_ in sprinter().rounds(world(0.5), sampler(seed), StopCriteria(frozenset({2}), 12)):
            assert 2 not in round_.tokens[:-1]
            if 2 in round_.tokens:
                break
        assert sum(len(round_.tokens) for round_ in out.rounds) == len(out.tokens)
        for round_ in out.rounds:
            assert len(kinds(round_)) == len(round_.tokens)
        if out.finish == "eos":
            ends.add(kinds(out.rounds[-1])[-1])
    assert ends == set("uarb")


def cuts(steps: list[Round], cut=Round.cut) -> None:
    """Whatever is kept of a step, its counts are those of the tokens that are kept."""
    for round_ in steps:
        letters = kinds(round_)
        for kept in range(1, len(round_.tokens) + 1):
            short = cut(round_, kept)
            assert short.tokens == round_.tokens[:kept]
            assert kinds(short) == letters[:kept]
            assert len(short.proposers) == short.tested


def test_a_truncated_round_counts_only_its_remaining_tokens():
    """Control: a cut that forgets that untested tokens come first breaks the identity."""
    _, steps = generate(sprinter(max_run=4), world(0.7), sampler(), 200)
    cuts(
        [
            *steps,
            Round([1, 2, 3, 4], tested=3, accepted=3, proposers=("a",) * 3),
            Round([1, 2], tested=2, accepted=1, proposers=("a",) * 2),
        ]
    )

    def forgets(round_: Round, kept: int) -> Round:
        tested = min(round_.tested, kept)
        return replace(
            round_.cut(kept), tested=tested, accepted=min(round_.accepted, kept), proposers=round_.proposers[:tested]
        )

    with pytest.raises(AssertionError):
        cuts(steps, forgets)


@pytest.mark.parametrize("settings", [{}, {"bonus": False}], ids=str)
def test_real_caches_run_the_minimum_of_forwards(settings):
    """docs/papers/sprinter.md, Speedup with measured costs:

    The target lacks one token: its bonus or replacement; without a bonus its own last row is the one before the tested
    token.

    the draft model reads one token per forward, two after a bonus; the target a whole run and what it lacks before it.
    """
    models = open_models({"draft": random_model("llama", 1), "target": random_model("llama", 1)}, [5, 3, 8], "lean")
    models.heads = {"gate": Coin(0.6)}
    _, steps = generate(sprinter(**settings), models, sampler(), 40)
    draft, target = models["draft"].usage, models["target"].usage
    bonuses = sum(bonus(round_) for round_ in steps[:-1])
    assert draft.forwards + 1 == sum(round_.drafted for round_ in steps)
    assert draft.by_fed.get(2, [0])[0] == bonuses and set(draft.by_fed) <= {1, 2}
    tested = [round_ for round_ in steps if round_.tested]
    assert target.forwards + 1 == len(tested) > 5
    expected = sorted(round_.drafted + settings.get("bonus", True) for round_ in tested[1:-1])
    found = sorted(fed for fed, (times, _) in target.by_fed.items() for _ in range(times))
    for fed in expected:
        found.remove(fed)
    assert len(found) <= 1, "but for the last run, which ends with the room"
