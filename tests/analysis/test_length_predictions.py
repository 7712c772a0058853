"""The predicted speed of every draft length, against a simulation of the decoding that it predicts."""

import numpy as np
import pytest

from specbench.analysis.length_predictions import predict
from specbench.decoding.traits import Theory
from tests.fixtures.records import record, round_of, usage_of

THEORY = Theory(formula="speculation", models=("draft", "target"), gamma=(5,), bonus="exact")
DRAFT, ONE, BLOCK, SLOPE = (
    0.1,
    1.0,
    1.3,
    0.05,
)  # seconds: a draft token, one token, a block of two, and per further token
TOKENS = 60
REACHED = 6  # the longest draft whose blocks are at most a quarter longer than those of a draft of five


def block_seconds(k: int) -> float:
    return ONE if k == 1 else BLOCK + SLOPE * (k - 2)


def decode(agrees: list[bool], gamma: int, sample: str):
    """Decode one output, given whether the draft agrees at each of its tokens, at exact costs.

    The first forward of each model is prefill, which does not count.
    """
    rounds, draft, blocks, position = [], 0, {}, 0
    while position < len(agrees):
        window = agrees[position : position + gamma]
        accepted = next((i for i, each in enumerate(window) if not each), len(window))
        drafted = gamma if accepted < len(window) else len(window)
        rounds.append(round_of(drafted, accepted))
        draft += drafted - (position == 0)
        blocks[drafted + 1] = blocks.get(drafted + 1, 0) + (position > 0)
        position += accepted + 1
    used = {
        "draft": usage_of({1: (draft, DRAFT * draft)}),
        "target": usage_of({k: (count, count * block_seconds(k)) for k, count in blocks.items()}),
    }
    spent = DRAFT * draft + sum(count * block_seconds(k) for k, count in blocks.items())
    return record("sd", sample, len(agrees), spent, rounds=rounds, models=used)


def outputs(rate: float, prompts: int = 60, seed: int = 0) -> list[list[bool]]:
    rng = np.random.default_rng(seed)
    return [list(rng.random(TOKENS) < rate) for _ in range(prompts)]


def baseline(prompts: int = 60):
    usage = {"target": usage_of({1: (TOKENS - 1, (TOKENS - 1) * ONE)})}
    return [record("ar", str(i), TOKENS, (TOKENS - 1) * ONE, models=usage) for i in range(prompts)]


def true_speedup(agreeing: list[list[bool]], gamma: int) -> float:
    spent = sum(decode(agrees, gamma, "").decode_seconds for agrees in agreeing)
    return len(agreeing) * (TOKENS - 1) * ONE / spent


@pytest.mark.parametrize("rate", [0.4, 0.7, 0.9])
def test_predictions_equal_the_speed_of_decoding_at_that_length(rate):
    agreeing = outputs(rate)
    rows = [decode(agrees, 5, str(i)) for i, agrees in enumerate(agreeing)]
    found = predict(THEORY, rows, baseline())
    assert [each.gamma for each in found] == list(range(1, REACHED + 1))
    for each in found:
        assert each.speedup.value == pytest.approx(true_speedup(agreeing, each.gamma), rel=0.03), each.gamma
        assert each.speedup.low <= each.speedup.value <= each.speedup.high
    assert found[4].gain.value == found[4].gain.low == found[4].gain.high == 1.0


@pytest.mark.parametrize("rate", [0.3, 0.8, 0.95])
def test_the_predicted_length_is_nearly_the_fastest(rate):
    agreeing = outputs(rate, seed=1)
    found = predict(THEORY, [decode(agrees, 5, str(i)) for i, agrees in enumerate(agreeing)], baseline())
    best = max(found, key=lambda each: each.speedup.value).gamma
    speeds = {gamma: true_speedup(agreeing, gamma) for gamma in range(1, REACHED + 1)}
    assert speeds[best] >= 0.98 * max(speeds.values())


def test_disturbed_generations_widen_the_intervals_instead_of_moving_the_gains():
    agreeing = outputs(0.8)
    rows = [decode(agrees, 5, str(i)) for i, agrees in enumerate(agreeing)]
    calm = predict(THEORY, rows, baseline())
    for row in rows[:6]:
        row.decode_seconds *= 20
        for usage in row.models.values():
            usage.seconds *= 20
            usage.by_fed = {k: [count, 20 * spent] for k, (count, spent) in usage.by_fed.items()}
    for before, after in zip(calm, predict(THEORY, rows, baseline()), strict=True):
        assert after.gain.low <= before.gain.value <= after.gain.high, before.gamma
        assert not (after.is_faster and not before.is_faster), before.gamma


def test_few_prompts_give_predictions_without_intervals():
    found = predict(THEORY, [decode(outputs(0.8)[0], 5, "0")], baseline(1))
    assert all(each.speedup.low is None for each in found)
    assert all(each.gain.low is None for each in found)


@pytest.mark.parametrize(
    "changes",
    [{"formula": "chain"}, {"formula": "ensemble"}, {"drafter_scores": True, "bonus": "deferred"}],
    ids=["chain", "ensemble", "deferred bonus"],
)
def test_other_kinds_of_rounds_have_no_prediction(changes):
    rows = [decode(outputs(0.8)[0], 5, "0")]
    assert predict(Theory(**{**vars(THEORY), **changes}), rows, baseline(1)) == []


def test_a_drafter_that_the_theory_does_not_name_is_not_taken_as_free():
    rows = [decode(each, 5, str(i)) for i, each in enumerate(outputs(0.8))]
    assert predict(THEORY, rows, baseline())
    renamed = Theory(**{**vars(THEORY), "models": ("tempered", "target")})
    assert predict(renamed, rows, baseline()) == []


def test_a_short_output_is_predicted_as_well_as_a_long_one():
    """The prefill forwards matter most where there are few rounds."""
    agreeing = [each[:12] for each in outputs(0.9)]
    rows = [decode(agrees, 5, str(i)) for i, agrees in enumerate(agreeing)]
    found = {each.gamma: each.speedup.value for each in predict(THEORY, rows, baseline())}
    true = {gamma: sum(decode(agrees, gamma, "").decode_seconds for agrees in agreeing) for gamma in found}
    for gamma in found:
        assert found[gamma] / found[5] == pytest.approx(true[5] / true[gamma], rel=0.04), gamma


def test_without_a_baseline_or_other_lengths_in_reach_there_is_no_prediction():
    rows = [decode(outputs(0.8)[0], 5, "0")]
    assert predict(THEORY, rows, []) == []
    short = Theory(**{**vars(THEORY), "gamma": (1,)})
    assert predict(short, [decode(outputs(0.8)[0], 1, "0")], baseline(1)) == []


def test_costs_of_sizes_that_were_not_measured_widen_the_interval():
    """Every draft is accepted whole, so only blocks of six tokens and of one token have a known cost."""
    always = [decode([True] * TOKENS, 5, str(i)) for i in range(20)]
    found = {each.gamma: each.gain for each in predict(THEORY, always, baseline(20))}
    assert found[2].low < true_speedup([[True] * TOKENS], 2) / true_speedup([[True] * TOKENS], 5) < found[2].high
    assert found[2].high / found[2].low > 1.1


def test_a_method_that_drafted_nothing_has_no_prediction():
    assert predict(THEORY, baseline(), baseline()) == []
    assert predict(None, baseline(), baseline()) == []
