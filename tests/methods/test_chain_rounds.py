"""Chains with the real sampler at full size, what their rounds hold, what their models read.

And prompt lookup's index.
"""

import copy
import math
import random
from itertools import pairwise

import pytest
import torch

from specbench.decoding.drafting import common_prefix
from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import TableModels, TableSession, generate, tables
from specbench.methods.lookups import NGramIndex, PromptLookup
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from tests.fixtures.worlds import open_models, random_model
from tests.methods.test_chains import ProposersDistribution

TRANSITIONS, SLACK, SEED = 800, 0.1, 116


class Markov(TableSession):
    """A model that looks at the last token alone, so that long sequences are many draws of few distributions.

    `common` is what it shares with others.
    """

    def __init__(self, vocabulary: int, seed: int, common: TableSession | None) -> None:
        super().__init__(vocabulary, seed)
        self._common = common

    def score(self, ids, start):
        rows = torch.cat([TableSession.score(self, [token], 0) for token in ids[start:]])
        self.last_scored = ids
        return rows if self._common is None else rows / 2 + self._common.score(ids, start)


def chain(k: int, *thresholds: int, kind: type[Chain] = Chain) -> Speculative:
    """Roles a, b, c, ...: a drafts k, and every middle collects."""
    proposer = DraftModel(model="a", gamma=k)
    for role, threshold in zip("bcd", thresholds, strict=False):
        proposer = kind(proposer=proposer, model=role, threshold=threshold)
    return Speculative(proposer=proposer, scorers=("abcde"[len(thresholds) + 1],), target=Last())


def sampler(seed: int = 0) -> Sampler:
    return Sampler(generator=torch.Generator().manual_seed(seed))


def apart(method: Speculative, vocabulary: int, alike: bool = False) -> tuple[float, float]:
    """How far transitions are from the target's distribution, on average over the tokens that they start from, and the
    floor of that.

    Of each token a number of moves fixed beforehand, the first ones, are looked at, 800 in all: independent draws of
    its distribution, however the chain cut its blocks.
    """
    common = Markov(vocabulary, SEED + 9, None) if alike else None
    models = TableModels(
        {role: Markov(vocabulary, SEED + i, common) for i, role in enumerate("abc")}, vocabulary=vocabulary
    )
    p = models[method.scorers[0]].score(list(range(vocabulary)), 0).softmax(-1)
    looked_at = (torch.linalg.matrix_power(p, 100)[0] * TRANSITIONS).int().tolist()
    moves: list[list[int]] = [[] for _ in looked_at]
    chance = sampler(3)
    while any(len(seen) < m for seen, m in zip(moves, looked_at, strict=True)):
        ids = [0]
        for round_ in method.rounds(models, chance, StopCriteria(frozenset(), 1000)):
            ids += round_.tokens
            if len(ids) > 200:  # far from any limit
                break
        for before, new in pairwise(ids):
            moves[before].append(new)
    found = floor = 0.0
    for row, seen, m in zip(p, moves, looked_at, strict=True):
        shares = torch.bincount(torch.tensor(seen[:m]), minlength=vocabulary) / m
        found += float((shares - row).abs().sum()) / 2 * m / sum(looked_at)
        floor += math.sqrt(vocabulary / (2 * math.pi * m)) * m / sum(looked_at)
    return found, floor


@pytest.mark.parametrize(
    ("vocabulary", "method", "alike"),
    [(3, chain(2, 3), False), (4, chain(3, 5), False), (5, chain(4, 8), True)],
    ids=["K 2, threshold 3", "K 3, threshold 5", "K 4, threshold 8, models alike"],
)
def test_long_sequences_of_a_chain_follow_the_target(vocabulary, method, alike):
    """800 transitions against their exact distributions: the mean total variation stays below its floor of .04 to .07
    plus .1.

    By McDiarmid a sound chain fails at one of 9e6 seeds, exp(-2 x 800 x .1^2); one that is off by .27 passes as seldom.
    """
    found, floor = apart(method, vocabulary, alike)
    assert found < floor + SLACK


def test_long_sequences_of_a_mutant_do_not():
    """Control: the drafter's distribution in the outer test, at the same size and seed."""
    found, floor = apart(chain(2, 3, kind=ProposersDistribution), 3)
    assert found > floor + SLACK


@pytest.mark.parametrize("thresholds", [(3,), (5,), (2, 4)], ids=str)
def test_inner_rounds_are_the_draft_that_it_tested(thresholds):
    """Their tokens in a row begin with those that it accepted, and the next one was rejected; so at every level.

    There are threshold to threshold + K of them far from the limit, and fewer than threshold before the last round.
    """
    k, models = 2, tables(tuple("abcd"), 3, seed=2)
    _, steps = generate(chain(k, *thresholds), models, sampler(1), 120)
    checked = 0

    def nested(round_, level: int, whole: bool) -> None:
        nonlocal checked
        if level < 0:
            assert not round_.inner and round_.drafted <= k and set(round_.proposers) <= {"a"}
            return
        tokens = [token for each in round_.inner for token in each.tokens]
        assert len(tokens) == round_.drafted and tokens[: round_.accepted] == round_.tokens[: round_.accepted]
        assert round_.tested == min(round_.accepted + 1, round_.drafted) and set(round_.proposers) <= {"bc"[level]}
        if round_.accepted < round_.tested:
            assert tokens[round_.accepted] != round_.tokens[round_.accepted]
        if whole:
            least, longest = thresholds[level], thresholds[level] + (k if level == 0 else thresholds[0] + k)
            assert least <= len(tokens) <= longest
            assert len(tokens) - len(round_.inner[-1].tokens) < least
            checked += 1
        for each in round_.inner:
            nested(each, level - 1, whole)

    room = 120
    for round_ in steps:
        nested(round_, len(thresholds) - 1, whole=room > 20)
        room -= len(round_.tokens)
    assert checked > 20


