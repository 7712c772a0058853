"""Files of figures, their names and formats, and Pareto fronts."""

import re

import pytest

from specbench.reporting.plots.figures import pareto
from tests.fixtures.console import specbench


@pytest.mark.parametrize(
    ("lower_x", "front"),
    [(True, [(1.0, 2.0), (2.0, 5.0)]), (False, [(2.0, 5.0), (3.0, 4.0)])],
)
def test_the_pareto_front_has_the_points_that_no_other_dominates(lower_x, front):
    assert pareto([(1.0, 2.0), (2.0, 5.0), (3.0, 4.0), (1.5, 1.0)], lower_x) == front


def test_plots_have_plain_names_and_the_chosen_formats(two_runs):
    folder, runs = two_runs
    assert "+" in runs[0].name
    specbench("report", *runs, "--plots", "plots", "--plot-format", "pdf,svg", cwd=folder)
    names = [path.name for path in (folder / "plots").iterdir()]
    assert {name.rpartition(".")[2] for name in names} == {"pdf", "svg"}
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)
    assert (folder / "plots" / f"{runs[0].name.replace('+', '-')}-speedup.pdf").read_bytes().startswith(b"%PDF")


def test_an_unknown_format_of_plots_is_an_error(two_runs):
    folder, runs = two_runs
    done = specbench("report", runs[0], "--plots", "plots", "--plot-format", "jpg", cwd=folder, code=2)
    assert "--plot-format jpg" in done.stderr and "pdf" in done.stderr
    done = specbench("report", runs[0], "--plot-format", "pdf", cwd=folder, code=2)
    assert "help: --plots FOLDER" in done.stderr
