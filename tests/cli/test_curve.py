"""`specbench curve`: a sweep of one parameter as a curve, resumed by the same command; and the win rates of judged runs."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from specbench.analysis.bootstrap import bootstrap, bootstrap_sums
from specbench.analysis.points import Choice, points
from specbench.analysis.summary import summarise, summary_of
from specbench.analysis.win_rate import judged_points
from specbench.data.task import Data, Sample
from specbench.errors import ConfigError
from specbench.experiment.judge import Judge, Likelihood, Prompted, judge_run
from specbench.report.curves import points_of
from tests.fixtures.console import specbench

CURVE = (
    "curve",
    "-m",
    "cascade-chow",
    "-p",
    "tiny-t5",
    "-t",
    "wmt",
    "-n",
    "5",
    "--seeds",
    "1",
    "--max-new-tokens",
    "8",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curve")
    done = specbench(*CURVE, "--over", "target.alpha=[0.0, 0.5, 1.0]", "--plots", "drawn", cwd=folder)
    assert "Summaries of the curves" in done.stdout
    latency = (
        r"cascade-chow, wmt, T = 1, at its latency: (chose alpha=|not reached)"  # some points are slower by chance
    )
    assert re.search(latency, done.stdout)
    return folder


def test_a_curve_has_one_point_per_value_and_two_summaries(folder):
    (run,) = (folder / "results").iterdir()
    found = points_of(run)
    swept = {point.x for point in found if point.method == "cascade-chow" and not point.is_curve}
    assert swept == {0.0, 0.5, 1.0}
    (summary,) = [point for point in found if point.is_curve]
    assert isinstance(summary.values["best"], Choice)
    assert {path.suffix for path in (folder / "drawn").iterdir()} == {".png", ".svg"}


def test_the_same_command_resumes_and_prints_json(folder):
    (run,) = (folder / "results").iterdir()
    before = (run / "samples.jsonl").read_bytes()
    found = json.loads(specbench(*CURVE, "--over", "target.alpha=[0.0, 0.5, 1.0]", "--json", cwd=folder).stdout)
    assert len([point for point in found if point["setting"]]) == 3
    assert (run / "samples.jsonl").read_bytes() == before


def test_a_curve_needs_three_settings_and_names_damaged_files(folder, tmp_path):
    done = specbench(*CURVE, "--over", "target.alpha=[0.0, 1.0]", "-o", "two", cwd=folder)
    assert "a curve needs 3" in done.stdout
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
        (["-m", "cascade-chow", "--over", "alpha"], "KEY=[VALUES]"),
        (["-m", "cascade-chow", "--over", "target.alpa=[0.1, 0.2]"], "did you mean"),
    ],
)
def test_settings_that_cannot_be_swept_are_errors(tmp_path, over, message):
    assert message in specbench("curve", "-p", "tiny-t5", "-t", "wmt", *over, cwd=tmp_path, code=2).stderr


def test_a_stored_summary_is_used_until_its_run_changes(folder):
    """Another record, or other code, makes a new one."""
    (run,) = (folder / "results").iterdir()
    recorded = run / "summary.json"
    marked = json.loads(recorded.read_text()) | {"headline": "marked"}
    del marked["sha256"]
    recorded.write_text(json.dumps(marked))
    assert summary_of(run).headline == "marked"
    with (run / "samples.jsonl").open("a") as file:
        file.write('{"method": "ar", "sample": "9", "repeat": 0, "seed": 0, "order": 99, "error": "none"}\n')
    assert summary_of(run).headline != "marked"


def test_bootstrapped_sums_match_bootstrapped_rows():
    """The quick bootstrap of column sums draws the same resamples as the plain one."""
    table = np.random.default_rng(3).random((40, 2))
    quick = bootstrap_sums(table, lambda s: s[..., 0] / s[..., 1])
    slow = bootstrap(table, lambda t: t[:, 0].sum() / t[:, 1].sum())
    assert (quick.value, quick.low, quick.high) == pytest.approx((slow.value, slow.low, slow.high))


def test_a_prompted_judge_that_is_swayed_by_the_order_gives_a_tie():
    class Swayed(Prompted):
        """Likes one of the answers A and B, whatever they stand for."""

        likes = " A"

        def scores(self, text, continuation):
            return torch.tensor([1.0 if continuation == self.likes else 0.0])

    assert Swayed(path="none").prefers("text", "one", "two") == 0.5
    Swayed.likes = " B"
    assert Swayed(path="none").prefers("text", "one", "two") == 0.5

    class Sees(Prompted):
        """Prefers the longer continuation, wherever it stands."""

        def scores(self, text, continuation):
            one, two = text.split("A: ")[1].split("B: ")
            longer = " A" if len(one.strip()) > len(two.split("The better")[0].strip()) else " B"
            return torch.tensor([1.0 if continuation == longer else 0.0])

    assert Sees(path="none").prefers("text", "much longer than", "it") == 1.0
    assert Sees(path="none").prefers("text", "it", "much longer than") == 0.0


def test_a_likelihood_judge_prefers_likely_texts():
    judge: Judge = Likelihood(path="specbench:tiny/models/code")
    text, right, wrong = (
        "Question: Ann has 3 packs with 2 cookies each. How many cookies?\nAnswer:",
        " There are",
        " zzq( xj",
    )
    assert judge.prefers(text, right, wrong) == 1.0
    assert judge.prefers(text, wrong, right) == 0.0
    assert judge.prefers(text, right, right) == 0.5


def test_a_judged_run_has_a_win_rate_and_equal_texts_are_ties(folder, monkeypatch):
    (run,) = (folder / "results").iterdir()
    records = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    samples = [Sample(each, f"text {each}") for each in dict.fromkeys(record["sample"] for record in records)]
    monkeypatch.setattr(Likelihood, "prefers", lambda self, text, one, two: 1.0)
    first, second = "cascade-chow(alpha=1.0)", "ar"
    table = {"name": "likelihood", "path": "x", "of": first, "against": second}
    judge_run(run, Data(samples, "", None, "", 5), table, torch.device("cpu"))
    with pytest.raises(ConfigError, match="no method 'sd'"):
        judge_run(run, Data(samples, "", None, "", 5), table | {"against": "sd"}, torch.device("cpu"))
    found = points([summarise(run)])
    (point,) = judged_points(run, found)
    texts = {(r["method"], r["sample"]): r.get("text", "") for r in records}
    pairs = [(texts[first, s.id], texts[second, s.id]) for s in samples if (first, s.id) in texts]
    ties = sum(one == two for one, two in pairs) / len(pairs)
    assert point.values["ties"] == ties
    assert point.values["win_rate"].value == pytest.approx(1.0 - ties / 2)
    assert point.method == "cascade-chow"
