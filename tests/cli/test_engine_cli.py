"""Engines, made-up models and transformers' own methods as a user meets them on the command line."""

import csv
import io
import json
import tomllib

import pytest

from scripts import bench_transformers as peers
from specbench.config.pair import PACKAGE
from tests.cli.test_cli import GSM8K, rows_of, specbench

SHRUNK = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
    "vocab_size": 1200,
}  # fmt: skip
SIMULATED = [
    "-p", "llama-vicuna", *GSM8K, "--data", "synthetic", "--set", "pair.weights=dummy", "--set", "pair.logits=synthetic",
    *(word for role in ("llama", "vicuna") for key, value in SHRUNK.items()
      for word in ("--set", f"pair.models.{role}.config.{key}={value}")),
]  # fmt: skip


def folder_of(where):
    (folder,) = (where / "results").glob("*/")
    return folder


def test_the_engine_is_recorded_and_changes_no_token(tmp_path):
    recorded, tokens = {}, {}
    for engine in ("eager", "lean"):
        where = tmp_path / engine
        where.mkdir()
        specbench("run", "-m", "sd", *GSM8K, "--engine", engine, cwd=where)
        folder = folder_of(where)
        models = tomllib.loads((folder / "run.toml").read_text())["pair"]["models"]
        recorded[engine] = {model["engine"] for model in models.values()}
        tokens[engine] = {(row["method"], row["sample"]): row["tokens"] for row in rows_of(folder)}
    assert recorded == {"eager": {"eager"}, "lean": {"lean"}}
    assert tokens["eager"] == tokens["lean"]


def test_an_unavailable_engine_is_rejected_with_the_reason(tmp_path):
    err = specbench("run", "-m", "sd", *GSM8K, "--engine", "graph", "--device", "cpu", cwd=tmp_path, code=2).stderr
    assert "model 'draft': CUDA graphs need a CUDA device; help: --engine lean" in err


def test_transformers_methods_appear_in_the_same_table(tmp_path):
    shown = specbench(
        "run", "-m", "sd", "-m", "hf-generate", "-m", "hf-assisted", *GSM8K, "--gamma", "3", cwd=tmp_path
    ).stdout
    assert all(f"  {name} " in shown for name in ("ar", "sd", "hf-generate", "hf-assisted"))
    tokens: dict[str, dict[str, list[int]]] = {}
    for row in rows_of(folder_of(tmp_path)):
        tokens.setdefault(row["method"], {})[row["sample"]] = row["tokens"]
        assert row["error"] is None
    assert len(tokens) == 4
    assert all(each == tokens["ar"] for each in tokens.values())
    summary = json.loads((folder_of(tmp_path) / "summary.json").read_text())
    of = {row["method"]: row for row in summary["methods"]}
    assert of["hf-assisted"]["accepted_length"] == pytest.approx(of["sd"]["accepted_length"])
    assert of["hf-assisted"]["acceptance_rate"] == pytest.approx(of["sd"]["acceptance_rate"], abs=0.02)
    read = {name: of[name]["bound_share"] * of[name]["tokens"] / of[name]["tokens_per_second"] for name in of}
    assert read["hf-generate"] == pytest.approx(read["ar"], rel=1e-6), "the same forwards read the same bytes"
    assert read["hf-assisted"] == pytest.approx(read["sd"], rel=0.1)


