"""Cascades that ask the large model only when it is needed, and original BiLD.

Distributions, calls, and the loop written out.
"""

import math

import pytest
import torch

from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Chow, ChowLog, Diff, Last
from specbench.features.verify.enumeration import distance, generate, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.bild import OriginalBild
from specbench.methods.sequential_cascades import SequenceCascade, TokenCascade
from tests.fixtures.worlds import table_world
from tests.methods.test_cascades import GREEDY, ROUNDING, SAMPLING, T1, counting, reference


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("target", [Chow(alpha=0.45), ChowLog(h0=0.7), Chow(alpha=0.45, scaled=True)])
def test_a_token_cascade_follows_its_rule(target, sampling):
    """SpecCascade, Algorithm 2."""
    models = table_world(3, seed=8)
    method = TokenCascade(small="a", large="b", target=target)
    assert (
        distance(joint_distribution(method, models, 3, **sampling), reference(target, models, 3, **sampling)) < ROUNDING
    )


@pytest.mark.parametrize("alpha", [-0.1, 0.05, 0.3])
def test_an_oracle_draws_from_the_model_that_the_diff_rule_chooses(alpha):
    """SpecCascade, Algorithm 3: both models at every position, and p where max q < max p - alpha."""
    models = table_world(3, seed=8)
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    chosen = set()
    for _ in range(3):
        grown = {}
        for prefix, odds in expected.items():
            q, p = (models[role].score([*models.ids, *prefix], len(prefix))[0].softmax(-1) for role in "ab")
            defers = bool(q.max() < p.max() - alpha)
            chosen.add(defers)
            grown |= {(*prefix, x): odds * mass for x, mass in enumerate((p if defers else q).tolist())}
        expected = grown
    assert chosen == {True, False}
    found = joint_distribution(Autoregressive(scorers=("a", "b"), target=Diff(alpha=alpha)), models, 3)
    assert distance(found, expected) < ROUNDING


def test_a_token_cascade_requires_a_rule_of_the_small_model():
    with pytest.raises(ValueError, match="needs the large model at every position"):
        TokenCascade(small="a", large="b", target=Diff(alpha=0.1))


def test_a_token_cascade_calls_the_large_model_once_per_deferral():
    models = counting(9)
    method = TokenCascade(small="a", large="b", target=Chow(alpha=0.6))
    _, steps = generate(method, models, Sampler(generator=torch.Generator().manual_seed(1)), 40)
    deferrals = sum(round_.counters["deferrals"] for round_ in steps)
    assert 0 < deferrals < 40
    assert len(models["b"].fed) == deferrals
    assert models["a"].fed == [1] * 40
    assert sum(models["b"].fed) == max(i for i, round_ in enumerate(steps) if round_.counters["deferrals"]) + 1


def sequences(models, role, length):
    return joint_distribution(Autoregressive(scorers=(role,), target=Last()), models, length)


@pytest.mark.parametrize("score", ["product", "mean", "min"])
def test_a_sequential_cascade_keeps_confident_answers_of_the_small_model(score):
    """Its exact distribution.

    A kept sequence with the small model's probability, any with the large one's for the share deferred.
    """
    models, length = table_world(3, seed=12), 3
    small, large = sequences(models, "a", length), sequences(models, "b", length)

    def score_of(tokens):
        ids, chances = [0], []
        for token in tokens:
            chances.append(T1.probs(models["a"].score(ids, len(ids) - 1))[0, token].item())
            ids.append(token)
        logs = [math.log(c) for c in chances]
        return {"product": sum(logs), "mean": sum(logs) / length, "min": min(logs)}[score]

    scores = {tokens: score_of(tokens) for tokens in small}
    best = sorted(set(scores.values()), reverse=True)
    threshold = (best[1] + best[2]) / 2
    kept = {tokens: mass for tokens, mass in small.items() if scores[tokens] >= threshold}
    deferred = 1.0 - sum(kept.values())
    expected = {tokens: kept.get(tokens, 0.0) + deferred * large[tokens] for tokens in large}
    found = joint_distribution(SequenceCascade(small="a", large="b", score=score, threshold=threshold), models, length)
    assert 0.05 < deferred < 0.99
    assert distance(found, expected) < 1e-9


