"""Test `specbench fetch` with a simulated hub: what is needed, what is downloaded, and the messages if that fails."""

import json
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from specbench.data import download as fetching
from specbench.data.download import weights_once
from tests.fixtures.console import specbench

COMMIT = "c" * 40
LARGE = {
    "config.json": 10,
    "tokenizer.json": 20,
    "tokenizer.model": 5,
    "model.safetensors.index.json": 3,
    "model-00001-of-00002.safetensors": 3 << 30,
    "model-00002-of-00002.safetensors": 1 << 30,
    "pytorch_model-00001-of-00001.bin": 4 << 30,
    "consolidated.safetensors": 4 << 30,
    "original/consolidated.00.pth": 4 << 30,
    "README.md": 1,
}
SMALL = {"config.json": 10, "pytorch_model.bin": 1 << 20, "training_args.bin": 7}
ROWS = {"main/test-00000-of-00001.parquet": 1 << 20, "main/train-00000-of-00001.parquet": 1 << 21}
HUB = {
    "org/large": LARGE,
    "org/small": SMALL,
    "openai/gsm8k": ROWS,
    "org/head": {"head.safetensors": 4, "report.json": 1},
}
PAIR = """
[models.draft]
path = "org/small"
[models.target]
path = "org/large"
revision = "v1"
[heads.gate]
kind = "sprinter"
base = "draft"
path = "org/head"
"""


