"""Expectations of suites: bounds that are other values or other points, and the best of several settings."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Point, points
from specbench.features.suites.papers.comparisons import Comparisons, independent
from specbench.features.suites.papers.expectations import Outcome, outcomes_of
from specbench.features.suites.papers.outcome_texts import (
    ERRORS,
    SELECTION,
    outcome_caveats,
    outcome_counts,
    outcome_lines,
)
from specbench.features.suites.suite import Expectation, read_suite
from specbench.runs.run_folder import spec_of
from tests.fixtures.fabricated import write_run
from tests.fixtures.records import record, round_of
from tests.fixtures.summaries import llama_vicuna_run, method_summary, run_summary


class Suite:
    """The part of a suite that expectations read."""

    def __init__(self, **keys):
        self.expect = (Expectation(says="It holds", of={"method": "m"}, **keys),)


def point(value: float, run: str = "r", x: float | None = None, **place) -> Point:
    latency = Estimate(1 / value, 1 / value - 0.01, 1 / value + 0.01)
    values = {"speedup": Estimate(value, value - 0.1, value + 0.1), "proposer_weight": 1.0, "relative_latency": latency}
    return Point(
        **{
            "pair": "p",
            "task": "t",
            "T": 1.0,
            "method": "m",
            "run": run,
            "values": values,
            **({} if x is None else {"settings": {"x": x}}),
            **place,
        }
    )


def every(*found: Point, value: str = "speedup", **keys) -> list[Outcome]:
    """Return the outcomes, in the order of Outcome."""
    (verdict,) = outcomes_of(Suite(value=value, **keys), found)
    return sorted((each.outcome for each in verdict.outcomes), key=list(Outcome).index)


def outcome(*found: Point, **keys) -> Outcome:
    (only,) = every(*found, **keys)
    return only


def within(found: float, *, margin: float = 0.1, **keys) -> Outcome:
    """Return the outcome of a value with an interval of +- 0.1 against a bound with a margin."""
    return outcome(point(found), margin=margin, **keys)


def test_a_bound_may_be_another_value_of_the_same_point():
    assert outcome(point(1.2), at_least="proposer_weight") == Outcome.confirmed
    assert outcome(point(0.8), at_least="proposer_weight") == Outcome.contradicted


def test_a_value_is_near_a_bound_if_its_whole_interval_lies_within_the_margin():
    assert within(1.0, near=1.0, margin=0.2) == within(0.95, near=1.0, margin=0.2) == Outcome.confirmed
    assert within(1.15, near=1.0, margin=0.2) == Outcome.expected
    assert within(1.25, near=1.0, margin=0.2) == within(0.75, near=1.0, margin=0.2) == Outcome.other
    assert within(1.35, near=1.0, margin=0.2) == within(0.65, near=1.0, margin=0.2) == Outcome.contradicted
    assert within(1.55, near=2.0, margin=0.25) == Outcome.expected, "a share of the bound"


def test_the_prompts_needed_are_those_that_exclude_the_nearer_limit():
    values = {"speedup": Estimate(1.15, 1.05, 1.25), "prompts": 10}
    (verdict,) = outcomes_of(Suite(value="speedup", near=1.0, margin=0.2), [replace(point(1.0), values=values)])
    assert verdict.prompts_needed == 40  # half the width


def test_a_bound_may_name_another_task():
    found = [point(1.5, "a", task="code"), point(1.2, "b", task="news"), point(0.9, "c", task="code", T=0.0)]
    suite = Suite(value="speedup", at_least={"method": "m", "task": "news"})
    suite.expect = (replace(suite.expect[0], of={"method": "m", "task": "code"}),)
    (verdict,) = outcomes_of(suite, found)
    assert [each.measured.comparison.value for each in verdict.outcomes] == [pytest.approx(0.3)], (
        "within one temperature"
    )


def test_the_lowest_of_the_best_settings_of_all_cells():
    ours = [point(1.4, "a"), point(1.0, "a", settings={"s": "s"}), point(1.3, "b", task="u")]
    others = [point(v, "c", method="n", pair="q", settings={s: s}) for v, s in ((1.2, "s"), (1.1, "t"))]
    keys = {"at_least": {"method": "n", "pair": "q", "task": "t"}, "take": "lowest best"}
    suite = Suite(value="speedup", **keys)
    (verdict,) = outcomes_of(suite, [*ours[:2], *others])
    assert [each.measured.comparison.value for each in verdict.outcomes] == [pytest.approx(0.2)]
    suite = Suite(value="speedup", **{**keys, "at_least": {"method": "n", "pair": "q", "task": ["t", "u"]}})
    (verdict,) = outcomes_of(suite, [*ours, *others])
    assert [each.measured.comparison.value for each in verdict.outcomes] == [pytest.approx(0.1)]


def test_the_best_setting_may_be_compared_with_the_lowest():
    found = [point(1.0, x=1.0), point(1.5, x=5.0), point(1.2, x=8.0)]
    keys = {"at_least": {"method": "m"}, "take": "best", "bound_take": "lowest"}
    assert outcome(*found, factor=1.1, **keys) == Outcome.confirmed
    assert outcome(point(1.0, x=1.0), point(1.01, x=5.0), factor=1.5, **keys) == Outcome.contradicted


def test_groups_of_prompts_are_compared_only_if_they_are_named():
    found = [point(1.0), point(1.5, group="math"), point(2.0, group="rag")]
    assert outcome(*found, at_least=1.2) == Outcome.contradicted
    suite = Suite(value="speedup", at_most={"method": "m", "group": "math"})
    suite.expect = (replace(suite.expect[0], of={"method": "m", "group": "rag"}),)
    (verdict,) = outcomes_of(suite, found)
    assert [each.outcome for each in verdict.outcomes] == [Outcome.contradicted]
    assert verdict.outcomes[0].measured.comparison.value == pytest.approx(0.5)


def test_points_are_compared_with_those_that_agree_in_the_named_dimensions():
    found = [point(1.0, x=1.0), point(1.2, x=2.0), point(1.1, x=1.0, method="n"), point(1.5, x=2.0, method="n")]
    assert every(*found, at_most={"method": "n"}, by=("x",)) == [Outcome.confirmed, Outcome.expected]
    among_all = every(*found, at_most={"method": "n"})
    assert len(among_all) == 4 and among_all.count(Outcome.confirmed) == 2


def test_the_best_setting_is_chosen_at_each_place_over_runs():
    found = [
        point(0.8, "a", weight=0.1, proposer="one"), point(1.3, "b", weight=0.1, proposer="two"),
        point(1.4, "c", weight=0.5, proposer="one"), point(0.7, "d", weight=0.5, proposer="two"),
    ]  # fmt: skip
    assert every(*found, at_least=1.0, take="best", by=("weight",)) == [Outcome.confirmed] * 2
    assert every(*found, at_least=1.0) == [Outcome.confirmed] * 2 + [Outcome.contradicted] * 2


def test_the_best_of_a_bound_is_its_largest_speed_and_its_smallest_latency():
    found = [point(1.0), point(0.5, method="n", settings={"a": "a"}), point(1.5, method="n", settings={"b": "b"})]
    assert outcome(*found, at_most={"method": "n"}, take="best") == Outcome.confirmed
    assert outcome(*found, value="relative_latency", at_least={"method": "n"}, take="best") == Outcome.confirmed


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"at_least": 1.0, "near": 1.0, "margin": 0.1},
        {"at_least": 1.0, "by": ("wieght",)},
        {"near": 1.0},
        {"at_least": 1.0, "margin": 0.1},
    ],
)
def test_an_expectation_has_one_bound_and_known_dimensions(keys):
    with pytest.raises(ValueError, match=r"give one of|is not a dimension|margin"):
        Expectation(says="", of={}, value="speedup", **keys)


def test_the_points_of_a_mixture_have_its_default_proposer_and_weights():
    options = {
        "name": "speculative-ensemble",
        "models": ["math", "code"],
        "target": {"name": "mixture", "weights": [0.3, 0.7]},
    }
    row = method_summary("we-se(weights=[0.3, 0.7])", acceptance_by_model={"math": 0.8, "code": 0.6})
    run = run_summary(row)
    run.spec.methods[row.method] = replace(run.spec.methods[row.method], options=options)
    (found,) = points([run])
    assert (found.proposer, found.weight, found.weighted) == ("math", 0.7, "code")
    assert (found.values["proposer_weight"], found.values["proposer_acceptance"]) == (0.3, 0.8)


def counted(found: Sequence[Point], is_of_paper: bool = True, **keys) -> list[str]:
    return outcome_counts(outcomes_of(Suite(value="speedup", **keys), found), is_of_paper)


def test_the_outcomes_of_the_papers_comparisons_and_of_the_projects_are_counted_apart():
    found = [point(1.5), point(1.2, x=2.0), point(0.5, x=3.0), point(1.05, x=4.0)]
    text = "(75%) are decided: 2 confirmed and 1 contradicted; 1 is inconclusive with a trend for it."
    of_paper = "comparisons of speed, quality or acceptance that the paper makes"
    assert counted(found, at_least=1.0) == [f"3 of 4 {of_paper} {text}"]
    assert counted(found, at_least=1.0, source="project") == [f"3 of 4 comparisons that this project adds {text}"]
    assert counted(found, at_least=1.0, source="identity") == [f"3 of 4 checks of the implementation {text}"]
    assert counted(found, False, at_least=1.0) == [f"3 of 4 expected outcomes {text}"]
    assert outcome_caveats(outcomes_of(Suite(value="speedup", at_least=1.0), found)) == [ERRORS]
    assert counted([point(1.5)], at_least=1.0) == [
        "The comparison of speed, quality or acceptance that the paper makes is confirmed."
    ]
    assert counted([point(1.0)], False, near=1.0, margin=0.2) == ["The expected outcome is confirmed."]
    assert counted([], at_least=1.0) == ["Not compared, since no run has both sides: 1 of 1 claims."]
    suite = Suite(value="speedup", at_least=1.0, source="project")
    assert outcome_lines(outcomes_of(suite, found))[0].startswith("It holds (added by this project): 2 of 4 confirmed")


def test_the_conclusion_says_where_the_best_setting_was_chosen_on_the_judged_prompts():
    found = [point(1.5), point(1.2, x=2.0)]
    assert caveats(found, at_least=1.0, take="best")[-1] == SELECTION
    assert SELECTION not in caveats(found, at_least=1.0)
    assert caveats([], at_least=1.0, take="best") == [], "nothing was chosen"


def caveats(found: Sequence[Point], **keys) -> list[str]:
    return outcome_caveats(outcomes_of(Suite(value="speedup", **keys), found))


def test_a_value_is_apart_from_a_bound_if_its_whole_interval_lies_outside_the_margin():
    assert within(1.35, apart=1.0, margin=0.2) == within(0.65, apart=1.0, margin=0.2) == Outcome.confirmed
    assert within(1.25, apart=1.0, margin=0.2) == Outcome.expected
    assert within(1.15, apart=1.0, margin=0.2) == Outcome.other
    assert within(1.0, apart=1.0, margin=0.2) == Outcome.contradicted


class DecidingStandIns:
    """Stand-ins that decide every outcome above 1.55 or below 0.75."""

    def decides(self, sides, bound, value, is_above, is_best):
        found = sides[0].number(value)
        return "acceptance of 0.99" if (found > 1.55 if is_above else found < 0.75) else ""


def test_outcomes_that_a_stand_in_decides_are_not_counted_whichever_way_they_are():
    found = [point(1.5), point(1.6, x=2.0), point(0.5, x=3.0)]
    verdicts = outcomes_of(Suite(value="speedup", at_least=1.0), found, stand_ins=DecidingStandIns())
    (verdict,) = verdicts
    assert [each.outcome for each in verdict.outcomes] == [Outcome.confirmed, Outcome.stand_in, Outcome.stand_in]
    assert [each.found for each in verdict.outcomes[1:]] == [Outcome.confirmed, Outcome.contradicted]
    sentence, rest = outcome_counts(verdicts)
    assert sentence.endswith("is confirmed.") and rest.startswith("Not counted: 2 (follow from the costs")
    assert "numbers that differ: acceptance of 0.99" in outcome_lines(verdicts)[0]
    identity = outcomes_of(Suite(value="speedup", at_least=1.0, source="identity"), found, stand_ins=DecidingStandIns())
    assert Outcome.stand_in not in [each.outcome for each in identity[0].outcomes]


def test_outcomes_by_another_clock_are_shown_and_not_counted():
    found = [replace(point(1.2), values={"speedup": Estimate(1.2, 1.1, 1.3), "least": Estimate(0.9, 0.8, 0.95)})]
    suite = Suite(value="speedup", at_least=1.0, beside="least")
    (line,) = outcome_lines(outcomes_of(suite, found))
    assert line == "It holds: confirmed (difference +0.20); by least: contradicted"
    assert counted(found, at_least=1.0, beside="least") == [
        "The comparison of speed, quality or acceptance that the paper makes is confirmed."
    ]


def test_the_prompts_that_would_decide_half_of_the_outcomes_are_estimated():
    """An interval four times as wide as the distance from the bound is half as wide from four times the prompts on."""

    def near(value: float, prompts: int, x: float) -> Point:
        values = {"speedup": Estimate(value, value - 0.1, value + 0.1), "prompts": prompts}
        return replace(point(value, settings={"alpha": x}), values=values)

    suite = Suite(value="speedup", at_least=1.0)
    (one,) = outcomes_of(suite, [near(1.05, 10, 1.0)])
    assert one.prompts_needed == 40
    assert outcome_lines([one])[0].endswith(
        "inconclusive with a trend for it (difference +0.05); about 40 prompts would decide half of the inconclusive ones"
    )
    (three,) = outcomes_of(suite, [near(1.05, 10, 1.0), near(0.98, 10, 2.0), near(1.5, 10, 3.0), near(0.96, 10, 4.0)])
    assert three.prompts_needed == 63 and "about 63 prompts" in outcome_lines([three])[0]
    (decided,) = outcomes_of(suite, [near(1.5, 10, 1.0)])
    assert decided.prompts_needed is None and "prompts" not in outcome_lines([decided])[0]


def test_swept_numbers_are_compared_across_runs_of_one_place():
    """Contrastive decoding has a baseline for each mu, and so a run for each."""
    found = [point(1.5, "a", x=0.1), point(1.1, "b", x=0.5), point(0.5, "c", x=0.1, T=0.0)]
    keys = {"at_most": {"method": "m", "x": 0.1}}
    suite = Suite(value="speedup", **keys)
    suite.expect = (replace(suite.expect[0], of={"method": "m", "x": 0.5}),)
    (verdict,) = outcomes_of(suite, found)
    assert [each.outcome for each in verdict.outcomes] == [Outcome.confirmed]
    assert verdict.outcomes[0].measured.comparison.value == pytest.approx(-0.4)
    assert not outcomes_of(suite, found[:1])[0].outcomes


def test_an_estimate_without_an_interval_decides_nothing():
    few = [replace(point(1.5), values={"speedup": Estimate(1.5, None, None)})]
    for keys in ({"at_least": 1.0}, {"at_most": 1.0}, {"near": 1.0, "margin": 0.1}):
        assert outcome(*few, **keys) == Outcome.undecided
        assert counted(few, **keys) == ["Not counted: 1 (no interval or no difference)."]
    plain = [replace(point(1.5), values={"accepted_length": 1.5})]
    assert outcome(*plain, value="accepted_length", at_least=1.0) == Outcome.undecided, "a number of unknown precision"


def test_values_that_are_equal_on_every_prompt_decide_nothing():
    same = [replace(point(1.5), values={"speedup": Estimate(1.0, 1.0, 1.0)})]
    assert outcome(*same, at_least=1.0) == outcome(*same, at_most=1.0) == Outcome.undecided


def test_counts_of_two_methods_are_compared_on_the_same_prompts(tmp_path):
    """Tokens per round, whose difference has an interval from the records of a run."""
    rows = [
        record(name, str(i), tokens=5 * (accepted + 1), rounds=[round_of(4, accepted)] * 5)
        for i in range(8)
        for name, accepted in (("m", 3 - i % 2), ("n", 2))
    ]
    write_run(tmp_path, rows)
    compare = Comparisons([replace(run_summary(), run="r", folder=str(tmp_path), spec=spec_of(tmp_path))])
    m, n = (replace(point(1.0, method=name), values={"accepted_length": 1.0}) for name in ("m", "n"))
    found = compare.between(m, n, "accepted_length")
    assert found.equal == 0.0 and found.low < found.value < found.high
    alone = compare.estimate(m, "accepted_length")
    assert alone.low < alone.value < alone.high


def two_temperatures(folder, prompts: str = "p"):
    """Return the comparisons of two runs of a method and its points at T = 0 and T = 1: more tokens at T = 0 per prompt."""
    summaries, found = [], []
    for T, gain in ((0.0, 1), (1.0, 0)):
        (run := folder / f"T{T:g}").mkdir()
        lengths = {str(i): i % 4 * 2 + gain + (i % 3 == 0) * (1 - gain) for i in range(12)}
        left_out = "0" if T else "1"  # each fails on another prompt
        rows = [
            record("m", i, tokens=5 * (n + 1), rounds=[round_of(8, n)] * 5) for i, n in lengths.items() if i != left_out
        ]
        write_run(run, rows)
        spec = spec_of(run)
        data = replace(spec.task.data, prompts_sha256=prompts if T else "p")
        spec = replace(spec, task=replace(spec.task, data=data), decoding=replace(spec.decoding, temperature=T))
        summaries.append(replace(run_summary(), run=run.name, folder=str(run), spec=spec))
        found.append(point(1.0, run.name, T=T, values={"accepted_length": 1.0}))
    return Comparisons(summaries), found


def test_counts_of_two_temperatures_are_compared_on_the_prompts_that_both_completed(tmp_path):
    """Prompts differ more than the temperatures do: only the paired interval excludes 0. Other prompts are independent."""
    compare, found = two_temperatures(tmp_path)
    paired = compare.between(*found, "accepted_length")
    common = [i for i in range(12) if i not in (0, 1)]
    assert paired.value == pytest.approx(sum(1 - (i % 3 == 0) for i in common) / len(common))
    assert paired.low > 0.0
    (tmp_path / "other").mkdir()
    compare, found = two_temperatures(tmp_path / "other", prompts="others")
    assert compare.between(*found, "accepted_length").low < 0.0


@pytest.mark.parametrize("value", ["length_variation", "length_variance_by_prompt"])
def test_variations_of_two_temperatures_are_compared_on_the_same_prompts(value, tmp_path):
    """Figure 4 of Polybasic: these metrics have intervals of their own, which the comparison does not use."""
    compare, found = two_temperatures(tmp_path)
    greedy, sampled = (replace(each, values={value: Estimate(1.0, -9.0, 9.0)}) for each in found)
    both = np.arange(2, 12)
    lengths = both % 4 * 2 + 1 + np.array([both % 3 == 0, np.ones(10)])  # (T = 1 and T = 0, prompts)
    ours, theirs = lengths.var(1) if value == "length_variance_by_prompt" else lengths.std(1) / lengths.mean(1)
    difference = compare.between(sampled, greedy, value)
    assert difference.value == pytest.approx(ours - theirs)
    assert difference.low < difference.value < difference.high and difference.high - difference.low < 18.0


def test_methods_of_one_run_are_compared_on_the_same_prompts(tmp_path):
    """Prompts differ in speed much more than the methods do, so that the two intervals overlap and the paired one decides."""
    seconds = {"ar": 1.0, "m": 0.8, "n": 0.9}
    rows = [record(name, str(i), seconds=s * (1 + 3 * i)) for name, s in seconds.items() for i in range(12)]
    write_run(tmp_path, rows)
    summary = replace(run_summary(*map(method_summary, seconds)), run="r", folder=str(tmp_path))
    m, n = point(1.25), point(1.1, method="n")
    for value in ("end_to_end_speedup", "papers_speedup"):
        values = {value: Estimate(1.2, 0.8, 1.6)}
        ratio = Comparisons([summary]).between(replace(m, values=values), replace(n, values=values), value)
        assert ratio.value == pytest.approx(0.9 / 0.8) and ratio.equal == 1.0 and ratio.low > 1.0, value
    spread = (
        replace(m, values={"speedup": Estimate(1.25, 0.9, 1.7)}),
        replace(n, values={"speedup": Estimate(1.1, 0.8, 1.5)}),
    )
    assert Comparisons().between(*spread, "speedup").low < 0.0, "independent estimates do not decide"
    assert Comparisons([summary]).between(*spread, "speedup").low > 1.0


def test_a_curve_that_never_reaches_the_quality_ranks_below_one_that_does():
    suite = read_suite("cascade-table2")
    reached, not_reached = CurveChoice(1.2, 1.1, 1.3), CurveChoice(None, 0.0, 0.0)

    def point(method: str, matching: CurveChoice) -> Point:
        place = {"pair": "t5", "task": "wmt", "T": 1.0, "method": method, "run": "run", "settings": {"bonus": "paper"}}
        return Point(**place, values={"matching": matching})

    lower = point("cascade-opt", not_reached)
    (verdict, *_) = outcomes_of(suite, [lower, point("cascade-diff", reached)])
    assert Outcome.contradicted in [each.outcome for each in verdict.outcomes]
    (both, *_) = outcomes_of(suite, [lower, point("cascade-diff", not_reached)])
    assert not {Outcome.contradicted, Outcome.confirmed} & {each.outcome for each in both.outcomes}


@pytest.mark.parametrize(
    ("speedup", "found"), [(0.95, Outcome.other), (1.05, Outcome.expected), (0.8, Outcome.contradicted)]
)
def test_an_expectation_within_the_noise_is_neither_confirmed_nor_contradicted(speedup, found):
    """The interval is +- 0.1."""
    run = llama_vicuna_run(value=speedup, methods=("we-se(gamma=[1, 1])",))
    (verdict, *_) = outcomes_of(read_suite("se-table2"), points([run]))
    assert {each.outcome for each in verdict.outcomes} == {found}


def test_expectations_do_not_compare_machines():
    """The best of several settings is chosen among runs of one machine."""
    expected = Expectation(
        says="at least 1", of={"method": "sd"}, value="speedup", at_least=1.0, take="best", by=("pair",)
    )

    def point(speedup: float, machine: str, run: str) -> Point:
        place = {"pair": "p", "task": "t", "T": 0.0, "method": "sd"}
        return Point(
            **place, run=run, machine=machine, values={"speedup": Estimate(speedup, speedup - 0.1, speedup + 0.1)}
        )

    here = [point(0.5, "a", "one"), point(2.0, "a", "two")]
    assert expectations_of(expected, here) == [Outcome.confirmed]
    there = [point(0.5, "a", "one"), point(2.0, "b", "two")]
    assert sorted(expectations_of(expected, there)) == [Outcome.confirmed, Outcome.contradicted]


def expectations_of(expected, points):
    class OneExpectation:
        expect = (expected,)

    return [each.outcome for verdict in outcomes_of(OneExpectation(), points) for each in verdict.outcomes]


def test_only_points_with_enough_score_are_compared():
    def with_score(score: float, calls: float, **place) -> Point:
        values = {"score": score, "target_calls": Estimate(calls, calls - 0.01, calls + 0.01)}
        return replace(point(1.0, **place), values=values)

    found = [with_score(0.5, 0.1, x=1.0), with_score(0.8, 0.6, x=2.0), with_score(0.7, 0.4, method="n")]
    keys = {"value": "target_calls", "at_least": {"method": "n"}, "take": "lowest"}
    assert outcome(*found, **keys) == Outcome.contradicted
    assert outcome(*found, at_score_of={"method": "n"}, **keys) == Outcome.confirmed


def test_each_bound_of_an_independent_difference_is_of_the_bounds_that_lower_or_raise_it():
    """Zou & Donner 2008, for intervals that are not symmetric."""
    found = independent(Estimate(2.0, 1.0, 2.5), Estimate(1.0, 0.9, 1.5))
    assert found.value == 1.0
    assert found.low == pytest.approx(1.0 - np.hypot(1.0, 0.5)) and found.high == pytest.approx(
        1.0 + np.hypot(0.5, 0.1)
    )
