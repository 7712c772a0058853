"""Steps from the theoretical speedup to the measured one, on records whose times are known."""

from dataclasses import replace

import pytest

from specbench.analysis.run_summary import speedup_steps
from tests.fixtures.records import record, round_of, usage_of

TOKENS, ROUNDS = 40, 10  # four tokens per round of three drafted ones
DRAFT, ONE, BLOCK, HOST = 0.1, 1.0, 1.5, 0.2  # seconds


def baseline():
    usage = {"target": usage_of({1: (TOKENS, TOKENS * ONE)})}
    return [record("ar", str(i), TOKENS, TOKENS * ONE * 1.1, prefill_seconds=2.0, models=usage) for i in range(6)]


def speculative(draft=DRAFT, block=BLOCK, host=HOST, prefill=3.0, **changes):
    usage = {
        "draft": usage_of({1: (3 * ROUNDS, 3 * ROUNDS * draft)}),
        "target": usage_of({4: (ROUNDS, ROUNDS * block)}),
    }
    spent = ROUNDS * (3 * draft + block + host)
    more = {"rounds": [round_of(3, 3)] * ROUNDS, "models": usage, "prefill_seconds": prefill, **changes}
    return [record("sd", str(i), TOKENS, spent, **more) for i in range(6)]


def test_each_step_adds_one_measured_part():
    steps = speedup_steps(["target"], speculative(), baseline())
    assert steps.rounds == steps.drafting == pytest.approx(40 / (10 * 1.0 + 30 * 0.1))
    assert steps.blocks == pytest.approx(40 / (10 * 1.5 + 30 * 0.1))
    assert steps.host == pytest.approx(44 / (10 * (0.3 + 1.5 + 0.2)))
    assert steps.prefill == pytest.approx((44 + 2) / (20 + 3))


@pytest.mark.parametrize(
    ("change", "first"), [({"block": 9.0}, "blocks"), ({"host": 9.0}, "host"), ({"prefill": 99.0}, "prefill")]
)
def test_a_slow_part_shows_in_its_own_step_first(change, first):
    usual, slow = (vars(speedup_steps(["target"], rows, baseline())) for rows in (speculative(), speculative(**change)))
    names = list(usual)
    before = names[: names.index(first)]
    assert [slow[name] for name in before] == [usual[name] for name in before]
    assert slow[first] < 0.5 * usual[first]


def test_there_are_no_steps_without_rounds_or_with_models_that_run_at_the_same_time():
    assert speedup_steps(["target"], baseline(), baseline()) is None
    usage = speculative()[0].models
    beside = {role: replace(values, overlapped_seconds=0.1) for role, values in usage.items()}
    assert speedup_steps(["target"], speculative(models=beside), baseline()) is None
    assert speedup_steps(["target", "other"], speculative(), baseline()) is None


def test_a_method_that_does_not_run_the_baselines_model_has_no_steps():
    usage = {"middle": usage_of({4: (ROUNDS, ROUNDS * BLOCK)})}
    assert speedup_steps(["target"], speculative(models=usage), baseline()) is None
