"""Verdicts: each kind of change is named right, on measurements that are made up."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from specbench.config.options import Options
from specbench.config.request import Request
from specbench.features.gate.comparison import ANCHOR, compare
from specbench.features.gate.decoding_checks import decoding, log_ratios
from specbench.features.gate.snapshot import RunSnapshot, pooled
from specbench.features.gate.verdict import GateLimits, GateVerdict, Status, exit_code
from tests.fixtures.fabricated import CONFIG, ENVIRONMENT, generations, measured, quiet, session, without_prompts
from tests.fixtures.snapshots import loaded, save

LIMITS = GateLimits()


def by_aspect(found: list[GateVerdict], method: str = "sd") -> dict[str, GateVerdict]:
    return {each.aspect: each for each in found if each.method == method}


def changed(**paths) -> dict:
    """CONFIG with `a__b=value` in place of what stands there."""
    config = copy.deepcopy(CONFIG)
    for path, value in paths.items():
        *above, last = path.split("__")
        place = config
        for key in above:
            place = place[key]
        place[last] = value
    return config


def test_two_measurements_of_one_commit_pass():
    found = compare([quiet(seed=1, count=2)], [quiet(seed=2)], LIMITS)
    assert {each.status for each in found} == {Status.same}
    assert {(each.method, each.aspect) for each in found} == {
        ("ar", "decoding"), ("ar", "quality"), ("ar", "engine"), ("sd", "decoding"), ("sd", "quality"), ("sd", "speed"),
    }  # fmt: skip
    assert exit_code(found) == 0


def test_drift_raises_no_alarm_and_a_tenth_is_always_detected():
    """Fabricated: 5 % drift by round, 1 % noise a measurement, .8 % a process; 100 gates each, a hit confirmed once.

    One process's luck alone crosses the limit now and then, and a second process does not agree.
    """

    def alarms(slower: float) -> tuple[int, int]:
        """Of one session, and of two that agree."""
        first = agreed = 0
        for seed in range(100):
            rng = np.random.default_rng(seed)
            base = measured([session(rng, {}, process=0.008) for _ in range(2)])
            new = [session(rng, {"sd": slower}, process=0.008) for _ in range(2)]
            hits = [
                by_aspect(compare([base], [measured(sessions)], LIMITS))["speed"].status is Status.regression
                for sessions in (new[:1], new)
            ]
            first, agreed = first + hits[0], agreed + all(hits)
        return first, agreed

    first, agreed = alarms(1.0)
    assert first > agreed == 0
    assert alarms(1.1) == (100, 100)


def test_disagreeing_sessions_raise_no_alarm():
    rng = np.random.default_rng(0)
    new = measured([session(rng, {"sd": 1.1}), session(rng, {})])
    found = by_aspect(compare([quiet(count=2)], [new], LIMITS))["speed"]
    assert found.status is Status.same and "do not agree" in found.detail


def test_equal_counters_with_another_time_are_overhead():
    found = compare([quiet(seed=1, count=2)], [quiet({"sd": 1.1}, seed=2)], LIMITS)
    assert (by_aspect(found)["speed"].status, by_aspect(found)["speed"].title) == (
        Status.regression,
        "overhead changed",
    )
    assert by_aspect(found)["decoding"].status is Status.same
    assert by_aspect(found, "ar")["engine"].status is Status.same
    assert exit_code(found) == 5


def test_everything_slower_than_the_anchor_is_an_engine_change():
    """Which no speedup over the baseline would show."""
    found = compare([quiet(seed=1, count=2)], [quiet({"sd": 1.1, "ar": 1.1}, seed=2)], LIMITS)
    assert (by_aspect(found, "ar")["engine"].status, by_aspect(found, "ar")["engine"].title) == (
        Status.regression,
        "engine changed",
    )
    assert by_aspect(found)["speed"].status is Status.same


def test_fewer_accepted_tokens_are_an_acceptance_change_with_its_cost():
    worse = [replace(row, rounds=20, accepted=20, forwards={"target": 20}) for row in generations()]
    found = by_aspect(compare([quiet(seed=1)], [quiet({"sd": 1.5}, seed=2, sd=worse)], LIMITS))
    assert (found["decoding"].status, found["decoding"].title) == (Status.regression, "acceptance changed")
    assert "mean acceptance length 4.00 → 2.00" in found["decoding"].detail and "sd over ar" in found["decoding"].detail
    assert "speed" not in found, "the cost is reported once"


def test_the_same_tokens_for_less_work_are_an_improvement():
    better = [replace(row, rounds=8, accepted=32, forwards={"target": 8}) for row in generations()]
    found = compare([quiet(seed=1)], [quiet({"sd": 0.8}, seed=2, sd=better)], LIMITS)
    assert by_aspect(found)["decoding"].status is Status.improved
    assert exit_code(found) == 0


def test_forwards_of_a_model_that_did_not_run_before_are_no_improvement():
    fewer = [replace(row, forwards={"target": 8}) for row in generations()]
    moved = [replace(row, forwards={"target": 8, "middle": 40}) for row in generations()]
    found = [decoding(generations(), rows, "", 0.05).status for rows in (fewer, moved)]
    assert found == [Status.improved, Status.regression]


def test_fewer_tested_tokens_for_the_same_output_are_an_improvement():
    """As of shorter drafts of prompt lookup, none of which is accepted: no forward is saved, and none is added."""
    longer = [replace(row, drafted=50, tested=50, accepted=0) for row in generations()]
    shorter = [replace(row, drafted=20, tested=20, accepted=0) for row in generations()]
    better, worse = decoding(longer, shorter, "", 0.05), decoding(shorter, longer, "", 0.05)
    assert (better.status, worse.status) == (Status.improved, Status.regression)
    assert better.title == worse.title == "drafting changed"
    tested = 50 * len(longer), 20 * len(longer)
    assert f"{tested[0]} → {tested[1]} tested tokens" in better.detail


def test_other_tokens_fail_even_with_better_counters():
    other = [replace(row, ids="other", rounds=8, forwards={"target": 8}) for row in generations()]
    found = by_aspect(compare([quiet()], [quiet(sd=other)], LIMITS))["decoding"]
    assert (found.status, found.title) == (Status.regression, "acceptance changed")
    same_counters = [replace(row, ids="other") for row in generations()]
    found = by_aspect(compare([quiet()], [quiet(ar=same_counters)], LIMITS), "ar")["decoding"]
    assert (found.status, found.title) == (Status.regression, "decoding changed")


def test_on_another_machine_other_tokens_are_counted_and_undecided_and_a_lower_acceptance_fails():
    elsewhere = {**ENVIRONMENT, "cpu": "another", "instructions": "j"}
    tie = [replace(row, ids="tie", accepted=10) if row.sample == "3" else row for row in generations()]
    found = compare([quiet()], [quiet(environment=elsewhere, sd=tie)], LIMITS)
    undecided = by_aspect(found)["decoding"]
    assert undecided.status is Status.inconclusive and undecided.short == "1 of 8 outputs have other tokens"
    assert "another processor's arithmetic may be the cause" in undecided.detail
    assert by_aspect(found)["speed"].status is Status.skipped, "speeds of two machines are not compared"
    assert by_aspect(found)["speed"].title == "speed not compared"
    assert exit_code(found) == 6 and exit_code(compare([quiet()], [quiet(environment=elsewhere)], LIMITS)) == 0
    worse = quiet(environment=elsewhere, sd=generations(accepted=20))
    assert by_aspect(compare([quiet()], [worse], LIMITS))["decoding"].title == "acceptance changed"
    few = without_prompts(worse, 4)
    assert by_aspect(compare([quiet()], [few], LIMITS))["decoding"].status is Status.inconclusive


def test_speeds_of_two_machines_fail_where_speed_is_required():
    elsewhere = quiet(environment={**ENVIRONMENT, "threads": 2})
    assert exit_code(compare([quiet()], [elsewhere], LIMITS)) == 0
    assert exit_code(compare([quiet()], [elsewhere], GateLimits(require_speed=True))) == 6


def test_quality_is_judged_by_prompt():
    """Seven lost of eight: p = 2 / 2^7, so no verdict at .01; eight lost: 2 / 2^8."""
    for lost, status in ((7, Status.inconclusive), (8, Status.regression)):
        sides = [quiet(sd=generations(right=right)) for right in (8, 8 - lost)]
        found = by_aspect(compare(sides[:1], sides[1:], LIMITS))["quality"]
        assert found.status is status and f"{lost} lost, 0 won" in found.detail
    risen = by_aspect(compare([quiet(sd=generations(right=0))], [quiet(sd=generations(right=8))], LIMITS))["quality"]
    assert risen.status is Status.improved


def test_few_prompts_do_not_confirm_the_quality():
    """All of three lost: McNemar's p is at least 2 / 2^3, so no outcome of three prompts could be significant."""
    sides = [[replace(row, values={"strict": right}) for row in generations()[:3]] for right in (1.0, 0.0)]
    base, new = ([quiet(sd=side)] for side in sides)
    assert by_aspect(compare(base, new, LIMITS))["quality"].status is Status.inconclusive


