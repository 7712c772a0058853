"""`specbench run --over`: a sweep of one parameter as a curve, resumed by the same command."""

import json
import shutil

import numpy as np
import pytest

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import interval, interval_of_sums
from specbench.analysis.summary import summary_of
from specbench.config.presets import sweep_of
from specbench.features.suites.suite_tables import points_of
from specbench.files import write_with_checksum
from specbench.runs.run_folder import spec_of
from tests.fixtures.console import specbench

CURVE = (
    "run",
    "-m",
    "cascade-chow",
    "-p",
    "tiny-t5",
    "-t",
    "wmt",
    "-n",
    "5",
    "--repeats",
    "1",
    "--max-new-tokens",
    "8",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curve")
    done = specbench(*CURVE, "--over", "cascade-chow.target.alpha=[0.0, 0.5, 1.0]", cwd=folder)
    specbench("report", "--plots", "drawn", cwd=folder)
    assert "Summaries of the curves" in done.stdout
    rows = [
        line.split()
        for line in done.stdout.partition("Chosen settings")[2].splitlines()
        if "within its latency" in line
    ]
    assert len(rows) == 1 and any(word.startswith("alpha=") or word == "reached" for word in rows[0])
    return folder


def test_a_curve_has_one_point_per_value_and_two_summaries(folder):
    (run,) = (folder / "results").iterdir()
    found = points_of(run)
    swept = {point.x for point in found if point.method == "cascade-chow" and not point.is_curve}
    assert swept == {0.0, 0.5, 1.0}
    (summary,) = [point for point in found if point.is_curve]
    assert isinstance(summary.values["best"], CurveChoice)
    assert {path.suffix for path in (folder / "drawn").iterdir()} == {".png", ".svg"}


def test_the_same_command_resumes_and_shows_the_curve(folder):
    (run,) = (folder / "results").iterdir()
    before = (run / "samples.jsonl").read_bytes()
    done = specbench(*CURVE, "--over", "cascade-chow.target.alpha=[0.0, 0.5, 1.0]", cwd=folder)
    assert "Summaries of the curves" in done.stdout
    assert (run / "samples.jsonl").read_bytes() == before


def test_a_curve_needs_three_settings_and_names_damaged_files(folder, tmp_path):
    done = specbench(*CURVE, "--over", "cascade-chow.target.alpha=[0.0, 1.0]", "-o", "two", cwd=folder)
    assert "Summaries of the curves" not in done.stdout, "a curve needs three settings"
    (run,) = (folder / "two").iterdir()
    shutil.copytree(run, tmp_path / "run")
    for name, message in (("summary.json", ""), ("scores.json", "damaged"), ("env.json", "damaged")):
        path = tmp_path / "run" / name
        whole = path.read_text()
        path.write_text(whole[: len(whole) // 2])
        done = specbench("report", "run", cwd=tmp_path, code=2 if message else 0)
        assert not message or f"{name}: {message}" in done.stderr
        if name == "scores.json":
            specbench("score", "run", cwd=tmp_path)
            assert path.read_text() == whole, "generations can be scored again"
        path.write_text(whole)
    with (tmp_path / "run/samples.jsonl").open("a") as file:
        file.write('{"x' + "\n")
    assert "line 16 is damaged" in specbench("report", "run", cwd=tmp_path).stdout
    (tmp_path / "run/run.toml").write_text("zzz")
    assert "run.toml: not TOML" in specbench("report", "run", cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["-m", "ar", "--over", "auto"], "no default sweep"),
        (["-m", "cascade-chow", "--over", "alpha"], "--over alpha"),
        (["-m", "cascade-chow", "--over", "cascade-chow.target.alpa=[0.1, 0.2]"], "did you mean"),
    ],
)
def test_settings_that_cannot_be_swept_are_errors(tmp_path, over, message):
    assert message in specbench("run", "-p", "tiny-t5", "-t", "wmt", *over, cwd=tmp_path, code=2).stderr


def test_a_stored_summary_is_used_until_its_run_changes(folder):
    """Another record, or other code, makes a new one."""
    (run,) = (folder / "results").iterdir()
    recorded = run / "summary.json"
    marked = json.loads(recorded.read_text()) | {"headline": "marked"}
    del marked["sha256"]
    write_with_checksum(recorded, marked)
    assert summary_of(run).headline == "marked"
    with (run / "samples.jsonl").open("a") as file:
        file.write('{"method": "ar", "sample": "9", "repeat": 0, "seed": 0, "order": 99, "error": "none"}\n')
    assert summary_of(run).headline != "marked"


def test_intervals_of_sums_match_those_of_rows():
    table = np.random.default_rng(3).random((40, 2))
    quick = interval_of_sums(table, lambda s: s[..., 0] / s[..., 1])
    slow = interval(table, lambda t: t[:, 0].sum() / t[:, 1].sum())
    assert (quick.value, quick.low, quick.high) == pytest.approx((slow.value, slow.low, slow.high))


@pytest.mark.parametrize(
    ("earlier", "now"),
    [("curve", "run --over auto"), ("export", "archive export"), ("import", "archive import")],
)
def test_an_earlier_command_names_the_present_one(tmp_path, earlier, now):
    done = specbench(earlier, "-m", "sd", cwd=tmp_path, code=2)
    assert f"`specbench {earlier}` is now `specbench {now}`" in done.stderr


def test_the_grid_of_the_preset_is_swept(tmp_path):
    few = ("-p", "tiny-t5", "-t", "wmt", "-n", 1, "--repeats", 1, "--max-new-tokens", 1)
    specbench("run", "-m", "seq-cascade", "--over", "auto", *few, cwd=tmp_path)
    (run,) = (tmp_path / "results").iterdir()
    labels = [label for label, method in spec_of(run).methods.items() if method.preset == "seq-cascade"]
    assert len(labels) == len(sweep_of("seq-cascade")[1])
