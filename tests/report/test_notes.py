"""Warnings below the tables of a run."""

from pathlib import Path

import pytest

from specbench.report.notes import notes
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
