"""The conclusion of a run, sentence by sentence, on summaries whose answer is known."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import LengthPrediction
from specbench.analysis.ranking import Rank
from specbench.machine.hardware import ForwardCheck
from specbench.reporting import conclusion as conclusions
from specbench.reporting.formats.export import runs_csv, runs_json
from specbench.reporting.notes import notes
from specbench.runs.run_spec import RunSpec
from tests.fixtures.summaries import method_summary, run_summary, spec_table


def conclusion(summaries):
    """The sentences of a conclusion."""
    return list(map(str, conclusions.conclusion(summaries)))


def run_conclusion(summary):
    return list(map(str, conclusions.run_conclusion(summary)))


def headline(summaries):
    return list(map(str, conclusions.headline(summaries)))


def numbers(sentence):
    """Return the decimal numbers of a sentence, with their signs."""
    return [float(each) for each in re.findall(r"[-+]?\d+\.\d+", str(sentence))]


FIRST = Rank(1, 1)
AR = method_summary("ar", values={"tokens_per_second": 100.0}, rank=Rank(2, 2))


def sd(speedup=(1.31, 1.25, 1.37), name="sd", rank=FIRST, **changes):
    values = {
        "speedup": Estimate(*speedup),
        "tokens_per_second": 100.0 * speedup[0],
        "accepted_length": 2.62,
        "acceptance_rate": 0.71,
        "measured_over_corrected": 0.95,
        "cost_ratio": 0.16,
    }
    return method_summary(name, values=values, rank=rank, **changes)


def predicted(*speeds, spread=0.02):
    """Return predictions of draft lengths from 1 on, next to the measured length 3."""
    gains = [x / speeds[2] for x in speeds]
    return [
        LengthPrediction(k, Estimate(x, x - 0.1, x + 0.1), Estimate(gain, gain - spread, gain + spread))
        for k, (x, gain) in enumerate(zip(speeds, gains, strict=True), 1)
    ]


def run(*methods, lossless=("sd", "pld"), headline="strict", samples=10, **changes):
    """Return a run of ar and these methods."""
    table = spec_table([each.method for each in methods])
    table["task"]["data"] |= {"samples": samples, "total": samples * 10}
    for name, method in table["methods"].items():
        if name != "ar":
            method["lossless"] = name in lossless
            theory = {"formula": "speculation", "models": ["draft", "target"], "gamma": [3], "bonus": "exact"}
            method["traits"] |= {"draft_length": "3", "theory": theory}
    summary = run_summary(AR, *methods)
    return replace(summary, spec=RunSpec.from_toml(table), headline=headline, **changes)


def test_a_faster_lossless_method_is_named_with_its_speed_and_the_reason():
    first, reason, share, *_ = conclusions.run_conclusion(run(sd()))
    assert (first.kind, first.subject, numbers(first)) == ("speed", "sd", [1.31, 1.25, 1.37])
    assert "sd (draft length 3) is " in first.text and " as fast as ar " in first.text and "same output" in first.text
    assert (reason.kind, numbers(reason)) == ("round", [2.62, 0.71, 2.00]), "tokens, acceptance rate, tokens of ar"
    assert share.kind == "share of theory" and "95 %" in share.text


def test_a_slower_method_is_not_recommended():
    first, *_ = run_conclusion(run(sd((0.88, 0.85, 0.91), rank=Rank(2, 2))))
    assert first.startswith("sd (draft length 3) is slower than ar") and numbers(first) == [0.88, 0.85, 0.91]
    assert "same output" in first and "Do not use it" in first


def test_the_fastest_of_slower_methods_is_not_recommended():
    first, *_ = run_conclusion(run(sd((0.83, None, None)), sd((0.71, None, None), "pld")))
    assert first.startswith("No method is faster than ar") and "the fastest is sd (draft length 3): 0.83x" in first
    assert "pld" not in first and "same output" in first


def test_a_speed_that_equals_the_baselines_is_not_called_faster():
    first, *_ = run_conclusion(run(sd((1.02, 0.97, 1.06))))
    assert first.startswith("The speeds of sd (draft length 3) and ar cannot be distinguished: 1.02x [0.97, 1.06]")


def test_methods_that_cannot_be_distinguished_are_named_together():
    two = (sd(rank=Rank(1, 2, ("pld",))), sd((1.29, 1.2, 1.38), "pld", Rank(1, 2, ("sd",))))
    first, *_ = run_conclusion(run(*two))
    assert "It cannot be distinguished from pld (1.29x [1.20, 1.38])." in first


def test_methods_with_disjoint_intervals_are_not_called_alike():
    """A test of all pairs at once may miss a difference that the two intervals show."""
    two = (sd(rank=Rank(1, 2, ("pld",))), sd((0.65, 0.55, 0.82), "pld", Rank(1, 2, ("sd",))))
    assert not any("cannot be distinguished from pld" in sentence for sentence in run_conclusion(run(*two)))


def test_too_few_prompts_to_rank_are_named_with_the_number_that_would_do():
    found = run(sd(rank=None), sd((1.29, 1.2, 1.38), "pld", None))
    sentences = run_conclusion(replace(found, methods=[replace(each, prompts=6) for each in found.methods]))
    assert any("6 prompts are too few to rank 3 methods; help: -n 7" in sentence for sentence in sentences)
    assert not any("cannot be distinguished" in sentence for sentence in sentences)


def test_methods_whose_ranks_overlap_may_be_distinguished():
    """`pld` differs from `sd`, and a third method from neither."""
    two = (sd(rank=Rank(1, 2, ("noisy",))), sd((1.2, 1.15, 1.25), "pld", Rank(2, 3, ("noisy",))))
    first, *_ = run_conclusion(run(*two))
    assert first.startswith("sd (draft length 3), the fastest method, is 1.31x")
    assert "cannot be distinguished" not in first


def test_a_faster_method_that_changes_the_output_is_reported_with_its_score():
    lossy = sd((1.9, 1.8, 2.0), "lossy", score_change=Estimate(-0.031, -0.06, -0.002))
    sentences = conclusions.run_conclusion(run(sd(rank=Rank(2, 2)), lossy))
    assert sentences[0].text.startswith("sd (draft length 3), the fastest lossless method, is 1.31x")
    (found,) = (each for each in sentences if each.kind == "fastest lossy method")
    assert found.subject == "lossy" and "strict" in found.text
    assert numbers(found) == [1.90, 1.80, 2.00, -3.1, -6.0, -0.2], "its speed, and the change of its score"


def test_methods_that_are_not_lossless_are_compared_with_the_fastest_lossless_one():
    one = sd((1.4, 1.3, 1.5), "lossy", score_change=Estimate(-0.031, -0.06, -0.002))
    one.values["over_lossless"] = Estimate(1.07, 1.01, 1.13)
    other = sd((1.2, 1.1, 1.3), "typical")
    other.values["over_lossless"] = Estimate(0.92, 0.85, 0.99)
    (found,) = (each for each in conclusions.run_conclusion(run(sd(), one, other)) if each.kind == "against lossless")
    assert found.text.startswith("Compared with sd, the fastest lossless method, end to end: lossy is 1.07x")
    assert numbers(found) == [1.07, 1.01, 1.13, -3.1, -6.0, -0.2, 0.92, 0.85, 0.99]
    assert found.text.endswith("Faster: lossy.")
    one.values["over_lossless"] = Estimate(1.07, 0.99, 1.15)
    assert any(text.endswith("No gain in speed is shown.") for text in map(str, run_conclusion(run(sd(), one, other))))


def test_without_a_lossless_method_the_change_of_the_score_is_reported():
    lossy = sd((1.9, 1.8, 2.0), "lossy", score_change=Estimate(-0.031, -0.06, -0.002))
    first, second, *_ = run_conclusion(run(lossy))
    assert "lossy (draft length 3) is 1.90x" in first and "same output distribution" not in first
    assert "differs from the baseline's: strict" in second and numbers(second) == [-3.1, -6.0, -0.2]


@pytest.mark.parametrize(("score", "shown"), [(0.0, "0"), (1.0, "100")])
def test_scores_that_are_all_0_or_all_100_are_said_to_show_nothing(score, shown):
    scored = {"quality": {"strict": Estimate(score, None, None)}}
    summary = run(sd(**scored))
    summary = replace(summary, methods=[replace(AR, **scored), *summary.methods[1:]])
    assert any(f"All methods score {shown} on strict" in each for each in run_conclusion(summary))


@pytest.mark.parametrize(
    ("speeds", "spread", "words"),
    [
        (
            (1.1, 1.2, 1.3, 1.4, 1.5),
            0.02,
            "A draft length of 5 is predicted to be 1.15x [1.13, 1.17] as fast as 3; help: --gamma 5",
        ),
        ((1.1, 1.2, 1.3, 1.31, 1.2), 0.005, "No other draft length from 1 to 5 is predicted to be clearly faster"),
        ((1.1, 1.2, 1.3, 1.35, 1.2), 0.04, "No other draft length from 1 to 5 is predicted to be clearly faster"),
    ],
)
def test_the_best_draft_length_is_predicted(speeds, spread, words):
    sentences = run_conclusion(run(sd(predicted_lengths=predicted(*speeds, spread=spread))))
    assert any(each.startswith(words) for each in sentences), sentences


def test_no_draft_length_is_faster_than_the_baseline_if_none_is_predicted_or_measured_to_be():
    """The prediction is silent where the measured speedup contradicts it."""
    slow = predicted(0.9, 0.8, 0.7, 0.6, 0.5)
    words = "No draft length from 1 to 5 is predicted to be faster than ar."
    assert words in run_conclusion(run(sd((0.7, 0.65, 0.75), predicted_lengths=slow)))
    assert words not in run_conclusion(run(sd((1.03, 1.01, 1.05), predicted_lengths=slow)))


@pytest.mark.parametrize(
    ("total", "prompts", "words"),
    [
        (3, 3, "Intervals need at least 5 different prompts; rows.jsonl has 3 prompts"),
        (100, 3, "Intervals need at least 5 different prompts; help: -n 20"),
        (6, 6, "6 prompts are too few to rank 3 methods; 7 are needed, and rows.jsonl has 6 prompts"),
        (7, 6, "6 prompts are too few to rank 3 methods; help: -n 7, or more for small differences"),
    ],
)
def test_more_prompts_are_advised_only_if_the_data_have_them(total, prompts, words):
    found = run(sd(rank=None), sd((1.29, 1.2, 1.38), "pld", None), samples=prompts)
    data = replace(found.data, source="rows.jsonl", total=total)
    spec = replace(found.spec, task=replace(found.spec.task, data=data))
    methods = [replace(each, prompts=prompts) for each in found.methods]
    assert words in run_conclusion(replace(found, spec=spec, methods=methods))


def test_an_incomplete_run_and_few_prompts_are_mentioned():
    sentences = run_conclusion(run(sd((1.3, None, None), prompts=3), complete=False, samples=3))
    assert sentences[0] == "The run is incomplete; these results are preliminary."
    assert "at least 5 different prompts" in sentences[-1]


def test_simulated_models_keep_their_label_and_get_no_words_on_quality():
    table = spec_table(["sd"], simulated="dummy")
    scored = {"quality": {"strict": Estimate(0.0, None, None)}, "label": "sd (dummy)"}
    summary = replace(run_summary(AR, sd(**scored)), spec=RunSpec.from_toml(table), headline="strict")
    sentences = run_conclusion(summary)
    assert sentences[0].startswith("sd (dummy) is 1.31x")
    assert not any("score" in each for each in sentences)


def test_a_baseline_alone_has_no_conclusion():
    assert conclusion([run_summary(AR)]) == []


def test_several_runs_are_a_sentence_per_method_with_its_range():
    runs = [run(sd(speedup)) for speedup in ((1.31, 1.25, 1.37), (0.9, 0.8, 0.95), (1.1, 0.9, 1.3))]
    tables = [
        replace(each.spec, task=replace(each.spec.task, name=name)) for each, name in zip(runs, "abc", strict=True)
    ]
    found = conclusion([replace(each, spec=spec) for each, spec in zip(runs, tables, strict=True)])
    (sentence,) = found
    assert "faster than ar in 1 of 3 runs, and significantly slower in 1." in sentence
    assert "0.90x (b) to 1.31x (a)" in sentence and "same output" in sentence


def on_tasks(*runs):
    """Return runs on the tasks a, b, ... ."""
    return [
        replace(each, spec=replace(each.spec, task=replace(each.spec.task, name=name)))
        for each, name in zip(runs, "abcdef", strict=False)
    ]


def test_several_runs_of_a_lossy_method_have_the_range_of_its_scores():
    def lossy(change, low=1.8):
        return sd((1.9, low, 2.0 if low else None), "lossy", score_change=change)

    changes = Estimate(-0.031, -0.06, -0.002), Estimate(0.01, None, None), None
    runs = on_tasks(
        *(run(sd(), lossy(each), headline=name) for each, name in zip(changes, ("strict", "rouge2", ""), strict=True))
    )
    lossless, found = conclusion(runs)
    assert "score" not in lossless
    words = "The change of its score in 2 of 3 runs ranges from strict -3.1 [-6.0, -0.2] (a) to rouge2 +1.0 (b)."
    assert found.endswith(f" {words}")
    assert headline(runs) == [lossless, found], "the caption of a table says so too"
    words = "The change of its score in 1 of 2 runs is rouge2 +1.0 (b)."
    assert conclusion(runs[1:])[-1].endswith(f" {words}")
    without = conclusion(on_tasks(*(run(lossy(Estimate(-0.2, None, None), None)) for _ in range(2))))
    assert without[0].endswith("strict -20.0 (a) to strict -20.0 (b). Intervals need more prompts.")


def test_the_caption_of_one_run_has_the_score_of_a_lossy_method():
    lossy = sd((1.9, 1.8, 2.0), "lossy", score_change=Estimate(-0.031, -0.06, -0.002))
    assert headline([run(lossy)])[-1:] == ["Its score differs from the baseline's: strict -3.1 [-6.0, -0.2]."]


def test_synthetic_prompts_are_named_whether_or_not_the_speeds_differ():
    for speedup in ((1.31, 1.25, 1.37), (1.02, 0.97, 1.06), (0.88, 0.85, 0.91)):
        found = run(sd(speedup))
        data = replace(found.data, source="synthetic")
        spec = replace(found.spec, task=replace(found.spec.task, data=data))
        assert "on synthetic prompts" in run_conclusion(replace(found, spec=spec))[0]


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ([(1.3, 1.2, 1.4)] * 2, "sd is significantly faster than ar in both runs."),
        ([(0.8, 0.7, 0.9)] * 3, "sd is significantly slower than ar in all 3 runs."),
        ([(1.0, 0.9, 1.1)] * 3, "sd is neither significantly faster nor slower than ar in any of 3 runs."),
    ],
)
def test_runs_with_one_outcome_are_counted_once(speedups, words):
    found, *_ = conclusion([run(sd(speedup)) for speedup in speedups])
    assert found.startswith(words)


def test_a_method_that_is_faster_in_no_run_has_a_reason():
    speedups = ((0.8, 0.7, 0.9), (1.0, 0.9, 1.1))
    speed, rounds = conclusions.conclusion(on_tasks(*(run(sd(speedup)) for speedup in speedups)))
    assert "slower than ar in 1 of 2 runs, and significantly faster in none." in speed.text
    assert "0.80x (a) to 1.00x (b)" in speed.text and "same output" in speed.text
    assert (rounds.kind, rounds.subject, numbers(rounds)) == ("losing rounds", "sd", [2.62, 2.62, 3.27])
    faster = conclusion(on_tasks(*(run(sd(speedup)) for speedup in (*speedups, (1.3, 1.2, 1.4)))))
    assert len(faster) == 1


def test_several_runs_without_intervals_say_so():
    (found,) = conclusion([run(sd((2.5, None, None))), run(sd((3.1, None, None)))])
    assert "2.50x (gsm8k) to 3.10x (gsm8k)" in found and "significantly" not in found
    assert found.endswith("Intervals need more prompts.")


def large(share, parameters=86_000_000, read=13.7e9, checks=None):
    """Return a run whose baseline has this many parameters in float32 and reaches this share of the bandwidth."""
    found = run(sd(), headline="")
    sizes = {"parameters": parameters, "forward_bytes": 4.0 * parameters}
    models = {role: replace(model, **sizes) for role, model in found.models.items()}
    environment = {**found.environment, "copy_bytes_per_second": 10e9, "forward_checks": checks or {}}
    if read:
        environment["read_bytes_per_second"] = read
    base = replace(AR, values={**AR.values, "bound_share": share})
    return replace(
        found, environment=environment, methods=[base, *found.methods[1:]],
        spec=replace(found.spec, pair=replace(found.spec.pair, models=models)),
    )  # fmt: skip


def slow_baseline(sentences):
    """Return the only sentence on a slow baseline: its factor, and its text."""
    (found,) = (each for each in sentences if each.kind == "slow baseline")
    return round(found.values["ar"], 2), found.text


def test_a_slow_baseline_is_named_right_after_the_headline():
    sentences = conclusions.run_conclusion(large(0.44))
    assert [each.kind for each in sentences[:2]] == ["speed", "slow baseline"]
    factor, text = slow_baseline(sentences)
    assert factor == 2.27 and numbers(text) == [2.27, 6.0, 13.7]
    assert "44 % of the measured read bandwidth" in text and text.endswith("with 86M parameters.")
    assert text in headline([large(0.44)]), "the caption of a table says so too"
    assert not any("a faster engine" in note.text for note in notes(large(0.44))), "and no note repeats it"


@pytest.mark.parametrize("summary", [large(0.9), large(0.3, parameters=2_000_000), large(None)])
def test_no_speedup_is_called_overstated_over_a_fast_or_small_baseline(summary):
    assert not any("overstated" in sentence for sentence in run_conclusion(summary))


@pytest.mark.parametrize(("read", "kind"), [(13.7e9, "read"), (None, "copy")])
def test_a_small_baseline_below_half_of_the_bandwidth_has_a_note(read, kind):
    warning = f"! ar reaches 30% of the measured {kind} bandwidth; a faster engine would reduce the speedups over it"
    assert warning in [note.line for note in notes(large(0.3, parameters=2_000_000, read=read))]


def test_a_run_without_read_bandwidth_is_judged_by_the_copy_bandwidth():
    factor, text = slow_baseline(conclusions.run_conclusion(large(0.44, read=None)))
    assert factor == 2.27 and "44 % of the measured copy bandwidth (4.4 of 10.0 GB/s)" in text


def test_a_baseline_slower_than_transformers_is_named_with_the_ratio_of_their_times():
    slower = {"target": ForwardCheck(64, 0.040, 0.060)}
    words = "takes 1.50 times as long for a forward of one token as Transformers"
    factor, small = slow_baseline(conclusions.run_conclusion(large(0.9, parameters=2_000_000, checks=slower)))
    assert factor == 1.5 and f": ar {words}" in small and "bandwidth" not in small
    factor, both = slow_baseline(conclusions.run_conclusion(large(0.44, checks=slower)))
    assert factor == 2.27 and f"with 86M parameters, and {words}" in both and "44 %" in both


def test_json_and_csv_have_the_factor_of_a_slow_baseline():
    slow, fast = json.loads(runs_json([large(0.5), large(0.9)]))
    assert slow["slow_baseline"]["factor"] == 2.0
    assert slow["slow_baseline"]["bandwidth"] == {"bytes_per_second": 13.7e9, "kind": "read"}
    assert fast["slow_baseline"] is None
    rows = csv.DictReader(io.StringIO(runs_csv([large(0.5), large(0.9)])))
    assert [row["slow_baseline.factor"] for row in rows] == ["2.0", "2.0", "", ""]


def test_an_untimed_run_has_no_slow_baseline():
    summary = large(0.44)
    assert replace(summary, environment={**summary.environment, "untimed": True}).slow_baseline is None


def test_the_slowest_baseline_of_several_runs_is_named():
    runs = on_tasks(large(0.9), large(0.5), large(0.44))
    factor, text = slow_baseline(conclusions.conclusion(runs))
    assert factor == 2.27 and "in 2 of 3 runs" in text and f"read bandwidth in {runs[2].title} (6.0 of" in text
    assert conclusion(runs)[1] == text == headline(runs)[1]
    assert not any("overstated" in sentence for sentence in conclusion(runs[:1] * 2))


def test_no_method_is_measurably_faster_if_the_leading_one_equals_the_baseline_and_others_are_slower():
    first, *_ = run_conclusion(run(sd((0.98, 0.93, 1.03)), sd((0.58, 0.55, 0.61), "pld", Rank(3, 3))))
    assert first.startswith("No method is measurably faster than ar; sd (draft length 3) and ar cannot be")
    assert numbers(first) == [0.98, 0.93, 1.03]


def test_slower_methods_have_their_reason():
    text = " ".join(run_conclusion(run(sd(), sd((0.58, 0.55, 0.61), "pld", Rank(3, 3)))))
    assert "While decoding, these are slower than ar." in text
    assert "pld 2.62 (as long as 4.52)" in text


def test_predictions_of_a_disturbed_run_have_a_caveat():
    quiet = run(sd(predicted_lengths=predicted(1.1, 1.3, 1.31)))
    still = sd(predicted_lengths=predicted(1.1, 1.3, 1.31))
    still = replace(still, values={**still.values, "longest_generation": 50.0})
    caveat = "These predictions rest on the times of this run"
    assert caveat not in " ".join(run_conclusion(quiet))
    disturbed = " ".join(run_conclusion(run(still)))
    assert caveat in disturbed and "one generation of sd took 50 times as long per token as its median" in disturbed
