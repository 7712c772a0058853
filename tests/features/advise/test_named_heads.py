"""Heads that `advise --heads` compares: their kinds are found in their files, and each is measured."""

import json
import shutil

import pytest

from specbench.config.options import Options
from specbench.config.pair import PACKAGE
from specbench.errors import ConfigError, MissingAsset
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
    with pytest.raises(MissingAsset, match="holds Medusa heads, which is not supported"):
        kind_in(tmp_path)


def test_heads_are_named_by_kind_and_the_last_part_of_their_source(tmp_path):
    shutil.copytree(HEADS / "eagle3", tmp_path / "one/mine")
    shutil.copytree(HEADS / "eagle3", tmp_path / "two/mine")
    one, two = str(tmp_path / "one/mine"), str(tmp_path / "two/mine")
    found = with_heads(Options(heads=(("eagle", "x"),)), [one, str(HEADS / "dspark")])
    assert found.heads == (("eagle", "x"), ("eagle3/mine", one), ("dspark/dspark", str(HEADS / "dspark")))
    with pytest.raises(ConfigError, match="have one name; help: --head eagle3/LABEL="):
        with_heads(Options(), [one, two])


def test_advise_compares_each_named_head(tmp_path):
    result = specbench(
        "advise", "-p", "tiny", "-t", "gsm8k", "-n", 10, "--max-new-tokens", 12, "--repeats", 1,
        "--heads", f"{HEADS / 'dspark'},{HEADS / 'eagle3'}", "--json", cwd=tmp_path,
    )  # fmt: skip
    rows = {row["method"]: row for row in json.loads(result.stdout)["candidates"]}
    assert rows["eagle3-eagle3-3"]["predicted"] and rows["dspark-dspark-5"]["predicted"] is None
    assert rows["dspark-dspark-5"]["measured"]
    assert rows["eagle3-eagle3-3"]["measured"] or rows["eagle3-eagle3-5"]["measured"]
