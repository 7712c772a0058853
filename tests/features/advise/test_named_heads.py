"""Heads that `advise --head` compares: their kinds are found in their files, and each is measured."""

import json
import shutil
from types import SimpleNamespace

import pytest

from specbench.analysis.intervals import Estimate
from specbench.config.options import Options
from specbench.config.pair import PACKAGE
from specbench.errors import ConfigError, MissingAsset
from specbench.features.advise.answer import ranking_of_heads
from specbench.features.advise.candidate_set import candidate_of
from specbench.features.advise.candidates import CandidateResult
from specbench.features.advise.halving import best_of
from specbench.features.advise.named_heads import with_heads
from specbench.models.heads.draft_head import kind_in
from tests.fixtures.console import specbench

HEADS = PACKAGE / "tiny/heads"


def test_the_kind_of_a_head_is_found_in_its_files(tmp_path):
    for kind in ("eagle", "eagle3", "dflash", "dspark"):
        assert kind_in(HEADS / kind) == kind
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mimo", "num_nextn_predict_layers": 1}))
    assert kind_in(tmp_path) == "mtp"
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 3}))
    shutil.copy(HEADS / "eagle3/model.safetensors", tmp_path)
    with pytest.raises(MissingAsset, match="Medusa heads: not supported"):
        kind_in(tmp_path)


def test_heads_are_named_by_kind_and_the_last_part_of_their_source(tmp_path):
    shutil.copytree(HEADS / "eagle3", tmp_path / "one/mine")
    shutil.copytree(HEADS / "eagle3", tmp_path / "two/mine")
    one, two = str(tmp_path / "one/mine"), str(tmp_path / "two/mine")
    found = with_heads(Options(heads=(("eagle", "x"),)), [one, str(HEADS / "dspark")])
    assert found.heads == (("eagle", "x"), ("eagle3/mine", one), ("dspark/dspark", str(HEADS / "dspark")))
    with pytest.raises(ConfigError, match="have one name; help: --head eagle3/LABEL="):
        with_heads(Options(), [one, two])


@pytest.mark.slow
def test_advise_compares_each_named_head(tmp_path):
    result = specbench(
        "advise", "-p", "tiny", "-t", "gsm8k", "-n", 10, "--max-new-tokens", 12, "--repeats", 1,
        "--head", HEADS / "dspark", "--head", HEADS / "eagle3", "--json", cwd=tmp_path,
    )  # fmt: skip
    rows = {row["method"]: row for row in json.loads(result.stdout)["candidates"]}
    assert rows["eagle3-eagle3-3"]["predicted"] and rows["dspark-dspark-5"]["predicted"] is None
    assert rows["dspark-dspark-5"]["measured"]
    assert rows["eagle3-eagle3-3"]["measured"] or rows["eagle3-eagle3-5"]["measured"]


def result(head: str, gamma: int, on_first: float | None, predicted: float | None = None) -> CandidateResult:
    candidate = candidate_of(f"{head}-{gamma}", {"name": "eagle", "head": head, "base": "target", "gamma": gamma})
    return CandidateResult(
        candidate=candidate, predicted=Estimate(predicted, 0.1, 9.0) if predicted else None,
        on_first=Estimate(on_first, None, None) if on_first else None,
    )  # fmt: skip


def test_the_answer_ranks_the_named_heads_on_the_same_prompts():
    results = [
        result("eagle3/a", 3, 0.8, 0.7), result("eagle3/a", 5, None, 0.6), result("dspark/b", 5, 1.1),
        result("eagle", 3, 2.0),
    ]  # fmt: skip
    advice = SimpleNamespace(results=results, heads=("eagle3/a", "dspark/b", "mtp/c"))
    line, unmeasured = ranking_of_heads(advice)
    assert unmeasured == "Not measured: mtp/c."
    assert ": dspark/b 1.10x (dspark/b-5); eagle3/a 0.80x (eagle3/a-3, predicted 0.70x" in line
    assert not [*ranking_of_heads(SimpleNamespace(results=results, heads=()))]


def test_each_named_head_is_measured_next_to_the_best_candidates():
    speeds = {("eagle", 3): 1.5, ("eagle", 5): 1.4, ("eagle3/a", 3): 0.7, ("eagle3/a", 5): 0.8}
    results = [result(head, gamma, None, speed) for (head, gamma), speed in speeds.items()]
    by_name = {each.candidate.name: each for each in results}
    candidates = [each.candidate for each in results]
    assert best_of(by_name, candidates, 2) == ["eagle-3", "eagle-5"]
    assert best_of(by_name, candidates, 2, ["eagle3/a"]) == ["eagle-3", "eagle-5", "eagle3/a-5"]
