"""The acceptance rate and the cost of drafts from which speculation is faster."""

import pytest

from specbench.analysis.predictions import break_even
from specbench.decoding.traits import Theory
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
