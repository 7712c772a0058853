"""Conversion to GGUF, and answers of a llama.cpp server. No test starts a server."""

import json
from email.message import Message
from io import BytesIO
from urllib.error import HTTPError
from urllib.request import OpenerDirector

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts import bench_llamacpp
from scripts.llamacpp import peer
from scripts.llamacpp.to_gguf import CONTROL, NORMAL, UNUSED, convert, permuted, require_plain, tensors_of, vocabulary
from specbench.config.pair import PACKAGE
from specbench.decoding.loop import GenerationLimits, decode
from specbench.decoding.sampling import Sampler
from specbench.features.verify.enumeration import TableModels

ANSWER = {
    "content": " is", "tokens": [12, 7, 7], "stop_type": "limit", "tokens_predicted": 3,
    "timings": {
        "cache_n": 0, "prompt_n": 4, "prompt_ms": 2.5, "prompt_per_second": 1600.0, "predicted_n": 3, "predicted_ms": 6.0,
        "predicted_per_token_ms": 2.0,
    },
}  # fmt: skip


def rotated(x, pairs):
    """Rotate the pairs of a head's numbers (d,) by angles that grow with the pair."""
    out = x.copy()
    for i, (a, b) in enumerate(pairs):
        sine, cosine = np.sin(0.3 + i), np.cos(0.3 + i)
        out[a], out[b] = x[a] * cosine - x[b] * sine, x[b] * cosine + x[a] * sine
    return out