def forwards(models: TableModels, role: str) -> int:
    usage = models[role].usage
    return usage.forwards + bool(usage.prefill_fed)


def disturbed(model, seed: int):
    other = copy.deepcopy(model)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.03)
    return other


def test_every_level_runs_one_forward_per_round():
    """One of the target an outer round, one of the middle an inner round, one of the drafter a drafted token: no more."""
    first = random_model("llama", 1)
    models = open_models({"a": disturbed(first, 1), "b": disturbed(first, 2), "c": first}, [5, 17, 2], "lean")
    _, steps = generate(chain(2, 3), models, sampler(2), 55)
    inner = [each for round_ in steps for each in round_.inner]
    assert 0 < sum(round_.accepted for round_ in steps) < sum(round_.tested for round_ in steps)
    assert forwards(models, "c") == len(steps)
    assert forwards(models, "b") == len(inner) > len(steps)
    assert forwards(models, "a") == sum(each.drafted for each in inner)


def test_after_a_fully_accepted_outer_block_the_middle_model_reads_two_tokens_more():
    """Identical models: blocks of 3 + 3 tokens, all accepted, and the bonus of the target.

    The middle feeds two drafted tokens and the one that it added itself, and once a block the target's as well.

    See docs/papers/polybasic.md, Catch-up forward.
    """
    model, outer = random_model("llama", 3), 6
    models = open_models(dict.fromkeys("abc", model), [1, 2, 3], "lean")
    _, steps = generate(chain(2, 4), models, sampler(), outer * 7)
    assert [(round_.drafted, round_.accepted, len(round_.inner)) for round_ in steps] == [(6, 6, 2)] * outer
    times = {role: {fed: n for fed, (n, _) in models[role].usage.by_fed.items()} for role in "abc"}
    assert times["c"] == {7: outer - 1}, "the block and the token before it; the first is the prompt's"
    assert times["b"] == {4: outer - 1, 3: outer}, "once a block its own last token and the target's are both unread"
    assert times["a"] == {1: 2 * outer, 2: outer, 3: outer - 1}, "and the drafter lacks one token more"


def test_a_chain_with_room_for_one_token_leaves_it_to_the_target():
    models = tables(tuple("abc"), 3, seed=2)
    tokens, steps = generate(chain(2, 3), models, sampler(), 1)
    assert (len(tokens), len(steps), steps[0].drafted, steps[0].inner) == (1, 1, 0, ())
    assert forwards(models, "c") == 1 and forwards(models, "b") == 0


def longest_match(ids: list[int], n: int) -> int:
    """The place after the newest earlier occurrence of the longest n-gram at the end, by looking everywhere."""
    for length in range(min(n, len(ids)), 0, -1):
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == ids[-length:]:
                return end
    return 0


def test_prompt_lookup_finds_the_latest_occurrence():
    """The longest n-gram first, its newest occurrence.

    Up to gamma tokens and the room; cut at an EOS; certain distributions.
    """
    propose = PromptLookup(gamma=3, ngram=3).open(tables(("t",), 10), Sampler(), StopCriteria(frozenset({9}), 99))
    for ids, room, expected in [
        ([1, 2, 3, 4, 5, 1, 2, 3], 9, [4, 5, 1]),
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 7, 1, 2, 8, 3, 1, 2], 9, [8, 3, 1]),  # the newest of two
        ([4, 1, 2, 7, 5, 2, 8, 1, 2], 9, [7, 5, 2]),  # the longer n-gram, though older
        ([1, 2, 3], 9, []),
        ([6, 6, 6], 9, [6]),  # it may overlap with itself
        ([3, 4, 9, 5, 3], 9, [4, 9]),
        ([1], 9, []),
        ([1, 2, 1], 0, []),
    ]:
        draft = propose(ids, room)
        assert draft.tokens == expected
        assert draft.probs.shape == (len(expected), 10)
        assert all(row[token] == row.sum() == 1 for row, token in zip(draft.probs, expected, strict=True))


class _Forgetful(NGramIndex):
    """A mutant: what a sequence has lost stays in the index, before what it gained."""

    def __init__(self, longest):
        super().__init__(longest)
        self.ids, self.everything = [], []

    def continuation(self, ids, most):
        self.everything = self.everything + ids[common_prefix(self.ids, ids) :]
        self.ids = ids
        return super().continuation(self.everything, most)


@pytest.mark.parametrize("index", [NGramIndex, _Forgetful])
def test_an_index_after_any_history_equals_a_new_one(index):
    """Grow, cut and replace at random; against looking everywhere. Control: one that does not cut itself back."""
    rng, places, ids, wrong = random.Random(4), index(3), [0], 0
    for _ in range(400):
        if rng.random() < 0.6 or len(ids) < 3:
            ids = ids + [rng.randrange(4) for _ in range(rng.randint(1, 5))]
        else:
            ids = ids[: rng.randint(1, len(ids))]
        found = places.continuation(ids, 4)
        at = longest_match(ids, 3)
        wrong += found != (ids[at : at + 4] if at else [])
        ids = ids[:60]
    assert (wrong == 0) == (index is NGramIndex)
