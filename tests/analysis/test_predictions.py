"""Predicted speeds at measured costs, and the acceptance rate and cost of drafts from which speculation is faster."""

import pytest

from specbench.analysis.predictions import best_tree, break_even, predictions
from specbench.decoding.traits import Theory
from specbench.runs.record import RoundRecord
from tests.fixtures.records import record, round_of, usage_of


def test_break_even_points_are_those_of_the_costs():
    """Draft length 1, a block of two at 1.5 tokens, drafts at 0.25: 1 + a tokens for 1.75 (2 at the break-even point)."""
    theory = Theory(formula="speculation", models=("draft", "target"), gamma=(1,), bonus="exact")
    rows, base = [], []
    for i in range(10):
        rounds = [round_of(1, 1 if j % 5 else 0) for j in range(40)]
        tokens = sum(each.tokens for each in rounds)
        models = {
            "draft": usage_of({1: (8, 2.0), 2: (31, 7.75)}),
            "target": usage_of({2: (39, 39 * 1.5)}),
        }
        spent = 9.75 + 39 * 1.5
        rows.append(record("sd", str(i), tokens, spent, rounds=rounds, models=models))
        ones = usage_of({1: (tokens, float(tokens))})
        base.append(record("ar", str(i), tokens, float(tokens), models={"target": ones}))
    found = break_even(theory, rows, base)
    assert found.acceptance == pytest.approx(0.75, abs=0.01)
    assert found.measured_acceptance == pytest.approx(0.8)
    assert found.cost_ratio == pytest.approx(1.8 - 1.5, abs=0.01)
    assert found.measured_cost_ratio == pytest.approx(0.25, abs=0.01)
    assert found.curve[0] == pytest.approx(1 / 1.75, abs=0.01) and found.curve[-1] == pytest.approx(2 / 1.75, abs=0.01)


def test_a_cascade_pays_for_the_blocks_that_its_large_model_read():
    """One of eight tokens is deferred, and the large model read blocks of 2 and 6, not of 8: the answers end before."""
    theory = Theory(formula="token cascade", models=("small", "large"))
    rounds = [
        RoundRecord(tokens=1, drafted=0, tested=0, accepted=0, proposers=[], counters={"positions": 8, "deferrals": 1})
    ]
    models = {"small": usage_of({1: (80, 8.0)}), "large": usage_of({2: (10, 12.0), 6: (10, 20.0)})}
    rows = [record("cascade", tokens=80, seconds=40.0, rounds=rounds, models=models)]
    base = [record(tokens=80, seconds=80.0, models={"large": usage_of({1: (80, 80.0)})})]
    found = predictions(theory, ["large"], rows, base)
    assert found.predicted == pytest.approx(1.0 / (0.1 + 0.125))
    assert found.corrected == pytest.approx(1.0 / (0.1 + 0.125 * 1.6))  # a block of 4 costs 1.6


def test_time_outside_forwards_makes_the_best_tree_smaller():
    """Each forward of the drafter needs as much time on the host as in the model."""
    theory = Theory(formula="tree", models=("draft", "target"), gamma=(3,), bonus="exact", shape=(-1, 0, 1))
    accepted = {"drafted": 3, "proposers": ["draft"] * 3, "siblings": [1] * 3}
    rounds = [RoundRecord(tokens=4, tested=3, accepted=3, **accepted)] * 8
    rounds += [RoundRecord(tokens=1, drafted=3, tested=1, accepted=0, proposers=["draft"], siblings=[1])] * 12
    models = {"draft": usage_of({1: (60, 6.0)}), "target": usage_of({4: (20, 22.0), 6: (20, 24.0)})}
    base = [record(tokens=44, seconds=44.0, models={"target": usage_of({1: (44, 44.0)})})]
    quick, slow = (
        best_tree(theory, [record("sd", tokens=44, seconds=spent, rounds=rounds, models=models)], base)
        for spent in (52.0, 52.0 + 0.4 * 100)
    )
    assert best_tree(theory, [record("sd", rounds=rounds, models=models)], []) is None, "no baseline"
    assert quick.depth > slow.depth and quick.speedup > 1.2 * slow.speedup
