"""Every number of a table on rows small enough to do by hand."""

import numpy as np
import pytest

from specbench.analysis.acceptance import (
    acceptance_by_model,
    acceptance_by_position,
    acceptance_rate,
    accepted_length,
    wasted_share,
)
from specbench.analysis.forwards import (
    Traffic,
    bound_share,
    forwards_per_token,
    outside_forwards,
    round_milliseconds,
)
from specbench.analysis.intervals import Estimate
from specbench.analysis.method_metrics import average_tokens
from specbench.analysis.method_records import complete
from specbench.analysis.metric import METRICS
from specbench.analysis.quality import bounded_score_change, groups_of, quality, score_change, score_estimate
from specbench.analysis.speed import (
    completion_speedup,
    drift,
    first_turns,
    geometric_mean_speedup,
    per_question_speedup,
    speedup,
)
from specbench.runs.record import Record, RoundRecord
from specbench.scoring import Scored
from tests.fixtures.records import usage_of


def row(sample: str, tokens: int, decode: float, prefill: float = 1.0, repeat: int = 0, **more) -> Record:
    return Record(
        method="x", sample=sample, repeat=repeat, seed=0, order=more.pop("order", 0), tokens=[0] * tokens,
        decode_seconds=decode, prefill_seconds=prefill, **more,
    )  # fmt: skip


OURS = [row("a", 10, 1.0), row("b", 30, 2.0)]
BASE = [row("a", 10, 2.0), row("b", 20, 2.0)]


def test_the_three_speedups_differ_and_match_their_definitions():
    assert speedup(OURS, BASE).value == pytest.approx((40 / 3) / (30 / 4))
    assert speedup(OURS, BASE, end_to_end=True).value == pytest.approx((40 / 5) / (30 / 6))
    assert geometric_mean_speedup(OURS, BASE).value == pytest.approx(((10 / 5) * (15 / 10)) ** 0.5)
    assert per_question_speedup(OURS, BASE).value == pytest.approx(
        np.mean([10 / 2, 30 / 3]) / np.mean([10 / 3, 20 / 3])
    )


def test_a_run_of_a_verifier_counts_its_own_acceptances_apart_from_the_targets():
    """Two runs: the verifier accepts 3 and rejects a token that the target accepts, then 2 and one that it rejects."""

    def run(accepts: int, accepted: int):
        counters = {"verifier_calls": accepts + 1, "verifier_accepts": accepts}
        return RoundRecord(
            tokens=accepts + 1 + accepted, drafted=accepts + 1, tested=1, accepted=accepted,
            proposers=["draft"], counters=counters, untested=accepts,
        )  # fmt: skip

    rows = [row("a", 8, 1.0, rounds=[run(3, 1), run(2, 0)])]
    assert METRICS["verifier_run"].compute(rows, None) == pytest.approx(5 / 2)
    assert average_tokens(rows) == pytest.approx(6 / 2), 'the paper\'s "Avg tokens"'
    assert METRICS["verifier_run"].compute(OURS, None) is None


def test_a_completion_speedup_is_the_ratio_of_the_mean_times_of_a_generation():
    """Prefill included, tokens left out: (3 + 3) s over (2 + 3) s."""
    assert completion_speedup(OURS, BASE).value == pytest.approx(6 / 5)


def test_the_papers_average_sums_the_turns_of_a_question_within_each_repeat():
    """Two-turn question 7 and one-turn question 8, twice: four rates a side, not six."""
    ours = [row(s, n, d, repeat=r) for r in (0, 1) for s, n, d in (("7", 10, 1.0), ("7.2", 30, 3.0), ("8", 6, 1.0 + r))]
    base = [row(s, 12, 5.0, repeat=r) for r in (0, 1) for s in ("7", "7.2", "8")]
    rates = [40 / 6, 40 / 6, 6 / 2, 6 / 3]
    assert per_question_speedup(ours, base, later_turns=True).value == pytest.approx(np.mean(rates) / (12 / 6))
    single = [10 / 2, 30 / 4, 6 / 2, 10 / 2, 30 / 4, 6 / 3]
    assert per_question_speedup(ours, base).value == pytest.approx(np.mean(single) / (12 / 6))


