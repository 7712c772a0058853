"""Notes and warnings of reports, conditions in captions, and lines on methods."""

from dataclasses import replace

import pytest

from specbench.reporting.notes import PARALLEL, common_notes, notes, short_notes
from specbench.reporting.setup_lines import conditions, method_lines
from specbench.runs.run_spec import RunSpec
from tests.fixtures.console import specbench
from tests.fixtures.pages import only_run
from tests.fixtures.summaries import method_summary, run_summary, spec_table, summary_of_all_metrics


def drifting(*drifts: float) -> list[str]:
    rows = [method_summary(f"m{i}", values={"drift": drift}) for i, drift in enumerate(drifts)]
    return [note.line for note in notes(run_summary(*rows)) if note.kind == "drift"]


def test_a_warning_names_every_method_that_it_is_about():
    (note,) = drifting(0.2, 0.0, -0.3)
    assert note.endswith("machine: m0 +20.0%, m2 -30.0%")
    assert drifting(0.05, -0.05) == []


def test_a_warning_about_many_methods_names_the_largest_values():
    (note,) = drifting(0.2, -0.5, 0.3, 0.4, 0.15)
    assert note.endswith("machine: m1 -50.0%, m3 +40.0%, m2 +30.0% and 2 more methods")


def about_data(heads: dict, **data: object) -> str:
    """Return the notes of a run on these samples, with these heads."""
    summary = run_summary(method_summary())
    table = summary.spec.to_toml()
    table["task"]["data"] |= {"samples": 3, "total": 9, **data}
    table["pair"]["heads"] = heads
    return "\n".join(note.line for note in notes(replace(summary, spec=RunSpec.from_toml(table))))


def test_only_published_data_are_compared_with_published_scores():
    assert "! 3 of 9 samples: not comparable with published scores" in about_data({}, revision="abc")
    own = about_data({}, source="mine.jsonl")
    assert "3 of 9 samples." in own and "published" not in own


def test_a_head_was_not_trained_on_the_first_rows_if_only_those_are_measured():
    head = {"source": "here", "kind": "eagle", "base": "target", "trained_on": ["d"], "skipped": 3}
    assert "was trained on this data set" not in about_data({"eagle": head})
    assert "except the first 3 rows" in about_data({"eagle": head}, samples=4)
    assert "except the first 3 rows" in about_data({"eagle": head}, drawn=True)
    assert "head eagle was trained on this data set" in about_data({"eagle": head | {"skipped": 0}})


def parallel_run(**placements):
    """Return a run with parallel models on `cuda`, those in `placements` elsewhere."""
    table = spec_table(["we-p"])
    table["methods"]["we-p"] |= {"options": {"name": "parallel"}, "traits": {"roles": ["draft", "target"]}}
    for role, place in placements.items():
        table["pair"]["models"][role] = {**table["pair"]["models"][role], "placement": place}
    table["device"] = "cuda"
    return replace(run_summary(method_summary("we-p")), spec=RunSpec.from_toml(table))


@pytest.mark.parametrize(
    ("placements", "said"),
    [
        ({}, "share one device, cuda:0"),
        ({"target": "cuda:0"}, "share one device, cuda:0"),
        ({"target": "cuda:1"}, "are on 2 devices: draft on cuda:0; target on cuda:1"),
    ],
)
def test_what_parallel_models_can_show_depends_on_their_placement(placements, said):
    run = parallel_run(**placements)
    for lines in (notes(run), common_notes([run, run])):
        (note,) = [line.text for line in lines if line.kind == PARALLEL]
        assert said in note and ("cannot show" in note) == ("share" in said)


def test_a_run_without_parallel_models_has_no_note_about_them():
    assert not [line for line in notes(run_summary(method_summary("sd"))) if line.kind == PARALLEL]


def test_a_method_that_declares_no_distribution_is_listed_as_undeclared():
    found = run_summary(method_summary("sd"))
    assert [line.rpartition("; ")[2] for line in method_lines(run_of(found, None))][1] == "undeclared"
    assert [line.rpartition("; ")[2] for line in method_lines(run_of(found, False))][1] == "not lossless"


def run_of(summary, lossless):
    """Return a run, as a list, in which `sd` declares this."""
    spec = {**summary.spec.methods, "sd": replace(summary.spec.methods["sd"], lossless=lossless)}
    return [replace(summary, spec=replace(summary.spec, methods=spec))]


@pytest.mark.parametrize("count", [2, 4])
def test_help_for_a_full_report_is_about_the_reported_runs(tmp_path, count):
    """More than three folders are not named: the same command shows all tables."""
    drifts = {f"sd{i}": {"drift": 0.5, "cut_prompts": 0.5, "cut_by_length": 0.5} for i in range(2)}
    cuts = dict.fromkeys("abc", 0.2)
    rows = [
        method_summary(name, values=values, window_cuts=cuts, failed=1, first_error="x")
        for name, values in drifts.items()
    ]
    runs = [replace(run_summary(*rows), folder=f"{tmp_path}/else where/{i}", complete=False) for i in range(count)]
    (rest,) = (note.help for note in short_notes(runs) if "more warning" in note.text)
    named = " ".join(f"'{each.folder}'" for each in runs)
    assert rest == ("specbench report FOLDERS --full" if count > 3 else f"specbench report {named} --full")


def test_conditions_of_several_runs_name_what_differs():
    runs = [summary_of_all_metrics(pair) for pair in ("a", "b")]
    assert conditions(runs).startswith("pair a / b, task gsm8k@2-A, T = 1, ")
    assert conditions([summary_of_all_metrics(str(i)) for i in range(5)]).startswith("5 pairs, task gsm8k@2-A")
    assert "not real: dummy" in conditions([summary_of_all_metrics(simulated="dummy")])


def test_what_differs_from_the_presets_is_in_every_format(tmp_path):
    changed = ("--top-k", 5, "--temperature", 1, "--set", "method.cascade-diff.target.alpha=0.123")
    few = ("-p", "tiny", "-t", "gsm8k", "--data", "synthetic", "-n", 2, "--repeats", 1, "--max-new-tokens", 8)
    shown = specbench("run", "-m", "cascade-diff", *few, *changed, cwd=tmp_path).stdout
    run = only_run(tmp_path / "results")
    texts = [shown] + [
        specbench("report", run, "-f", form, cwd=tmp_path).stdout for form in ("md", "latex", "html", "json")
    ]
    for text in texts:
        plain = " ".join(text.replace("\\_", "_").split())
        assert "alpha = 0.123" in plain and "top-k = 5" in plain


@pytest.mark.parametrize(("rate", "is_named"), [(None, True), (0.5, False)])
def test_a_draft_that_never_drafted_gets_a_warning(rate, is_named):
    table = spec_table(["sd"])
    table["methods"]["sd"]["traits"] = {"roles": ["draft", "target"], "draft_length": "5"}
    values = {} if rate is None else {"acceptance_rate": rate}
    summary = replace(run_summary(method_summary("sd", values=values, tokens=50)), spec=RunSpec.from_toml(table))
    summary = replace(summary, environment={**summary.environment, "translations": {"draft": "other tokens"}})
    lines = [note.line for note in notes(summary)]
    assert any("no draft token of sd was tested: draft may be unable to encode" in line for line in lines) == is_named
