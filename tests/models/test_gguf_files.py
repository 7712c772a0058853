"""GGUF files: mixed types, tied embeddings, other architectures, what transformers ignores, and files that cannot be read."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.data.download import needs_of_pair
from specbench.errors import ConfigError, MissingAsset
from specbench.models.quantized_files.quantized_embedding import QuantizedEmbedding
from tests.fixtures.quantized_checkpoints import Checkpoint, brought, exact, logits_of, resolved, source_of, write_gguf

gguf = pytest.importorskip("gguf", reason="needs gguf: specbench[gguf]")


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Checkpoint:
    """A file of Q8_0."""
    return write_gguf(tmp_path_factory.mktemp("plain"), "Q8_0")


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> Checkpoint:
    """A file of Q4_0 without an LM head."""
    return write_gguf(tmp_path_factory.mktemp("tied"), "Q4_0", tie_word_embeddings=True)


def test_a_tied_head_and_the_embedding_share_their_codes(tied):
    model = brought(tied).models["target"].model
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, QuantizedEmbedding) and embedding.table is model.get_output_embeddings()
    table = tied.reference.get_input_embeddings().weight
    assert torch.allclose(embedding.weight.double(), table, atol=1e-7)
    ids = torch.tensor([[3, 1023], [0, 17]])
    assert torch.equal(embedding(ids), embedding.weight[ids])


def test_a_tied_head_is_rebuilt_for_every_product_as_an_own_one_is(tied, tmp_path):
    own = write_gguf(tmp_path, "Q4_0")
    sizes = [resolved(checkpoint).size.rebuilt_bytes for checkpoint in (tied, own)]
    assert sizes[0] == sizes[1] > 0


def test_a_file_may_mix_types(tmp_path):
    """A head of another type is dequantized, and the run says so."""
    checkpoint = write_gguf(tmp_path, "Q4_0", kinds={"lm_head": "Q5_0", "down_proj": "Q8_0"})
    pair, expected = brought(checkpoint), exact(checkpoint)
    assert (logits_of(pair).double() - expected).abs().max() <= 1e-5 * expected.abs().max()
    model = pair.models["target"].model
    assert type(model.lm_head) is torch.nn.Linear and model.model.layers[0].mlp.down_proj.bits == 8
    assert source_of(checkpoint).stored == "GGUF, Q4_0, Q8_0; dequantized: Q5_0"


def test_special_tokens_and_rotary_factors_are_those_of_the_file(tmp_path):
    """transformers reads neither: it keeps the architecture's default end and drops `rope_freqs.weight`."""
    factors = torch.linspace(1.0, 8.0, 8)
    checkpoint = write_gguf(tmp_path, "Q8_0", tensors={"rope_freqs.weight": factors})
    checkpoint.reference.model.rotary_emb.inv_freq /= factors
    pair, expected = brought(checkpoint), exact(checkpoint)
    assert (logits_of(pair).double() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert pair.models["target"].eos == {0}


@pytest.mark.parametrize(("family", "sizes"), [
    ("qwen2", {"tie_word_embeddings": True}), ("qwen3", {"head_dim": 32}), ("phi3", {}),
])  # fmt: skip
def test_other_architectures_are_read_from_gguf(family, sizes, tmp_path):
    checkpoint = write_gguf(tmp_path, "Q4_0", family=family, **sizes)
    found, expected = logits_of(brought(checkpoint)).double(), exact(checkpoint)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_what_transformers_ignores_in_a_gguf_file_is_an_error(tmp_path):
    """Scaled rotary positions, and tensors that the model of its config lacks."""
    scaled = write_gguf(tmp_path / "scaled", "Q8_0", metadata={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(MissingAsset, match=r"^model 'target': [^\n]*rotary positions are scaled \(yarn\)"):
        brought(scaled)
    extra = write_gguf(tmp_path / "extra", "Q8_0", tensors={"blk.1.attn_q.bias": torch.ones(64)})
    with pytest.raises(MissingAsset, match=r"^model 'target': .*1 unexpected: blk.1.attn_q.bias"):
        brought(extra)
    assert logits_of(brought(extra, allowed_keys=["blk.1.attn_q.bias"])).isfinite().all()


def test_the_file_is_part_of_what_a_run_compares(tmp_path):
    one = write_gguf(tmp_path / "one", "Q8_0")
    shutil.copy(one.folder / "model.gguf", one.folder / "other.gguf")
    other = Checkpoint(one.folder, None, {"gguf_file": "other.gguf"})
    first = source_of(one)
    assert first.identity != source_of(other).identity
    (one.folder / "other.gguf").unlink()
    assert source_of(one) == first, "other files of the folder do not matter"
    with (one.folder / "model.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert source_of(one).checksum != first.checksum


@pytest.mark.parametrize(("keys", "message"), [
    ({"gguf_file": "modl.gguf"}, r"no modl.gguf in .* \(did you mean 'model.gguf'\?\); its .gguf files: model.gguf$"),
    ({"gguf_file": ""}, 'no config.json in .*; help: gguf_file = "model.gguf" reads its GGUF file'),
])  # fmt: skip
def test_a_missing_file_is_named_with_what_is_there(keys, message, plain):
    with pytest.raises(MissingAsset, match=f"model 'target': .*{message}"):
        brought(Checkpoint(plain.folder, None, keys))


@pytest.mark.parametrize("size", [3, 400, 100_000])
def test_a_file_that_was_cut_is_one_line(size, plain, tmp_path):
    (tmp_path / "model.gguf").write_bytes((plain.folder / "model.gguf").read_bytes()[:size])
    with pytest.raises(
        MissingAsset, match=r"^model 'target': [^\n]* cannot be loaded: it may be damaged or incomplete [^\n]*$"
    ):
        brought(Checkpoint(tmp_path, None, {"gguf_file": "model.gguf"}))


def test_a_path_to_a_gguf_file_says_how_to_write_it():
    with pytest.raises(ConfigError, match=r'write path = "models/a" and gguf_file = "b\.gguf"'):
        construct(Pair, {"models": {"target": {"path": "models/a/b.gguf"}}}, "pair.toml")
    with pytest.raises(ConfigError, match=r'gguf_file = "b\.bin" must end with \.gguf'):
        construct(Pair, {"models": {"target": {"path": "models/a", "gguf_file": "b.bin"}}}, "pair.toml")


def test_a_missing_package_is_one_line_with_installation_help(plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        MissingAsset, match=r"model 'target': a GGUF file needs .*\n  help: pip install 'specbench\[gguf\]'"
    ):
        brought(plain)


def test_only_the_file_of_a_repository_is_fetched():
    models = {"target": {"path": "owner/name", "gguf_file": "b.Q4_0.gguf"}, "draft": {"path": "owner/other"}}
    pair = construct(Pair, {"models": models}, "pair.toml")
    needs = needs_of_pair("pair", pair, Path(), ("target", "draft"), ())
    assert [(need.repo, need.files) for need in needs] == [("owner/name", ("b.Q4_0.gguf",)), ("owner/other", ())]
