"""Costs of replayed rounds: forwards of sizes that a run made, scaled times for others, and the seconds of whole outputs."""

import numpy as np
import pytest

from specbench.analysis.costs import ERRORS, Origin, scaled
from specbench.analysis.intervals import Estimate
from specbench.analysis.recorded_output import OutputLimits
from specbench.analysis.replay import replay
from specbench.analysis.replayed_drafts import DraftsByToken
from specbench.decoding.traits import Theory
from specbench.features.advise.candidates import (
    BETWEEN_RUNS,
    later_speedup,
    pilot_costs,
    predicted_speedup,
)
from tests.fixtures.records import record, round_of, usage_of

THEORY = Theory(formula="speculation", models=("draft", "target"), gamma=(3,), bonus="exact")
DRAFT, ONE, BLOCK, HOST = 0.1, 1.0, 1.5, 0.2  # seconds
ROUNDS, PROMPTS = 10, 6
TIMED = {
    "draft": dict.fromkeys(range(1, 9), (20, 20 * 0.08)),
    "target": {size: (20, 20 * (0.8 + 0.1 * (size - 1))) for size in range(1, 9)},
}


def runs():
    """A baseline, and drafts of three tokens that are always accepted, at exact times."""
    tokens = 4 * ROUNDS
    base = [
        record(
            "ar", str(i), tokens, (tokens - 1) * ONE, models={"target": usage_of({1: (tokens - 1, (tokens - 1) * ONE)})}
        )
        for i in range(PROMPTS)
    ]
    usage = {
        "draft": usage_of({1: (2 * ROUNDS, 2 * ROUNDS * DRAFT), 2: (ROUNDS - 1, (ROUNDS - 1) * DRAFT)}),
        "target": usage_of({4: (ROUNDS - 1, (ROUNDS - 1) * BLOCK)}),
    }
    spent = sum(each.seconds for each in usage.values()) + ROUNDS * HOST
    rows = [record("sd", str(i), tokens, spent, rounds=[round_of(3, 3)] * ROUNDS, models=usage) for i in range(PROMPTS)]
    return rows, base


def test_the_seconds_of_the_run_itself_are_predicted():
    rows, base = runs()
    costs = pilot_costs(THEORY, rows, base, TIMED)
    drafts = DraftsByToken([[1.0] * 4 * ROUNDS], 3)
    expected = replay(drafts, OutputLimits(tokens=4 * ROUNDS, most=999), 3)
    assert costs.seconds(expected, "model") == pytest.approx(rows[0].decode_seconds, rel=0.01)


def test_a_lookup_takes_no_drafting_and_a_tree_a_forward_per_depth():
    rows, base = runs()
    host = {"lookup": [record("pld", "0", 10, 10.5, models={"target": usage_of({1: (9, 10.0)})})]}
    costs = pilot_costs(THEORY, rows, base, TIMED, others=host)
    expected = replay(DraftsByToken([[0.0] * 20], 3), OutputLimits(tokens=20, most=999), 3)
    lookup, model = (costs.seconds(expected, kind) for kind in ("lookup", "model"))
    assert costs.host == {"lookup": pytest.approx(0.05)}
    assert model - lookup == pytest.approx(20 * (3 * DRAFT + HOST - 0.05) - DRAFT, rel=0.02)
    tree = costs.seconds(expected, "tree", (-1, -1, 0))
    assert tree > costs.seconds(expected, "lookup")


def test_an_interval_contains_the_error_of_costs():
    base, ours = np.full(8, 2.0), np.full(8, 1.0)
    costs = scaled({5: (50, 75.0)}, TIMED["target"])
    known, other = (predicted_speedup(base, ours, {size: 1.0}, costs) for size in (5, 7))
    for found, error in ((known, ERRORS[Origin.RUN]), (other, ERRORS[Origin.TIMED])):
        assert found.value == 2.0 and found.low == pytest.approx(2.0 * np.exp(-error))
        assert found.high == pytest.approx(2.0 * np.exp(error))
    assert predicted_speedup(base[:2], ours[:2], {5: 1.0}, costs).low is None


def test_the_interval_of_repeated_measurements_covers_later_runs():
    """Runs whose speed varies as assumed between processes: about 95 % of later measurements are inside the interval."""
    random, inside, count = np.random.default_rng(5), 0, 4000
    for _ in range(count):
        prompts, true = 0.03, np.log(1.3)
        shared = random.normal(0.0, prompts)  # both runs are on the same prompts
        logs = true + shared + random.normal(0.0, BETWEEN_RUNS, 2)
        estimates = [Estimate(*np.exp(x + 1.96 * prompts * np.array([0.0, -1.0, 1.0]))) for x in logs]
        interval = later_speedup(estimates)
        later = np.exp(true + random.normal(0.0, prompts) + random.normal(0.0, BETWEEN_RUNS))
        inside += interval.low <= later <= interval.high
    assert 0.94 <= inside / count <= 0.98
    assert later_speedup([Estimate(1.2, 1.1, 1.3), Estimate(1.25, None, None)]) == Estimate(
        pytest.approx(np.sqrt(1.2 * 1.25)), None, None
    )


def test_measurements_that_differ_widen_the_interval():
    near = later_speedup([Estimate(1.3, 1.25, 1.35), Estimate(1.31, 1.26, 1.36)])
    far = later_speedup([Estimate(1.2, 1.15, 1.25), Estimate(1.42, 1.37, 1.47)])
    assert far.high / far.low > 1.05 * near.high / near.low > 1.05 * 1.35 / 1.25