def test_rotating_neighbors_of_permuted_rows_equals_rotating_halves():
    heads, width, hidden = 3, 8, 5
    generator = np.random.default_rng(0)
    rows, x = generator.normal(size=(heads * width, hidden)), generator.normal(size=hidden)
    plain, moved = (rows @ x).reshape(heads, width), (permuted(rows, heads) @ x).reshape(heads, width)
    halves, neighbors = [(i, i + width // 2) for i in range(width // 2)], [(i, i + 1) for i in range(0, width, 2)]
    for one, other in zip(plain, moved, strict=True):
        assert np.allclose(sorted(rotated(one, halves)), sorted(rotated(other, neighbors)))
        assert np.allclose(rotated(one, halves)[: width // 2], rotated(other, neighbors)[::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_every_precision_are_read_as_float32(dtype, tmp_path):
    model = llama(tmp_path, dtype)
    found = dict(tensors_of(tmp_path / "model.safetensors"))
    for name, values in model.state_dict().items():
        assert np.array_equal(found[name], values.float().numpy()), name


def test_ids_that_the_tokenizer_lacks_are_unused_tokens_and_special_ones_have_neutral_names():
    tokenizer = json.loads((PACKAGE / "tiny/models/target/tokenizer.json").read_text())
    words, kinds = vocabulary(tokenizer, 1030)
    assert words[:3] == ["[special 0]", "[special 1]", "!"]
    assert (kinds[:3], kinds[-6:]) == ([CONTROL, CONTROL, NORMAL], [UNUSED] * 6)
    assert len(words) == len(set(words)) == 1030


@pytest.mark.parametrize("change", [
    {"model_type": "mistral"}, {"attention_bias": True}, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
])  # fmt: skip
def test_other_models_than_a_plain_llama_are_rejected(change):
    with pytest.raises(ValueError, match="only a Llama"):
        require_plain(LlamaConfig().to_dict() | change)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_has_the_names_and_values_of_the_checkpoint(tied, tmp_path):
    gguf = pytest.importorskip("gguf", reason="needs gguf")
    model = llama(tmp_path, torch.float32, tied)
    convert(tmp_path, tmp_path / "f32.gguf", "F32")
    convert(tmp_path, tmp_path / "q8.gguf", "Q8_0")
    reader, weights = gguf.GGUFReader(tmp_path / "f32.gguf"), model.state_dict()
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    assert ("output.weight" in found) is not tied
    assert np.array_equal(found["token_embd.weight"], weights["model.embed_tokens.weight"].numpy())
    assert np.array_equal(found["blk.1.ffn_down.weight"], weights["model.layers.1.mlp.down_proj.weight"].numpy())
    assert np.array_equal(found["blk.0.attn_norm.weight"], weights["model.layers.0.input_layernorm.weight"].numpy())
    for name, short, heads in (("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)):
        rows = weights[f"model.layers.0.self_attn.{name}.weight"].numpy()
        assert np.array_equal(found[f"blk.0.{short}.weight"], permuted(rows, heads))
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 1100
    assert reader.fields["llama.attention.head_count_kv"].contents() == 2
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "q8.gguf").tensors}
    assert (kinds["blk.0.attn_q.weight"], kinds["output_norm.weight"]) == ("Q8_0", "F32")


def llama(folder, dtype, tied=False):
    """Write a small Llama with the bundled tokenizer, and return it."""
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=1100, pad_token_id=1, eos_token_id=0, bos_token_id=None, tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((PACKAGE / "tiny/models/target/tokenizer.json").read_bytes())
    return model


def with_timings(**changes):
    return json.dumps({**ANSWER, "timings": ANSWER["timings"] | changes}).encode()


def test_an_answer_has_tokens_the_servers_decoding_time_and_counts_of_drafts():
    assert peer.completion_of(with_timings(), 3) == peer.Completion([12, 7, 7], 0.006, 0, 0)
    drafting = with_timings(draft_n=8, draft_n_accepted=5)
    assert peer.completion_of(drafting, 3) == peer.Completion([12, 7, 7], 0.006, 8, 5)


@pytest.mark.parametrize(("content", "message"), [
    (with_timings(predicted_n=2), "3 tokens were requested"), (with_timings(cache_n=9), "9 cached tokens"),
    (b'{"error": {"code": 500}}', "unexpected answer"), (b"<html>", "unexpected answer"),
])  # fmt: skip
def test_an_answer_that_is_not_that_of_the_request_is_an_error(content, message):
    with pytest.raises(peer.LlamaCppError, match=message):
        peer.completion_of(content, 3)


def test_an_error_status_is_an_error_with_the_servers_text(monkeypatch):
    def fail(opener, request, timeout):
        raise HTTPError(request.full_url, 503, "", Message(), BytesIO(b"loading"))

    monkeypatch.setattr(OpenerDirector, "open", fail)
    with pytest.raises(peer.LlamaCppError, match="503: loading"):
        peer.post("http://127.0.0.1:1", {"prompt": [5]})


def test_a_request_is_greedy_has_a_fixed_length_and_reuses_no_prompt():
    request = peer.request_of([5, 6], 3)
    assert (request["prompt"], request["n_predict"]) == ([5, 6], 3)
    assert request["ignore_eos"] and not request["cache_prompt"]
    assert request["temperature"] == 0.0 and "temperature" in request["samplers"]


def test_the_decoding_time_is_the_servers_and_the_rest_of_the_call_is_prefill(monkeypatch):
    content = with_timings(draft_n=8, draft_n_accepted=5)
    monkeypatch.setattr(OpenerDirector, "open", lambda *args, **options: BytesIO(content))
    ticks = iter([10.0, 10.5])
    monkeypatch.setattr(peer, "perf_counter", lambda: next(ticks))
    models, clock = TableModels({}, [1, 2]), iter([0.0, 0.5])
    limits = GenerationLimits(eos=frozenset(), max_new_tokens=3)
    out = decode(peer.LlamaCpp(url="http://127.0.0.1:1"), models, Sampler(0.0), limits, lambda: next(clock))
    assert out.tokens == [12, 7, 7]
    assert (out.decode_seconds, out.prefill_seconds) == pytest.approx((0.006, 0.494))
    assert out.rounds[0].counters == {"drafted": 8, "accepted": 5}


def test_without_its_environment_the_comparison_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bench_llamacpp"])
    bench_llamacpp.main()
    assert "make build/llamacpp/.installed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
