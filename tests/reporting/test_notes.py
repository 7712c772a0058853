"""Warnings below the tables of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.config.suite import read_suite
from specbench.reporting import escaping
from specbench.reporting.notes import notes
from specbench.runs.run_spec import RunSpec
from specbench.runs.suite_index import Index
from tests.fixtures.summaries import method_summary, run_summary

PAGES = sorted((Path(__file__).parents[2] / "results" / "suites").glob("*/README.md"))


def drifting(*drifts: float) -> list[str]:
    rows = [method_summary(f"m{i}", values={"drift": drift}) for i, drift in enumerate(drifts)]
    return [note for note in notes(run_summary(*rows)) if note.startswith("! drift")]


def test_a_warning_names_every_method_that_it_is_about():
    (note,) = drifting(0.2, 0.0, -0.3)
    assert note.endswith("machine: m0 +20.0%, m2 -30.0%")
    assert drifting(0.05, -0.05) == []


def test_a_warning_about_many_methods_names_the_largest_values():
    (note,) = drifting(0.2, -0.5, 0.3, 0.4, 0.15)
    assert note.endswith("machine: m1 -50.0%, m3 +40.0%, m2 +30.0% and 2 more methods")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_expectation_was_compared_on_the_pages_of_the_tiny_suites(page):
    text = page.read_text(encoding="utf-8")
    assert "not measured side by side" not in text and "! no value" not in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_shows_its_suite_as_it_is_defined_or_says_that_it_does_not(page):
    suite, index = read_suite(page.parent.name), Index.of(page.parent.name, page.parents[2])
    text = " ".join(page.read_text(encoding="utf-8").split())
    if index.definition != suite.definition:
        assert "measured with an earlier definition of the suite" in text
        return
    assert {(run.pair, run.task) for run in index.done} == {(pair, task) for _, pair, task in suite.parts()}
    assert [each.says for each in suite.expect if escaping.markdown(each.says) not in text] == []


def about_data(heads: dict, **data: object) -> str:
    """Return the notes of a run on these samples, with these heads."""
    summary = run_summary(method_summary())
    table = summary.spec.to_toml()
    table["task"]["data"] |= {"samples": 3, "total": 9, **data}
    table["pair"]["heads"] = heads
    return "\n".join(notes(replace(summary, spec=RunSpec.from_toml(table))))


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
