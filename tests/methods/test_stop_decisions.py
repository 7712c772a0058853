"""Each stop rule decides by what its paper says, against hand numbers and the head itself.

And learns from the ids alone.
"""

import math

import pytest
import torch

from specbench.decoding.drafting import Rule, roll
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last
from specbench.decoding.targets.deferral import confidence
from specbench.features.verify.enumeration import TableModels, TableSession, generate
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.stopping import AdaEDL, Confidence, Dsl, SpecDecPlusPlus, Stop, Unsure
from specbench.models.heads import AcceptanceHead, LengthHead
from tests.fixtures.worlds import spread_out, table_world

NO_EOS = frozenset[int]()


def sampler(seed: int = 0, temperature: float = 1.0) -> Sampler:
    return Sampler(temperature, generator=torch.Generator().manual_seed(seed))


class Says(TableSession):
    """A model that says the same whatever it reads."""

    def __init__(self, *law_: float) -> None:
        super().__init__(len(law_), 0)
        self.logits = torch.tensor([law_], dtype=torch.float64).log()

    def _row(self, prefix):
        return self.logits[0]


def opened(stop: Stop, session: TableSession, chance: Sampler | None = None, head=None) -> Rule:
    return stop.open(TableModels({"a": session}, heads={"h": head}), session, chance or sampler())


def test_adaedl_stops_by_the_entropy_of_q():
    """1 - sqrt(.2 H) < lam.

    Of a uniform distribution over four tokens, H = ln 4, .4735; at T = 0 H is that of the distribution at T = 1.
    """
    bound = 1 - math.sqrt(0.2 * math.log(4))
    assert bound == pytest.approx(0.4735, abs=1e-4)
    session = Says(0.25, 0.25, 0.25, 0.25)
    for lam, expected in ((bound - 1e-6, False), (bound + 1e-6, True)):
        for temperature in (0.0, 0.7, 1.0):
            assert opened(AdaEDL(lam=lam), session, sampler(0, temperature)).before([0], session.logits) is expected
    skewed = Says(0.7, 0.1, 0.1, 0.1)
    entropies = {t: float(-(p := (skewed.logits / t).softmax(-1)).mul(p.log()).sum()) for t in (0.7, 1.0)}
    for temperature, h in {**entropies, 0.0: entropies[1.0]}.items():
        rules = [opened(AdaEDL(lam=1 - math.sqrt(0.2 * h) + e), skewed, sampler(0, temperature)) for e in (-1e-6, 1e-6)]
        assert [rule.before([0], skewed.logits) for rule in rules] == [False, True], temperature


def test_training_free_rules_use_unscaled_probabilities():
    """Unsure at the likeliest token, before anything is drawn; confidence at the drawn one, after it; whatever T is."""
    session = Says(0.5, 0.3, 0.2)
    for temperature in (0.0, 0.5, 1.0):
        chance = sampler(0, temperature)
        for threshold, expected in ((0.49, False), (0.51, True)):
            assert opened(Unsure(threshold=threshold), session, chance).before([0], session.logits) is expected
        rule = opened(Confidence(threshold=0.25), session, chance)
        assert [rule.after([0], token, session.logits) for token in range(3)] == [False, False, True]


def test_adaedl_threshold_update():  # and begin its docstring with "docs/papers/drafting.md, AdaEDL: "
    """b1 = .5, b2 = .9, eps = .01, wanted .9, which A starts from; lam from .7, twice up, then down.

    a = 1/3: A = .61667, lam = .9 x .7 + .1 x .71 = .701; a = 1: A = .80833, lam = .9 x .701 + .1 x .711 = .702; a = 1
    again: A = .904167, lam = .9 x .702 + .1 x .692 = .701. What was accepted is read off the next ids.
    """
    session = Says(0.9, 0.1)
    rule = opened(AdaEDL(), session)
    draft = roll(session, [0], 3, sampler(), NO_EOS, rule)
    assert rule.lam == 0.7 and len(draft.tokens) == 3
    ids = [0, *draft.tokens[:1], 1 - draft.tokens[1]]  # one of three accepted, the second replaced
    expected = [(0.616667, 0.701), (0.808333, 0.702), (0.904167, 0.701)]
    for average, lam in expected:
        draft = roll(session, ids, 3, sampler(), NO_EOS, rule)
        assert (rule.accepted, rule.lam) == pytest.approx((average, lam), abs=1e-6)
        ids = [*ids, *draft.tokens, 0]  # all accepted, and a bonus


