"""The bundled model and head that are made on first use, for the pair tiny-dequantized."""

import os
import tempfile

import pytest
import torch

from specbench.config.quantization_kind import QuantizationKind
from specbench.data.hub import local_checksum
from specbench.errors import MissingAsset
from specbench.models.quantization import PRECISIONS, Rebuilt, codes_of
from specbench.tiny import dequantized


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dequantized.folder_of_files.cache_clear()
    yield tmp_path
    dequantized.folder_of_files.cache_clear()


def test_files_have_the_checksums_of_recorded_runs(empty_cache):
    """A change of these checksums changes the hashes of all runs of tiny-dequantized."""
    found = [local_checksum(dequantized.made(path)) for path in (dequantized.COPY, dequantized.COPIED_HEAD)]
    assert found == ["dc9b4507a162fba6", "1a766b59a8ef6107"]


def test_no_file_is_made_twice(empty_cache):
    file = dequantized.made(dequantized.COPY) / dequantized.WEIGHTS
    before = file.stat()
    dequantized.folder_of_files.cache_clear()  # as in another process
    assert dequantized.made(dequantized.COPY) == file.parent
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_temporary_folder_is_used_if_the_cache_folder_cannot_be_written(empty_cache):
    (empty_cache / "cache").write_text("a file")
    assert dequantized.made(dequantized.COPY).is_relative_to(empty_cache / f"specbench-{os.getuid()}")


def test_an_error_names_the_setting_if_no_folder_can_be_written(empty_cache):
    for name in ("cache", f"specbench-{os.getuid()}"):
        (empty_cache / name).write_text("a file")
    with pytest.raises(MissingAsset, match="XDG_CACHE_HOME"):
        dequantized.made(dequantized.COPY)


def test_other_paths_are_not_made():
    assert dequantized.made("tiny/models/target") is None


@pytest.mark.parametrize("inputs", [128, 192, 32])
def test_weights_are_rounded_as_by_torchao(inputs, monkeypatch):
    pytest.importorskip("torchao")
    monkeypatch.setitem(PRECISIONS, 4, torch.float32)
    layer = torch.nn.Linear(inputs, 48, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(48, inputs, generator=torch.Generator().manual_seed(0)))
        layer.weight[0] = 0
        layer.weight[1].abs_()
    made = Rebuilt(layer, codes_of(layer.weight.detach(), QuantizationKind("int4")))
    assert torch.equal(dequantized.dequantized(layer.weight.detach()), made.product(torch.eye(inputs)).t())
