"""Backends: what is sent, and what is read from answers as the servers write them."""

import json

import pytest

from specbench.features.servers.backends.backend import Arrival, metrics_of, speculation_of
from specbench.features.servers.backends.llama_cpp import SAMPLERS, LlamaCpp
from specbench.features.servers.backends.openai import OpenAi
from specbench.features.servers.backends.sglang import Sglang
from specbench.features.servers.backends.vllm import Vllm, ranges
from specbench.features.servers.served import ServedRequest, ServedSampling, SpeculationCounts

SAMPLING = ServedSampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)
REQUEST = ServedRequest(prompt=(5, 6, 7), sampling=SAMPLING, max_tokens=8, seed=3)


def arrivals(*events: str) -> list[Arrival]:
    """Return events that arrive a second after each other."""
    return [Arrival(json.loads(event), float(i)) for i, event in enumerate(events, 1)]


@pytest.mark.parametrize("backend", [Vllm(), LlamaCpp(), OpenAi(), Sglang()], ids=lambda backend: backend.name)
def test_every_sampling_parameter_is_sent_with_every_request(backend):
    request = ServedRequest(prompt="text", sampling=SAMPLING, max_tokens=8, seed=3)
    _, body = backend.body(request, "m")
    sent = {**body, **body.get("sampling_params", {})}
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["min_p"]) == (0.7, 5, 0.9, 0.1)
    assert 3 in (sent.get("seed"), sent.get("sampling_seed"))
    assert 8 in (sent.get("max_tokens"), sent.get("n_predict"), sent.get("max_new_tokens"))


def test_llama_cpp_gets_the_order_of_filters_that_the_reference_has():
    _, body = LlamaCpp().body(REQUEST, "m")
    assert body["samplers"] == SAMPLERS == ["temperature", "min_p", "top_k", "top_p"]
    assert body["cache_prompt"] is False


def test_vllm_reuses_a_prefix_only_on_request():
    salts = [Vllm().body(REQUEST, "m")[1]["cache_salt"] for _ in range(2)]
    assert salts[0] != salts[1]
    assert "cache_salt" not in Vllm().body(ServedRequest(prompt=(5,), reuse_cache=True), "m")[1]


def test_a_stream_of_vllm_has_the_tokens_of_a_step_in_a_chunk():
    found = Vllm().completion(
        REQUEST,
        arrivals(
            '{"model": "t", "choices": [{"text": "a", "finish_reason": null, "prompt_token_ids": [5, 6, 7],'
            ' "token_ids": [62]}]}',
            '{"model": "t", "choices": [{"text": "bcd", "finish_reason": "length", "token_ids": [1, 2, 3]}]}',
            '{"model": "t", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details":'
            ' {"cached_tokens": 2}}, "metrics": {"queue_time_ms": 5.0, "speculative_decoding": {"num_spec_steps": 1,'
            ' "num_accepted_draft_tokens": 2, "num_draft_tokens": 4, "acceptance_histogram": [0, 0, 1, 0, 0]}}}',
        ),
    )
    assert (found.prompt, found.tokens, found.text, found.finish) == ((5, 6, 7), (62, 1, 2, 3), "abcd", "length")
    assert [(len(chunk.tokens), chunk.seconds) for chunk in found.chunks] == [(1, 1.0), (3, 2.0)]
    assert (found.cached_tokens, found.queue_seconds) == (2, 0.005)
    assert found.speculation == SpeculationCounts(1, 4, 2, (1, 1, 0, 0))
    assert found.speculation.tokens_per_round == 3.0


def test_an_answer_of_llama_cpp_echoes_its_parameters():
    found = LlamaCpp().completion(
        REQUEST,
        arrivals(
            '{"content": "]", "tokens": [62], "stop": false, "completion_probabilities": [{"id": 62, "logprob": -2.0,'
            ' "top_logprobs": [{"id": 62, "logprob": -2.0}, {"id": 38, "logprob": -2.1}]}]}',
            '{"content": "", "tokens": [0], "stop": false}',
            '{"content": "", "tokens": [], "stop": true, "stop_type": "limit", "tokens_evaluated": 3, "tokens_predicted": 2,'
            ' "model": "g", "generation_settings": {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.1},'
            ' "timings": {"cache_n": 1, "draft_n": 10, "draft_n_accepted": 4}}',
        ),
    )
    assert (found.tokens, found.finish, found.cached_tokens) == ((62, 0), "length", 1)
    assert found.log_probabilities == ({62: -2.0, 38: -2.1},)
    assert found.speculation == SpeculationCounts(None, 10, 4)
    assert found.changed_parameters(SAMPLING) == {"temperature": (0.7, 0.9)}


def test_a_stream_of_sglang_repeats_the_output_so_far():
    found = Sglang().completion(
        REQUEST,
        arrivals(
            '{"text": "a", "output_ids": [1], "meta_info": {"finish_reason": null}}',
            '{"text": "abc", "output_ids": [1, 2, 3], "meta_info": {"finish_reason": {"type": "length"}, "prompt_tokens": 3,'
            ' "completion_tokens": 3, "cached_tokens": 0, "spec_verify_ct": 1}}',
        ),
    )
    assert (found.tokens, found.text, found.finish) == ((1, 2, 3), "abc", "length")
    assert [chunk.tokens for chunk in found.chunks] == [(1,), (2, 3)]


def test_openai_has_text_only():
    with pytest.raises(ValueError, match="takes no token ids"):
        OpenAi().body(REQUEST, "m")
    found = OpenAi().completion(
        REQUEST,
        arrivals(
            '{"model": "m", "choices": [{"delta": {"content": "Hi"}}]}',
            '{"model": "m", "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}',
        ),
    )
    assert (found.tokens, found.text, found.finish, found.count) == (None, "Hi", "eos", 2)


def test_counters_are_read_by_position_and_summed_over_labels():
    samples = metrics_of(
        "# HELP x\n"
        'vllm:spec_decode_num_drafts_total{engine="0"} 8.0\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 2.0\n'
        "vllm:spec_decode_num_draft_tokens_total 40\n"
        "vllm:spec_decode_num_accepted_tokens_total 1.5e1\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 6\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9\n'
        "not a sample\n"
        "bad{} NaN-ish\n"
    )
    found = speculation_of(samples, "vllm:spec_decode_num_")
    assert found == SpeculationCounts(10, 40, 15, (9, 6))
    assert found - SpeculationCounts(4, 16, 5, (3, 2)) == SpeculationCounts(6, 24, 10, (6, 4))
    assert found - SpeculationCounts(0, 0, 0) == found  # before its first drafts, a server may list no positions
    assert (found - SpeculationCounts(1, 4, 2)).by_position is None
    assert speculation_of(metrics_of(""), "vllm:spec_decode_num_") is None


def test_flags_name_a_draft_length_and_a_table_of_batch_sizes():
    assert '"num_speculative_tokens": 3' in Vllm().flags(3)
    assert LlamaCpp().flags(3) == "--spec-draft-n-max 3"
    assert LlamaCpp().flags(0) == "--spec-type none"
    assert ranges({1: 4, 4: 4, 16: 0}) == [[1, 4, 4], [5, 4096, 0]]
    assert "[[1, 4, 4], [5, 4096, 0]]" in Vllm().flags_by_concurrency({1: 4, 4: 4, 16: 0})