class Spy(Stop, name="spy-stub"):
    """A rule that never stops and remembers what it was taught."""

    taught: list[tuple[int, int]]

    def open(self, models, drafter, chance):
        type(self).taught, taught = [], []
        type(self).taught = taught

        class _Spy(Rule):
            def learn(self, drafted: int, accepted: int) -> None:
                taught.append((drafted, accepted))

        return _Spy()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_accepted_tokens_are_recovered_from_the_ids(temperature):
    """There is no feedback channel: every draft but the last, as its round recorded it."""
    models = table_world(3, seed=6)
    method = Speculative(proposer=DraftModel(model="a", gamma=4, stop=Spy()), scorers=("b",), target=Last())
    _, steps = generate(method, models, sampler(2, temperature), 80)
    outcomes = [(round_.drafted, round_.accepted) for round_ in steps if round_.drafted]
    assert Spy.taught == outcomes[: len(Spy.taught)] and len(outcomes) - len(Spy.taught) <= 1
    assert len(set(outcomes)) > (1 if temperature == 0.0 else 4)


def test_tokens_discarded_by_an_outer_level_do_not_update_the_threshold():
    """A draft of which nothing is left was not rejected by the model that it was drafted for."""
    models = table_world(3, seed=6)
    proposer = Chain(proposer=DraftModel(model="a", gamma=2, stop=Spy()), model="b", threshold=4)
    _, steps = generate(Speculative(proposer=proposer, scorers=("c",), target=Last()), models, sampler(2), 80)
    drafts = sum(bool(each.drafted) for round_ in steps for each in round_.inner)
    assert 0 < len(Spy.taught) < drafts


def specdec_length(head, states, threshold: float, min_len: int, k: int) -> int:
    """Drafted tokens: the first k >= min_len after which 1 - product of phat_1 .. phat_{k - 1} exceeds the threshold.

    states[i] is that of token i.
    """
    product = 1.0
    for drafted in range(1, k):
        if drafted > 1:
            product *= float(head.accepts(states[drafted - 2])[0])
        if drafted >= min_len and 1 - product > threshold:
            return drafted
    return k


@pytest.mark.parametrize(("min_len", "threshold"), [(1, 0.6), (2, 0.8), (4, 0.97)])
def test_specdec_multiplies_over_the_read_tokens(min_len, threshold):
    """phat_i is read off the state after x_i, which is there one draw later. Control: off the one before, it differs."""
    session, k, differs, lengths = TableSession(3, 2), 8, 0, set()
    head = spread_out(AcceptanceHead(8, blocks=2))
    for seed in range(25):
        rule = opened(SpecDecPlusPlus(head="h", threshold=threshold, min_len=min_len), session, head=head)
        for ids in ([0, 1], [0, 1, 2, 2]):  # the second draft's product starts again
            tokens = roll(session, ids, k, sampler(seed), NO_EOS, rule).tokens
            read = ids + roll(session, ids, k, sampler(seed), NO_EOS).tokens
            states = [session.hidden(read[: len(ids) + i], len(ids) + i - 1) for i in range(k + 1)]
            after, before = states[1:], states[:-1]
            assert len(tokens) == specdec_length(head, after, threshold, min_len, k)
            differs += len(tokens) != specdec_length(head, before, threshold, min_len, k)
            lengths.add(len(tokens))
    assert differs > 0 and len(lengths) > 1


def test_dsl_features_match_a_worked_example():
    """The ten largest probabilities, 0 where there are fewer; the entropy in nats; the place, from 0, in twentieths."""
    head = LengthHead()
    q = torch.tensor([[0.1, 0.2, 0.4, 0.3], [0.5, 0.5, 0.0, 0.0]])
    found = head.inputs(q, torch.tensor([0, 5]))
    entropy = -(0.1 * math.log(0.1) + 0.2 * math.log(0.2) + 0.4 * math.log(0.4) + 0.3 * math.log(0.3))
    assert found[0].tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1] + [0.0] * 6 + [entropy, 0.0])
    assert found[1].tolist() == pytest.approx([0.5, 0.5] + [0.0] * 8 + [math.log(2), 0.25])
    many = torch.arange(1.0, 13.0)[None] / 78
    assert head.inputs(many, torch.tensor([1]))[0, :10].tolist() == pytest.approx([i / 78 for i in range(12, 2, -1)])


def test_dsl_uses_the_unscaled_distribution_and_the_position_in_the_draft():
    """Against the head itself. Control: places counted from 1 stop elsewhere."""
    session, head, k = TableSession(4, 1), spread_out(LengthHead()), 6
    lengths, differs = set(), 0
    for seed in range(25):
        ids, chance = [0, seed % 4], 0.7
        rule = opened(Dsl(head="h", threshold=0.38), session, sampler(seed, chance), head)
        tokens = roll(session, ids, k, sampler(seed, chance), NO_EOS, rule).tokens
        whole = ids + roll(session, ids, k, sampler(seed, chance), NO_EOS).tokens

        def length(first: int, whole=whole) -> int:
            for i in range(k):
                q = confidence(session.score(whole[: 2 + i], 1 + i))
                if head.accepts(q, torch.tensor([i + first]))[0] < 0.38:
                    return i + 1
            return k

        assert len(tokens) == length(0)
        lengths.add(len(tokens))
        differs += length(0) != length(1)
    assert len(lengths) > 1 and differs > 0