def test_a_sample_is_a_later_turn_only_where_the_turns_before_it_are_there():
    assert first_turns({"81", "81.2", "81.3", "90.2", "7", "7.3", "8", "8.1"}) == {"81.2": "81", "81.3": "81"}


def test_only_what_both_sides_completed_is_compared():
    failed = Record(method="x", sample="c", repeat=0, seed=0, order=0, error="no")
    assert complete([*OURS, failed], "x") == OURS
    assert speedup([*OURS, row("d", 5, 1.0)], BASE) == speedup(OURS, BASE)


def test_intervals_cover_and_shrink():
    """A ratio of 1.5 with 10 % noise a prompt: the interval holds it, and 16 times the prompts make it 4 times narrower."""
    rng = np.random.default_rng(1)

    def interval(prompts: int) -> Estimate:
        ours = [row(str(i), 30, 2.0 * rng.lognormal(0, 0.1)) for i in range(prompts)]
        return speedup(ours, [row(str(i), 20, 2.0) for i in range(prompts)])

    small, large = interval(20), interval(320)
    assert small.low < 1.5 < small.high
    assert large.low < 1.5 < large.high
    assert 2.5 < (small.high - small.low) / (large.high - large.low) < 6.5


def test_repeats_of_a_prompt_are_one_observation():
    once = speedup(OURS, BASE)
    again = [row(r.sample, len(r.tokens), r.decode_seconds, repeat=1) for r in OURS]
    twice = speedup([*OURS, *again], [*BASE, *(row(r.sample, len(r.tokens), r.decode_seconds, repeat=1) for r in BASE)])
    assert twice.value == pytest.approx(once.value)


ROUNDS = [
    RoundRecord(tokens=3, drafted=2, tested=2, accepted=2, proposers=["q", "q"]),
    RoundRecord(tokens=1, drafted=2, tested=1, accepted=0, proposers=["q"]),
    RoundRecord(tokens=2, drafted=2, tested=2, accepted=1, proposers=["q", "p"]),
]


def test_acceptance_counts_tested_tokens_only():
    rows = [row("a", 6, 1.0, rounds=ROUNDS)]
    assert acceptance_rate(rows) == pytest.approx(3 / 5)
    assert acceptance_by_position(rows) == pytest.approx([2 / 3, 1 / 2])
    assert acceptance_by_model(rows) == pytest.approx({"q": 3 / 4, "p": 0.0})
    assert accepted_length(rows) == pytest.approx(2.0)
    assert wasted_share(rows) == pytest.approx(0.5)


def test_without_drafting_there_is_no_acceptance_and_a_length_of_one():
    assert acceptance_rate(OURS) is None
    assert wasted_share(OURS) is None
    assert accepted_length(OURS) == 1.0


CALLS = usage_of({1: (2, 0.3), 3: (1, 0.3)}, prefill_fed=5)


def test_forwards_and_the_share_outside():
    rows = [row("a", 8, 0.8, models={"q": CALLS})]
    assert forwards_per_token(rows) == {"q": 0.5}
    assert outside_forwards(rows) == pytest.approx(0.25)


def test_quality_averages_repeats_within_a_prompt():
    scored = [Scored(1.0, "a"), Scored(0.0, "a"), Scored(1.0, "b")]
    assert score_estimate(scored, "mean").value == pytest.approx(0.75)


def test_drift_compares_the_same_prompts_in_the_last_and_the_first_repeat():
    assert drift([row("a", 10, 1.0), row("a", 10, 2.0, repeat=1)]) == pytest.approx(-0.5)
    assert drift([row("a", 10, 1.0), row("b", 10, 2.0)]) is None


