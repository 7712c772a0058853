"""Records, weights and files belong to one run: what was exchanged or changed is found."""

import os
import shutil

import pytest

from specbench.data import hub
from specbench.data.hub import local_checksum
from specbench.machine import hardware
from tests.fixtures.console import specbench

FEW = ("-t", "gsm8k", "--data", "synthetic", "-n", 2, "--repeats", 1, "--max-new-tokens", 6)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("binding")
    for pair in ("tiny", "tiny-polybasic"):
        specbench("run", "-m", "sd", "-p", pair, *FEW, cwd=folder)
    return folder / "results"


def runs_in(results):
    tiny, other = sorted(results.iterdir(), key=lambda path: "polybasic" in path.name)
    return tiny, other


def test_records_of_another_run_are_not_counted(results, tmp_path):
    tiny, other = runs_in(shutil.copytree(results, tmp_path / "results"))
    shutil.copy(other / "samples.jsonl", tiny / "samples.jsonl")
    shown = " ".join(specbench("report", tiny, "--full", cwd=tmp_path).stdout.split())
    assert "4 lines of samples.jsonl not counted" in shown and "it belongs to another run" in shown


def test_a_file_without_its_checksum_is_damaged(results, tmp_path):
    tiny, _ = runs_in(shutil.copytree(results, tmp_path / "results"))
    whole = (tiny / "samples.jsonl").read_text()
    (tiny / "samples.jsonl").write_text("".join(f"{line.rpartition(', ')[0]}}}\n" for line in whole.splitlines()))
    assert "it has no checksum" in " ".join(specbench("report", tiny, "--full", cwd=tmp_path).stdout.split())
    (tiny / "samples.jsonl").write_text(whole)
    environment = (tiny / "env.json").read_text()
    (tiny / "env.json").write_text(environment.replace('"sha256"', '"sha"'))
    (tiny / "summary.json").unlink()
    assert "it has no checksum" in specbench("report", tiny, cwd=tmp_path, code=2).stderr


def test_two_measurements_of_one_run_are_not_pooled(results, tmp_path):
    tiny, _ = runs_in(results)
    copy = shutil.copytree(tiny, tmp_path / "again" / tiny.name)
    for both in ((tiny, copy), (copy, tiny)):
        done = specbench("report", *both, "--pooled", cwd=tmp_path, code=6)
        assert "contain the same prompt" in done.stderr


def test_large_weights_are_identified_by_content(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "LARGE", 8)
    model = tmp_path / "model"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(b"0123456789")
    before, times = local_checksum(model), weights.stat()
    assert (tmp_path / "cache/specbench/hashes.json").exists()
    assert local_checksum(shutil.copytree(model, tmp_path / "copy")) == before
    weights.write_bytes(b"9876543210")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert local_checksum(model) != before


def test_a_kept_hash_is_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    first = hub.hash_of(file)
    monkeypatch.setattr(hub.hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert hub.hash_of(file) == first


def test_the_load_of_other_programs_leaves_out_this_one(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    monkeypatch.setattr(hardware, "STAT", stat)
    tick = os.sysconf("SC_CLK_TCK")
    stat.write_text(f"cpu {100 * tick} 0 0 5 0 0 0 0 0 0\n")
    load, own = hardware.OtherLoad(), os.times()
    sum(range(300_000))
    stat.write_text(f"cpu {103 * tick} 0 0 9 0 0 0 0 0 0\n")
    found, now = load.seconds(), os.times()
    spent = now.user + now.system - own.user - own.system
    assert 3.0 - spent - 0.1 <= found <= 3.0
