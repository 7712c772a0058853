"""`run --suite NAME --refine N`: few prompts at every setting, then all prompts at the settings that may be chosen."""

import json

import pytest

from specbench.errors import ConfigError
from specbench.features.suites.frontier import CurveKey
from specbench.features.suites.refinement import coarse
from specbench.features.suites.suite import read_suite
from tests.fixtures import console

SUITE = """
paper = "SpecCascade"
shows = "own"
description = "a curve of lossy speculation"
frontier = true
[options]
temperature = 1.0
sample = 12
repeats = 1
gamma = [3]
max_new_tokens = 16
[[grid]]
methods = ["lossy"]
pairs = ["tiny-t5"]
tasks = ["xsum"]
over = { "lossy.target.alpha" = [0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0], "lossy.bonus" = ["deferred", "paper"] }
[[tables]]
rows = ["method", "variant"]
columns = ["task"]
values = ["matching", "best"]
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(SUITE)
    return path


def test_a_coarse_suite_has_few_prompts_and_one_repeat(suite):
    first = coarse(read_suite(str(suite)), 6)
    assert first.name == "own-coarse"
    assert {(line.options.sample, line.options.limit, line.options.repeats) for line in first.grid} == {(6, None, 1)}
    with pytest.raises(ConfigError, match="at least 5 prompts"):
        coarse(read_suite(str(suite)), 4)
    with pytest.raises(ConfigError, match="se-table2-tiny has no quality-latency curves"):
        coarse(read_suite("se-table2-tiny"), 6)


@pytest.mark.slow
def test_all_prompts_are_measured_at_the_settings_that_may_be_chosen(suite, tmp_path, monkeypatch):
    """Which settings are candidates depends on times, so they are fixed here."""
    chosen = [
        (CurveKey("lossy", {"bonus": bonus}), [{"target.alpha": alpha, "bonus": bonus}])
        for alpha, bonus in ((0.3, "deferred"), (0.9, "paper"))
    ]
    monkeypatch.setattr("specbench.features.suites.refinement.candidates", lambda curves: chosen)
    out = "".join(console.specbench("run", "--suite", suite, "--refine", 6, cwd=tmp_path))
    assert "6 prompts at every setting" in out and "refine = 6" not in out.splitlines()[0]
    runs = {path.parent.name: path.read_text().splitlines() for path in (tmp_path / "results").glob("*/samples.jsonl")}
    by_size = sorted(runs.values(), key=lambda rows: len({json.loads(row)["sample"] for row in rows}))
    first, second = ([json.loads(row) for row in rows] for rows in by_size)
    assert len({row["sample"] for row in first}) == 6 and len({row["method"] for row in first}) == 17
    variants = {f"lossy(alpha={alpha}, bonus={bonus})" for alpha in (0.3, 0.9) for bonus in ("deferred", "paper")}
    assert len({row["sample"] for row in second}) == 12 and {row["method"] for row in second} == {"ar", *variants}
    index = json.loads((tmp_path / "results/suites/own/changed.json").read_text())
    assert index["changes"] == ["refine = 6"] and len(index["runs"]) == 1
    again = "".join(console.specbench("report", "--suite", suite, "-f", "md", cwd=tmp_path))
    assert "refine = 6" in again


def test_refine_belongs_to_suites(tmp_path):
    shown = "".join(console.specbench("run", "-m", "sd", "--refine", 6, cwd=tmp_path, code=2))
    assert "--refine applies to --suite" in shown
