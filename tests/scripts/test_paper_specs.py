"""One run for each method, architecture and task of the papers' suites, with toy models."""

from scripts.paper_specs import covering, walk
from specbench.config.suite import TINY, suites

PAPERS = [name for name in suites() if not name.endswith(TINY) and name + TINY in suites()]


def test_every_method_architecture_and_task_of_the_papers_decodes(tmp_path):
    chosen = covering(PAPERS, tmp_path)
    methods = {method for suite in chosen for line in suite.grid for method in line.methods}
    assert {"we-p", "seq-cascade", "sprinter", "polybasic", "cd-se"} <= methods
    walked = [walk(suite, tmp_path) for suite in chosen]
    assert [text for each in walked for text in each.failures] == []
    assert sum(each.generations for each in walked) >= 2 * len(methods)