def test_a_quantile_defers_that_share_of_the_prompts():
    models = table_world(4, seed=13)

    def pilot(method):
        for seed in range(50):
            yield generate(method, models, Sampler(generator=torch.Generator().manual_seed(seed)), 5)[1]

    for quantile, share in ((0.0, 0.0), (0.3, 0.3), (1.0, 1.0)):
        settled = SequenceCascade(small="a", large="b", quantile=quantile).calibrated(pilot)
        deferrals = [steps[0].counters["deferrals"] for steps in pilot(settled)]
        assert sum(deferrals) / 50 == pytest.approx(share, abs=0.021)


@pytest.mark.parametrize("score", ["product", "mean", "min"])
def test_a_greedy_sequence_cascade_defers_by_unscaled_confidence(score):
    """At T = 0 distributions are one-hot and say nothing of how sure the model is; qbar does."""
    deferrals = set()
    for seed in range(12):
        method = SequenceCascade(small="a", large="b", score=score, threshold=-1.2 if score == "product" else -0.5)
        models = table_world(3, seed)
        tokens, steps = generate(method, models, GREEDY, 3)
        deferred = steps[0].counters["deferrals"]
        role = "b" if deferred else "a"
        assert tokens == generate(Autoregressive(scorers=(role,), target=Last()), models, GREEDY, 3)[0]
        deferrals.add(deferred)
    assert deferrals == {0, 1}


def test_a_long_product_does_not_underflow():
    """400 tokens of about two nats each: the scores stay apart, and half are deferred."""
    models = table_world(30, seed=14)

    def pilot(method):
        for seed in range(6):
            yield generate(method, models, Sampler(generator=torch.Generator().manual_seed(seed)), 400)[1]

    settled = SequenceCascade(small="a", large="b", quantile=0.5).calibrated(pilot)
    assert settled.threshold < -700
    assert sum(steps[0].counters["deferrals"] for steps in pilot(settled)) == 3


def test_a_calibration_without_scores_defers_nothing():
    assert SequenceCascade(small="a", large="b", quantile=0.5).calibrated(lambda method: []).threshold == -math.inf


def bild_by_hand(models, length, fallback, rollback, most):
    """The loop over token distributions, without sessions and caches."""
    distributions = {role: lambda ids, r=role: models[r].score(ids, len(ids) - 1)[0].softmax(-1) for role in "ab"}
    ids = [0]
    ids.append(int(distributions["b"](ids).argmax()))
    while len(ids) - 1 < length:
        written = []
        while len(written) < min(most, length - (len(ids) - 1)):
            small = distributions["a"](ids + written)
            if small.max() < fallback:
                break
            written.append(int(small.argmax()))
        for i, token in enumerate(written):
            large = distributions["b"](ids + written[:i])
            if -large[token].log() > rollback and int(large.argmax()) != token:
                ids += [*written[:i], int(large.argmax())]
                break
        else:
            ids += written
            if len(ids) - 1 < length:
                ids.append(int(distributions["b"](ids).argmax()))
    return ids[1:]


@pytest.mark.parametrize(("fallback", "rollback"), [(0.6, 5.0), (0.4, 1.0), (0.0, 0.5), (1.1, 5.0)])
def test_bild_equals_a_direct_implementation(fallback, rollback):
    counters = {}
    for seed in range(20):
        models = table_world(5, seed)
        method = OriginalBild(small="a", large="b", fallback=fallback, rollback=rollback, gamma=4)
        tokens, steps = generate(method, models, GREEDY, 20)
        assert tokens == bild_by_hand(models, 20, fallback, rollback, 4)
        for round_ in steps:
            for key, count in round_.counters.items():
                counters[key] = counters.get(key, 0) + count
    assert (counters.get("fallbacks", 0) > 0) == (fallback > 0)
    assert (counters["rollbacks"] > 0) == (fallback < 1)


def test_bild_may_end_at_an_unread_eos():
    """The authors' code ends where the small model says EOS; by default the large model looks first."""
    for seed in range(40):
        models = table_world(4, seed, spread=4.0)
        eos = int(models["a"].score([0], 0)[0].argmax())
        first = int(models["b"].score([0], 0)[0].argmax())
        eos = int(models["a"].score([0, first], 1)[0].argmax())
        if first == eos or int(models["b"].score([0, first], 1)[0].argmax()) == eos:
            continue
        ends = []
        for check in (True, False):
            method = OriginalBild(small="a", large="b", fallback=0.0, rollback=0.01, gamma=4, check_eos=check)
            steps = method.rounds(models, GREEDY, StopCriteria(frozenset({eos}), 9))
            next(steps)
            ends.append(next(steps).tokens)
        assert ends[1] == [eos] != ends[0]
        return
    raise AssertionError("no world in which it matters")