class GatedRepoError(Exception):
    """As the hub's client calls it."""


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that answers, an empty cache, a pair of three repositories; returns what was downloaded, by repository."""
    downloads, cache = {}, tmp_path / "cache"
    (tmp_path / "own.toml").write_text(PAIR)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(fetching, "look_for_hub", lambda: None)
    monkeypatch.setattr(fetching, "offline_mode", lambda: False)

    def info(self, repo, revision=None, files_metadata=False):
        if repo not in HUB:
            raise FileNotFoundError(f"404: {repo}")
        assert files_metadata
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in HUB[repo].items()]
        return SimpleNamespace(sha=COMMIT, gated="manual" if repo == "org/large" else False, siblings=siblings)

    def snapshot_download(repo, repo_type, revision, allow_patterns):
        downloads[repo] = allow_patterns
        place = cache / f"{repo_type}s--{repo.replace('/', '--')}"
        for name in allow_patterns:
            file = place / "snapshots" / COMMIT / name
            file.parent.mkdir(parents=True, exist_ok=True)
            index = {"weight_map": {str(i): name for i, name in enumerate(LARGE) if name.startswith("model-")}}
            file.write_text(json.dumps(index) if "index" in name else name)
        named = place / "refs" / (revision or "main")
        named.parent.mkdir(parents=True, exist_ok=True)
        named.write_text(COMMIT)
        return str(place / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return downloads


def fetched(*arguments, cwd, code=0):
    return json.loads(specbench("fetch", *arguments, "--json", cwd=cwd, code=code).stdout)


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        (LARGE, {"config.json", "tokenizer.json", "tokenizer.model", "model.safetensors.index.json"}
         | {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}),
        (SMALL, {"config.json", "pytorch_model.bin"}),
        (["head.safetensors", "report.json"], {"head.safetensors", "report.json"}),
        (["gptq_model-4bit.safetensors", "pytorch_model.bin", "fp16/model.safetensors"], {"gptq_model-4bit.safetensors"}),
        (["model.safetensors", "model.fp16.safetensors", "flax_model.msgpack"], {"model.safetensors"}),
    ],
)  # fmt: skip
def test_weights_are_listed_once(files, kept):
    assert set(weights_once(files)) == kept


def test_a_dry_run_lists_all_and_downloads_nothing(hub, tmp_path):
    found = fetched("-p", "own.toml", "-t", "gsm8k", "--dry-run", cwd=tmp_path)
    by = {each["repository"]: each for each in found["repositories"]}
    assert set(by) == set(HUB)
    assert by["org/large"]["bytes"] == by["org/large"]["missing_bytes"] == (4 << 30) + 38
    assert by["org/large"]["gated"] and not by["org/small"]["gated"]
    assert {each["commit"] for each in by.values()} == {COMMIT}
    assert by["openai/gsm8k"]["files"] == {"main/test-00000-of-00001.parquet": 1 << 20}
    assert by["org/head"]["for"] == ["head gate of own"]
    assert not hub


def test_missing_files_are_downloaded_once(hub, tmp_path):
    done = specbench("fetch", "-p", "own.toml", "-t", "gsm8k", cwd=tmp_path)
    assert "4 repositories, 4.00 GiB, 4.00 GiB to download\n" in done.stdout
    assert set(hub["org/large"]) == set(weights_once(LARGE))
    assert hub["openai/gsm8k"] == ["main/test-00000-of-00001.parquet"]
    assert set(hub) == set(HUB)
    hub.clear()
    again = fetched("-p", "own.toml", "-t", "gsm8k", cwd=tmp_path)
    assert all(each["here"] and each["missing_bytes"] == 0 for each in again["repositories"])
    assert not hub


def test_a_revision_with_slashes_is_found_in_the_cache(hub, tmp_path, monkeypatch):
    """As that of data sets that the hub converted."""
    monkeypatch.setitem(HUB, "billion-word-benchmark/lm1b", {"plain_text/test/0000.parquet": 2})
    specbench("fetch", "-t", "lm1b", cwd=tmp_path)
    assert set(hub) == {"billion-word-benchmark/lm1b"}
    (found,) = fetched("-t", "lm1b", "--dry-run", cwd=tmp_path)["repositories"]
    assert (found["revision"], found["here"]) == ("refs/convert/parquet", True)


def test_a_newer_commit_is_fetched_again(hub, tmp_path, monkeypatch):
    specbench("fetch", "-t", "gsm8k", cwd=tmp_path)
    hub.clear()
    monkeypatch.setitem(globals(), "COMMIT", "d" * 40)
    specbench("fetch", "-t", "gsm8k", cwd=tmp_path)
    assert set(hub) == {"openai/gsm8k"}


def test_fetched_files_are_found_offline_and_a_deleted_shard_is_missing(hub, tmp_path, monkeypatch):
    specbench("fetch", "-p", "own.toml", "-t", "gsm8k", cwd=tmp_path)
    monkeypatch.undo()  # from here on the hub's own client reads the cache
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = fetched("-p", "own.toml", "-t", "gsm8k", cwd=tmp_path)
    assert [each["here"] for each in found["repositories"]] == [True] * 4
    assert {each["commit"] for each in found["repositories"]} == {COMMIT}
    shard = next((tmp_path / "cache").rglob("model-00002-of-00002.safetensors"))
    shard.unlink()
    done = specbench("fetch", "-p", "own.toml", "-t", "gsm8k", cwd=tmp_path, code=4)
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error"))
    assert error.startswith("error[asset]: org/large: it is incomplete in the local cache; help: ")


def test_without_a_network_every_repository_is_listed_once(tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text(PAIR)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = specbench("fetch", "-p", "own.toml", "-t", "gsm8k", cwd=tmp_path, code=4)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error[asset]: ")]
    assert [line.split()[1] for line in errors] == ["org/small:", "org/large:", "org/head:", "openai/gsm8k:"]


def test_a_repository_without_access_does_not_stop_the_others(hub, tmp_path, monkeypatch):
    fetched = huggingface_hub.snapshot_download

    def failing(repo, **more):
        if repo == "org/large":
            raise GatedRepoError("403 Client Error")
        return fetched(repo, **more)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    done = specbench("fetch", "-p", "own.toml", cwd=tmp_path, code=4)
    assert set(hub) == {"org/small", "org/head"}
    assert "accept its licence at huggingface.co/org/large, then run `hf auth login`" in done.stderr


def test_a_nonexistent_repository_is_reported_before_the_download(hub, tmp_path):
    (tmp_path / "wrong.toml").write_text('[models.target]\npath = "org/no"\n')
    done = specbench("fetch", "-p", "wrong.toml", cwd=tmp_path, code=4)
    assert "org/no: 404: org/no; help: check the name" in done.stderr
    assert not hub


def test_bundled_models_local_folders_and_synthetic_rows_need_nothing(hub, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "local.toml").write_text('[models.target]\npath = "here"\n')
    found = fetched("-p", "tiny,local.toml", "-t", "gsm8k", cwd=tmp_path)
    whys = {each["for"]: each["why"] for each in found["nothing_to_fetch"]}
    assert whys["model target of tiny"] == whys["head eagle of tiny"] == "bundled"
    assert whys["model target of local"] == "a local folder"
    assert whys["data of gsm8k"] == "synthetic"  # of tiny; those of the other pair are the hub's
    assert set(hub) == {"openai/gsm8k"}


def test_worked_examples_that_are_rows_too_are_needed(hub, tmp_path, monkeypatch):
    rows = {"all/test-00000-of-00001.parquet": 1, "all/dev-00000-of-00001.parquet": 1}
    monkeypatch.setitem(HUB, "cais/mmlu", rows)
    (found,) = fetched("-t", "mmlu", cwd=tmp_path)["repositories"]
    assert found["files"] == rows


def test_a_suite_needs_its_pairs_tasks_and_judge(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = fetched("--suite", "sprinter-table1", cwd=tmp_path, code=4)
    needed = {each["repository"] for each in found["repositories"]}
    assert {"openai-community/gpt2", "billion-word-benchmark/lm1b", "Qwen/Qwen2.5-7B-Instruct"} <= needed
    assert fetched("--suite", "sprinter-table1-tiny", cwd=tmp_path)["repositories"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to fetch"),
        (("--suite", "se-table2", "-p", "tiny"), "leave out -p"),
        (("-p", "tny"), "mean 'tiny'"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, tmp_path):
    assert said in specbench("fetch", *arguments, cwd=tmp_path, code=2).stderr


def test_methods_restrict_the_models_and_heads_of_a_pair(tmp_path):
    def needed(*method: str) -> list[str]:
        done = specbench("fetch", "-p", "qwen3-8b", *method, "--dry-run", "--json", cwd=tmp_path, code=4)
        return [repository["repository"] for repository in json.loads(done.stdout)["repositories"]]

    assert needed("-m", "eagle3") == ["Qwen/Qwen3-8B", "deepseek-ai/eagle3_qwen3_8b_ttt7"]
    assert len(needed()) > 4
    assert "-m applies to pairs" in specbench("fetch", "-t", "gsm8k", "-m", "sd", cwd=tmp_path, code=2).stderr
