"""One run for each method, architecture and task of the papers' suites, with toy models."""

import re

import pytest

from scripts.paper_specs import RESULT, Walked, covering, report, walk
from specbench.features.suites.suite import TINY, read_suite, suites
from tests.fixtures.plans import named_on_h200

PAPERS = [name for name in suites() if not name.endswith(TINY) and name + TINY in suites()]


@pytest.mark.slow
def test_every_method_architecture_and_task_of_the_papers_decodes(tmp_path):
    chosen = covering(PAPERS, tmp_path)
    methods = {method for suite in chosen for line in suite.grid for method in line.methods}
    assert {"we-p", "seq-cascade", "sprinter", "polybasic", "cd-se"} <= methods
    walked = [walk(suite, tmp_path) for suite in chosen]
    assert [text for each in walked for text in each.failures] == []
    assert sum(each.generations for each in walked) >= 2 * len(methods)


def test_the_published_page_covers_every_run_of_every_suite():
    rows = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \| (\d+) \|", RESULT.read_text(encoding="utf-8"), re.M)
    assert [name for name, *_ in rows] == PAPERS
    for name, runs, generations, failures in rows:
        planned = len(named_on_h200(name))
        assert (int(runs), int(failures)) == (planned, 0), name
        assert int(generations) >= 2 * planned


def test_a_walk_of_one_suite_keeps_the_rows_and_failures_of_the_others():
    """Three suites, of which one fails twice and one once; the latter is walked again, without a failure."""
    first = report([
        Walked("se-fig4", runs=2, failures=["a: b", "c: two\nlines"]), Walked("se-fig5", runs=1, failures=["d"]),
        Walked("se-fig6", runs=3),
    ])  # fmt: skip
    again = report([Walked("se-fig5", runs=1)], first)
    assert again == first.replace("| se-fig5 | 1 | 0 | 1 |", "| se-fig5 | 1 | 0 | 0 |").replace("\n- se-fig5: d", "")
    assert "\n\n- se-fig4: a: b\n- se-fig4: c: two lines\n\n`{" in again


@pytest.mark.parametrize("name", [name for name in suites() if name.startswith("cascade-")])
def test_a_description_names_speculative_cascades_only_where_the_grid_has_them(name):
    suite = read_suite(name)
    methods = {method for line in suite.grid for method in line.methods}
    if "speculative cascade" in suite.description:
        assert any(method.startswith("cascade-") for method in methods)
    if "speculative decoding" in suite.description:
        assert "sd" in methods