def test_simulated_models_are_marked_in_every_row_and_have_no_quality(tmp_path):
    """Small versions of the paper's architectures, with random weights and synthetic logits at the paper's acceptance."""
    shown = specbench("run", "-m", "we-se", *SIMULATED, cwd=tmp_path).stdout
    folder = folder_of(tmp_path)
    assert "we-se (dummy) (synthetic)" in shown
    assert "Not a measurement of these models" in shown
    assert all(row["simulated"] == "dummy synthetic" for row in rows_of(folder))
    config = tomllib.loads((folder / "run.toml").read_text())
    assert config["decoding"]["ignore_eos"] is True
    assert config["pair"]["synthetic"]["rates"]["llama"]["acceptance"] == 0.684, "what Table 2 implies on gsm8k"
    assert config["pair"]["models"]["llama"]["changes"]["num_hidden_layers"] == 2
    flat = list(csv.DictReader(io.StringIO(specbench("report", folder, "-f", "csv", cwd=tmp_path).stdout)))
    assert {row["simulated"] for row in flat} == {"dummy synthetic"}
    for form in ("md", "json", "table"):
        assert "(dummy) (synthetic)" in specbench("report", folder, "-f", form, cwd=tmp_path).stdout
    assert all(row["quality"] == {} or set(row["quality"].values()) == {None}
               for row in json.loads((folder / "summary.json").read_text())["methods"])  # fmt: skip


def test_a_rate_can_be_taken_from_a_run(tmp_path):
    specbench("run", "-m", "sd", *GSM8K, "-o", "measured", cwd=tmp_path)
    (measured,) = (tmp_path / "measured").glob("*/")
    rounds = [each for row in rows_of(measured) for each in row["rounds"]]
    rate = sum(each["accepted"] for each in rounds) / sum(each["tested"] for each in rounds)
    specbench(
        "run",
        "-m",
        "sd",
        *GSM8K,
        "--set",
        "pair.logits=synthetic",
        "--set",
        f"pair.acceptance={measured}",
        cwd=tmp_path,
    )
    config = tomllib.loads((folder_of(tmp_path) / "run.toml").read_text())
    assert config["pair"]["synthetic"]["rates"]["draft"]["acceptance"] == pytest.approx(rate)


@pytest.mark.parametrize(("more", "code", "message"), [
    (["--set", "pair.acceptance=0.2"], 2, "acceptance = 0.2: drafts of llama can be given rates from 0.5"),
    (["--set", "pair.acceptance=1.2"], 2, "acceptance = 1.2 must be above 0"),
    (["--set", "pair.acceptance=nowhere"], 2, "no run there"),
    (["--set", "pair.models.llama.config.layers=3"], 2, "no such key"),
    (["--set", "pair.models.llama.path=some/model"], 4, "no architecture for some/model"),
    (["--set", "pair.models.llama.config.vocab_size=900"], 2, "too small"),
    (["--set", "pair.weights=real"], 2, "requires weights = \"dummy\""),
])  # fmt: skip
def test_a_model_that_cannot_be_simulated_is_one_message(more, code, message, tmp_path):
    key = more[1].partition("=")[0] + "="
    kept = [
        word for i, word in enumerate(SIMULATED) if not any(w.startswith(key) for w in map(str, SIMULATED[i : i + 2]))
    ]
    err = specbench("run", "-m", "we-se", *kept, *more, cwd=tmp_path, code=code).stderr
    assert message in err
    assert err.count("error[") == 1


def test_a_method_that_cannot_use_synthetic_logits_fails_with_a_message(tmp_path):
    specbench("run", "-m", "hf-generate", *GSM8K, "--set", "pair.logits=synthetic", cwd=tmp_path, code=3)
    errors = {row["error"] for row in rows_of(folder_of(tmp_path)) if row["method"] == "hf-generate"}
    assert len(errors) == 1
    assert "synthetic logits" in errors.pop()


def test_the_bench_compares_any_two_folders(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folders = [f"{PACKAGE}/tiny/models/{role}" for role in ("draft", "target")]
    monkeypatch.setattr("sys.argv", ["peers", "--draft", folders[0], "--target", folders[1], "--prompts", "5", "--tokens",
                                     "16", "--repeats", "1", "--out", "page.md"])  # fmt: skip
    peers.main()
    page = (tmp_path / "page.md").read_text()
    assert page in capsys.readouterr().out
    lines = [line for line in page.splitlines() if line.startswith(("| ar | hf-generate", "| sd | hf-assisted"))]
    assert len(lines) == 2
    assert all(line.endswith("| 100% |") for line in lines), "the same tokens"