def test_graded_quality_has_a_paired_test_and_small_drops_pass():
    def graded(less: float) -> list:
        return [replace(row, values={"strict": 0.5 + 0.04 * int(row.sample) - less}) for row in generations()]

    for less, status in ((0.005, Status.same), (0.03, Status.regression)):
        found = by_aspect(compare([quiet(sd=graded(0.0))], [quiet(sd=graded(less))], LIMITS))["quality"]
        assert found.status is status and "paired t-test" in found.detail, "significant, but not large enough"


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        ({"task__version": "3-A"}, "task version: 2-A in BASE, 3-A in NEW"),
        ({"task__data__sha256": "e"}, "data sha256: d in BASE, e in NEW"),
        ({"task__data__prompts_sha256": "e"}, "data prompts_sha256"),
        ({"decoding__temperature": 1.0}, "decoding temperature: 0.0 in BASE, 1.0 in NEW"),
        ({"decoding__seed": 1}, "decoding seed"),
        ({"pair__models__target__checksum": "2"}, "model target"),
        ({"task__options__shots": 5}, "task option shots: 0 in BASE, 5 in NEW"),
    ],
)
def test_runs_that_cannot_be_compared_are_reported_with_the_reason(paths, why):
    found = compare([quiet()], [quiet(config=changed(**paths))], LIMITS)
    assert [each.status for each in found] == [Status.incomparable] and why in found[0].detail
    assert found[0].short == "other conditions", "the reasons follow the table, once"
    assert (exit_code(found), exit_code(found, undecided_passes=True)) == (6, 0)