def test_no_interval_from_a_handful_of_prompts_and_none_of_width_zero_for_a_share():
    few = speedup(OURS, BASE)
    assert (few.low, few.high) == (None, None)
    everybody = score_estimate([Scored(1.0, str(i)) for i in range(20)], "mean")
    assert everybody.value == everybody.high == 1.0
    assert everybody.low == pytest.approx(0.839, abs=1e-3), "Wilson"


def test_milliseconds_per_round_add_up():
    rows = [row("a", 6, 1.0, rounds=ROUNDS, models={"q": CALLS})]
    assert round_milliseconds(rows) == pytest.approx({"q": 200.0, "host": 400 / 3})


def test_speeds_and_scores_by_group():
    """Groups come from the scores, since only the task knows them."""
    rows = [
        {"method": "x", "sample": s, "repeat": 0, "group": g, "values": {"ok": v}}
        for s, g, v in (("a", "law", 1.0), ("b", "art", 0.0))
    ]
    scores = {"metrics": [{"name": "ok", "combine": "mean"}], "headline": "ok", "rows": rows}
    assert groups_of(scores) == {"a": "law", "b": "art"}
    assert groups_of(scores | {"rows": rows[:1]}) == {}
    found = quality("x", scores)
    assert {group: estimate.value for group, estimate in found.quality_by_group.items()} == {"art": 0.0, "law": 1.0}
    assert found.quality["ok"].value == 0.5
    assert found.no_answer is None
    assert quality("y", scores).quality == {"ok": None}


def test_quality_is_over_what_no_method_failed_at():
    had = (("x", "a", 1.0), ("y", "a", 1.0), ("y", "b", 0.0))
    rows = [{"method": x, "sample": s, "repeat": 0, "group": "", "values": {"ok": v}} for x, s, v in had]
    scores = {"metrics": [{"name": "ok", "combine": "mean"}], "headline": "ok", "rows": rows}
    assert [quality(method, scores).quality["ok"].value for method in "xy"] == [1.0, 1.0]


def test_wilson_is_for_shares_alone():
    silent = [Scored([0.0, 9.0] + [0.0] * 8, str(i)) for i in range(9)]
    assert score_estimate(silent, "bleu") == Estimate(0.0, 0.0, 0.0)


def test_the_share_of_memory_bandwidth():
    """Two forwards of 100 bytes and 30 cached positions of 2 bytes, at 50 bytes a second, in 10 seconds of decoding."""
    usage = usage_of({}, forwards=2, read=30, seconds=8.0, prefill_fed=5)
    rows = [row("a", 2, 10.0, models={"target": usage})]
    traffic = {"target": Traffic(100.0, 2.0)}
    assert bound_share(rows, traffic, 50.0) == pytest.approx((2 * 100 + 30 * 2) / 50 / 10)


def test_bounds_of_a_score_change_hold_for_heavy_losses_on_few_prompts():
    """One of thirty prompts lost everything, the others changed a little: the bounds reach further than the interval."""
    losses = [1.0, *(0.001 * (i % 3) for i in range(29))]
    rows = [
        {"method": name, "sample": str(i), "repeat": 0, "group": "", "values": {"strict": value}}
        for i, loss in enumerate(losses)
        for name, value in (("ar", 1.0), ("lossy", 1.0 - loss))
    ]
    scores = {
        "metrics": [{"name": "strict", "combine": "mean", "signature": ""}], "headline": "strict", "records": 60,
        "rows": rows, "not_executed": False, "version": "",
    }  # fmt: skip
    bounded, change = bounded_score_change("lossy", "ar", scores), score_change("lossy", "ar", scores)
    assert bounded.value == pytest.approx(change.value)
    assert bounded.low < change.low < change.value < bounded.high
    half = score_change("lossy", "ar", scores, factor=0.5)
    assert half.value == pytest.approx(change.value + 0.5)
