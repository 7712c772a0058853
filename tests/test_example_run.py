"""The example outputs of the README and the tutorial are those of the run in results/readme/run.zip.

If not, run `make readme`.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from scripts import example_run
from tests.fixtures.console import specbench

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.\d+")


@cache
def printed(*words, cwd):
    """What a command prints on a terminal of the pages' width, in this process; once for both pages."""
    done = specbench(*words, cwd=cwd)
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


@pytest.fixture(scope="module")
def folder():
    with example_run.runs_of(ROOT / example_run.ARCHIVE) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(example_run.COLUMNS))
        patch.setattr(example_run, "specbench", printed)
        yield folder


def rows(text: str) -> list[str]:
    """Return the rows of tables that have numbers."""
    return [line for line in text.splitlines() if re.match(r"  \S+ +.*\d", line)]


@pytest.mark.parametrize("page", example_run.PAGES, ids=str)
def test_a_page_shows_the_numbers_of_the_run(folder, page):
    shown = dict(example_run.shown(ROOT / page))
    assert example_run.COMMAND in shown
    for command, text in shown.items():
        assert rows(text) == rows(example_run.output_of(command, folder)), command
    assert len(rows(shown[example_run.COMMAND])) >= 5


def test_the_text_of_the_tutorial_quotes_numbers_of_the_run():
    section = TUTORIAL[TUTORIAL.index("## Measure methods") : TUTORIAL.index("## Find the results again")]
    shown = " ".join(text for _, text in example_run.shown(ROOT / "docs/tutorial.md"))
    text = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    quoted = set(NUMBER.findall(text))
    assert len(quoted) >= 5
    assert quoted <= set(NUMBER.findall(shown))