def test_another_method_table_concerns_that_method_only():
    other = compare([quiet()], [quiet(config=changed(methods__sd__options={"name": "sd", "gamma": 3}))], LIMITS)
    assert by_aspect(other)["comparability"].status is Status.incomparable
    assert by_aspect(other, "ar")["decoding"].status is Status.same
    assert exit_code(compare([quiet()], [], LIMITS)) == 6


def test_of_two_runs_the_one_with_the_methods_is_used():
    others = {name: table for name, table in CONFIG["methods"].items() if name != "sd"}
    lacking = quiet(config=changed(methods=others))
    assert exit_code(compare([quiet()], [lacking, quiet(seed=1)], LIMITS)) == 0
    assert exit_code(compare([quiet()], [lacking], LIMITS)) == 6


def test_the_location_of_a_model_does_not_matter():
    assert exit_code(compare([quiet()], [quiet(config=changed(pair__models__target__source="there"))], LIMITS)) == 0


def test_too_few_rounds_are_inconclusive():
    brief = quiet()
    brief = replace(brief, sessions=[{name: rounds[:2] for name, rounds in brief.sessions[0].items()}])
    found = compare([brief], [quiet()], LIMITS)
    assert by_aspect(found)["speed"].status is Status.inconclusive and exit_code(found) == 6
    assert exit_code(compare([brief], [quiet()], GateLimits(counters_only=True))) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_failed_generations_are_a_regression(count):
    new = replace(quiet(), failed={"ar": 0, "sd": count, "hf-generate": 0})
    assert by_aspect(compare([quiet()], [new], LIMITS))["decoding"].title == "generations failed"


def test_failures_of_several_sessions_are_no_more_than_those_of_one():
    one = replace(quiet(), failed={"ar": 0, "sd": 1})
    assert pooled([one, one])[0].failed == {"ar": 0, "sd": 1}


def test_drafts_that_were_never_accepted_are_no_change_of_acceptance():
    def rejected(ids: str):
        return replace(
            quiet(),
            generations={
                name: [replace(row, accepted=0, ids=ids) for row in rows] for name, rows in quiet().generations.items()
            },
        )

    found = by_aspect(compare([rejected("0")], [rejected("1")], GateLimits(counters_only=True)))["decoding"]
    assert found.title == "decoding changed"


def test_a_snapshot_gives_back_what_it_was_given(tmp_path):
    cell = quiet(count=2)
    request = Request(methods=("sd",), pair="tiny", options=Options(limit=8))
    save(RunSnapshot([request], [cell], False), tmp_path / "b.json")
    back = loaded(tmp_path / "b.json")
    assert back.requests == [request] and back.runs[0].generations == cell.generations
    assert log_ratios(back.runs[0].sessions[1], "sd", "ar") == pytest.approx(
        log_ratios(cell.sessions[1], "sd", "ar"), abs=1e-5
    )
    assert exit_code(compare([cell], back.runs, LIMITS)) == 0


def of_gamma(gamma: int, seed: int):
    table = {"name": "speculative", "proposer": {"name": "model", "gamma": gamma}}
    return quiet(seed=seed, config=changed(methods__sd__options=table))


def test_a_measurement_is_compared_with_the_base_of_its_own_settings_and_with_no_other():
    found = compare([of_gamma(5, 1), of_gamma(3, 2)], [of_gamma(3, 3)], LIMITS)
    assert [each.title for each in found if not each.method] == ["not measured"]
    assert {each.status for each in found if each.method} == {Status.same}


def test_a_comparison_across_settings_names_them():
    found = compare([of_gamma(5, 1)], [of_gamma(3, 2)], replace(LIMITS, across_config=True))
    assert by_aspect(found)["decoding"].short.endswith("(proposer.gamma 5 -> 3)")


def test_a_missing_reference_for_the_engine_is_named_with_its_role():
    cell = quiet()
    methods = {key: value for key, value in cell.spec.methods.items() if key != ANCHOR}
    alone = replace(cell, spec=replace(cell.spec, methods=methods))
    engine = by_aspect(compare([alone], [alone], LIMITS), "ar")["engine"]
    assert engine.title == "engine not compared"
    why = "hf-generate, the reference for the engine, was not measured in both runs; help: add -m hf-generate; within"
    assert engine.detail.startswith(why), "the ratios within the runs follow"
