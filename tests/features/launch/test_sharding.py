"""Runs in shards: parts of the prompts, measured separately and combined into one run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.config.request import Access
from specbench.config.shard import Shard, shards_of
from specbench.data.task import Data, Sample
from specbench.errors import ConfigError, ExitCode
from specbench.features.launch.sharding import combine_suite, with_shard
from specbench.features.suites.suite import SuiteRequest, read_suite
from specbench.files import read_with_checksum, write_with_checksum
from specbench.machine.hardware import Environment
from specbench.observer import Observer
from specbench.runs.run_folder import ENVIRONMENT, SAMPLES, load, spec_of
from tests.fixtures import console

COMMAND = ("run", "-m", "sd", "-t", "gsm8k", "-n", 5, "--repeats", 2, "--max-new-tokens", 12)
CASCADE = ("run", "-m", "seq-cascade", "-p", "tiny-t5", "-t", "wmt", "-n", 5, "--repeats", 1, "--max-new-tokens", 12)


def tokens_of(folder: Path) -> dict[tuple[str, str, int], list[int]]:
    return {(each.method, each.sample, each.repeat): each.tokens for each in load(folder).records}


def folder_of(results: Path, shard: str | None = None) -> Path:
    (found,) = (path.parent for path in results.glob("*/run.toml") if spec_of(path.parent).task.data.shard == shard)
    return found


def test_parts_hold_every_conversation_once():
    samples = [Sample(f"{n}{turn}", "a", after=f"{n}" if turn else "") for n in range(7) for turn in ("", ".2")]
    data = Data(samples, "a file", None, "0" * 64, 14)
    parts = [data.part(each) for each in shards_of(3)]
    assert sorted(s.id for part in parts for s in part.samples) == sorted(s.id for s in samples)
    assert [len(part.samples) for part in parts] == [6, 4, 4]
    assert all(
        f"{s.id}.2" in [other.id for other in part.samples] for part in parts for s in part.samples if not s.after
    )
    assert all(list(part.all_samples) == samples for part in parts)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/0", "x/2", "1/2/3"])
def test_a_shard_is_one_of_n_parts(shard):
    with pytest.raises(ConfigError, match="--shard 1/4"):
        Shard.of(shard)


@pytest.mark.parametrize("command", [COMMAND, CASCADE])
def test_combined_shards_have_the_tokens_of_an_undivided_run(command, tmp_path):
    """Also where a threshold depends on all prompts (`seq-cascade`)."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    console.specbench(*command, "--out", whole, cwd=tmp_path)
    console.specbench(*command, "--out", parts, "--shard", "2/2", cwd=tmp_path)
    assert len(list(parts.glob("*/run.toml"))) == 1
    console.specbench(*command, "--out", parts, "--shards", 2, cwd=tmp_path)
    assert len(list(parts.glob("*/run.toml"))) == 3
    one, other = folder_of(whole), folder_of(parts)
    assert one.name == other.name and tokens_of(one) == tokens_of(other)
    orders = [each.order for each in load(other).records]
    assert orders == list(range(len(orders)))
    assert json.loads((other / "summary.json").read_text())["methods"][1]["quality"]
    before = (other / SAMPLES).read_bytes()
    console.specbench(*command, "--out", parts, "--shards", 2, cwd=tmp_path)
    assert (other / SAMPLES).read_bytes() == before, "a combined run is complete"


def test_shards_of_other_machines_are_not_pooled(tmp_path):
    results = tmp_path / "results"
    for shard in ("1/2", "2/2"):
        console.specbench(*COMMAND, "--shard", shard, cwd=tmp_path)
    path = folder_of(results, "2/2") / ENVIRONMENT
    write_with_checksum(path, {**read_with_checksum(path, Environment), "cpu": "another processor"}, indent=2)
    shown = "".join(console.specbench(*COMMAND, "--shards", 2, cwd=tmp_path, code=6))
    assert "measured under other conditions" in shown and "cpu: " in shown and "another processor" in shown
    assert not [path for path in results.glob("*/run.toml") if spec_of(path.parent).task.data.shard is None]


def test_a_suite_is_measured_in_shards(tmp_path):
    suite = tmp_path / "own.toml"
    suite.write_text("""
paper = "own"
shows = "Table 1"
description = "speeds"
[options]
limit = 4
repeats = 1
max_new_tokens = 12
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k", "xsum"]
""")
    console.specbench("run", "--suite", suite, "--shard", "1/2", cwd=tmp_path)
    assert (tmp_path / "results/suites/own-1of2/index.json").exists()
    shown = "".join(console.specbench("run", "--suite", suite, "--shards", 2, cwd=tmp_path))
    index = json.loads((tmp_path / "results/suites/own/index.json").read_text())
    assert [run["state"] for run in index["runs"]] == ["done", "done"] and index["changes"] == []
    assert [run["generations"] for run in index["runs"]] == [8, 8] and "gsm8k" in shown


def test_shards_that_are_missing_are_not_measured_undivided(tmp_path):
    suite = tmp_path / "own.toml"
    suite.write_text(
        'paper = "own"\nshows = "Table 1"\ndescription = "speeds"\n[options]\nlimit = 4\nrepeats = 1\nmax_new_tokens = 8\n'
        '[[grid]]\nmethods = ["sd"]\npairs = ["tiny"]\ntasks = ["gsm8k"]\n'
    )
    console.specbench("run", "--suite", suite, "--shard", "1/2", cwd=tmp_path)
    request = SuiteRequest(suite=read_suite(str(suite)), out=tmp_path / "results", access=Access())
    requests = [replace(request, suite=with_shard(request.suite, each)) for each in shards_of(2)]
    assert combine_suite(request, requests, Observer()) == ExitCode.SOME_FAILED
    assert not [path for path in request.out.glob("*/run.toml") if spec_of(path.parent).task.data.shard is None]
    assert "cannot be combined" in console.specbench(*COMMAND, "--shards", 2, "--fresh", cwd=tmp_path, code=2).stderr


def test_more_shards_than_prompts_are_a_mistake(tmp_path):
    shown = "".join(
        console.specbench("run", "-m", "sd", "-t", "gsm8k", "-n", 2, "--shard", "3/3", cwd=tmp_path, code=2)
    )
    assert "fewer than 3 prompts" in shown
    shown = "".join(console.specbench(*COMMAND, "--shards", 1, cwd=tmp_path, code=2))
    assert "at least 2 parts" in shown
