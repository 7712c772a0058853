"""Answers that are malformed or contradict themselves, and streams with other channels, pieces and counts."""

import asyncio
import re

import pytest

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.answer_notes import counter_notes, fault_notes
from specbench.features.servers.backends.answers import MalformedAnswer
from specbench.features.servers.backends.backend import metrics_of, speculation_of
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.load.blocks import Block
from specbench.features.servers.load.load_metrics import acceptance_of
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import LoggedRequest, RequestLog, storable
from specbench.features.servers.sending import Sender
from specbench.features.servers.served import Counters, ServedRequest, SpeculationCounts
from specbench.http_client import RequestFailed, Server
from tests.fixtures.answering_server import (
    BACKENDS,
    CHAT,
    PROMPT,
    REQUEST,
    TOKENS,
    Answer,
    answering,
    answers_of,
    as_json,
    completed,
    edited,
    edited_event,
    metrics,
    stream,
    used,
)


async def connect(url: str) -> None:
    async with connected(Server(url, seconds=5.0)):
        pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_of_every_backend_are_read(backend):
    async def use(endpoint: Endpoint) -> None:
        has_ids = endpoint.description.has_ids
        found = await endpoint.complete(REQUEST if has_ids else ServedRequest(prompt="text", max_tokens=6))
        assert (found.tokens, found.text, found.finish) == (TOKENS if has_ids else None, " a b c d e f", "length")
        assert found.count == found.output_tokens == 6 and not found.faults
        chat = await endpoint.complete(CHAT)
        assert (chat.reasoning, chat.text, len(chat.chunks), chat.reasoning_tokens) == (" a b", " c d e f", 6, 2)
        if has_ids:
            assert found.log_probabilities == tuple({token: -0.5, token + 20: -1.5} for token in TOKENS)
            assert found.speculation is not None and (found.speculation.drafted, found.speculation.accepted) == (6, 3)
            assert endpoint.description.speculation.length == 3

    used(answers_of(backend), use)


# Malformed answers


@pytest.mark.parametrize(
    ("backend", "path", "place", "value", "field"),
    [
        ("openai", "/v1/models", "data", "m", "data"),
        ("openai", "/v1/models", "data.0", None, "data[0]"),
        ("openai", "/v1/models", "data.0.id", 5, "data[0].id"),
        ("vllm", "/v1/models", "data.0.max_model_len", "4096", "data[0].max_model_len"),
        ("vllm", "/v1/models", "data.0.max_model_len", -1, "data[0].max_model_len"),
        ("vllm", "/v1/models", "data.0.max_model_len", float("nan"), "data[0].max_model_len"),
        ("vllm", "/version", "version", ["0.32"], "version"),
        ("vllm", "/server_info", "vllm_config.speculative_config", ["draft"], "vllm_config.speculative_config"),
        (
            "vllm",
            "/server_info",
            "vllm_config.speculative_config.num_speculative_tokens",
            2.5,
            "num_speculative_tokens",
        ),
        ("vllm", "/server_info", "vllm_config.scheduler_config", 8, "vllm_config.scheduler_config"),
        ("llama.cpp", "/props", "default_generation_settings", None, "default_generation_settings"),
        ("llama.cpp", "/props", "total_slots", "4", "total_slots"),
        ("llama.cpp", "/v1/models", "data.0.meta.n_vocab", 1e400, "data[0].meta.n_vocab"),
        ("llama.cpp", "/completion whole", "generation_settings", "none", "generation_settings"),
        ("sglang", "/get_model_info", "model_path", {"a": 1}, "model_path"),
        ("sglang", "/get_server_info", "speculative_algorithm", True, "speculative_algorithm"),
        ("sglang", "/get_server_info", "speculative_num_draft_tokens", -4, "speculative_num_draft_tokens"),
    ],
)
def test_a_malformed_description_is_an_error_that_names_the_server_and_the_field(backend, path, place, value, field):
    answers = answers_of(backend)
    answers[path] = edited(answers[path], place, value)
    with answering(answers) as server, pytest.raises(MissingAsset) as error:
        asyncio.run(connect(server.url))
    assert server.url in str(error.value) and f"{field}: expected" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"m"', b"5", b"[[", b"<html></html>", b'\xff{"data": []}'])
def test_a_list_of_models_in_any_other_form_is_an_error(body):
    answers = answers_of("openai") | {"/v1/models": Answer(body)}
    with answering(answers) as server, pytest.raises((MissingAsset, ConfigError)) as error:
        asyncio.run(connect(server.url))
    assert server.url.removeprefix("http://") in str(error.value)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"ok"', b'{"model": 5}', b'{"error": "no such page"}', b"<html>"])
def test_other_answers_at_the_address_of_another_kind_of_server_do_not_matter(body):
    answers = answers_of("vllm") | {path: Answer(body) for path in ("/props", "/get_model_info", "/model_info")}
    assert used(answers, lambda endpoint: asyncio.sleep(0, endpoint.description.backend)) == "vllm"


def test_null_where_a_server_has_nothing_to_say_is_no_error():
    answers = answers_of("vllm")
    for changes in (
        {"vllm_config": None},
        {"vllm_config": "VllmConfig(...)"},
        {"vllm_config": {"speculative_config": None}},
    ):
        found = used(
            {**answers, "/server_info": as_json(changes)}, lambda endpoint: asyncio.sleep(0, endpoint.description)
        )
        assert found.backend == "vllm" and not found.speculation.method


@pytest.mark.parametrize("token", [-1, 1.5, "5", None, [1], [[1]], 2**31, 2**70, True, float("nan")])
@pytest.mark.parametrize(
    ("backend", "path", "number", "place"),
    [
        ("vllm", "/v1/completions", 1, "choices.0.token_ids.1"),
        ("llama.cpp", "/completion", 1, "tokens.0"),
        ("sglang", "/generate", 1, "output_ids.1"),
    ],
)
def test_a_token_id_that_is_none_is_a_failure_that_names_it(backend, path, number, place, token):
    answers = answers_of(backend)
    answers[path] = edited_event(answers[path], number, place, token)
    with pytest.raises(RequestFailed, match=rf"http://.*{path}: event {number + 1}: .*\[\d\]: expected int"):
        completed(answers)


def test_a_token_beyond_the_vocabulary_is_a_failure():
    answers = answers_of("llama.cpp")
    answers["/completion"] = edited_event(answers["/completion"], 2, "tokens.0", 64)
    with pytest.raises(RequestFailed, match="token 64, and its vocabulary has 64 tokens"):
        completed(answers)
    answers = answers_of("llama.cpp") | {"/tokenize": as_json({"tokens": [5, 99]})}
    with pytest.raises(RequestFailed, match="token 99, and its vocabulary has 64"):
        used(answers, lambda endpoint: endpoint.tokenize("text"))


@pytest.mark.parametrize("tokens", [[], [-1], None, "5", [[5]]])
def test_a_malformed_tokenization_is_a_failure(tokens):
    answers = answers_of("vllm") | {"/tokenize": as_json({"tokens": tokens})}
    with pytest.raises(RequestFailed, match=r"http://.*/tokenize: "):
        used(answers, lambda endpoint: endpoint.tokenize("text"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "prompt_logprobs: 0 entries for 5 tokens"),
        (None, "prompt_logprobs: none for 5 tokens"),
        ([None, None, None, None, None], r"prompt_logprobs\[3\]: token 11 is missing"),
        ([None, None, None, {"11": {"logprob": 0.5}}, {"12": {"logprob": -1.0}}], "logprob: expected float <= 0.001"),
        ([None, None, None, {"11": {"logprob": float("nan")}}, {}], "logprob: expected float"),
        ([None, None, None, {"11": {"logprob": None}}, {}], "logprob: expected float, got null"),
        ([None, None, None, {"-1": {"logprob": -1.0}}, {}], "'-1' is no token id"),
        ([None, None, None, {"11": {"logprob": 0.0}, "12": {"logprob": 0.0}}, {"12": {"logprob": -1.0}}], "the sum 2"),
    ],
)
def test_malformed_log_probabilities_are_a_failure(rows, message):
    whole = as_json({"choices": [{"text": "", "prompt_logprobs": rows}]})
    with pytest.raises(RequestFailed, match=f"http://.*{message}"):
        used(
            answers_of("vllm") | {"/v1/completions whole": whole},
            lambda endpoint: endpoint.log_probabilities(PROMPT, TOKENS[:2], 2),
        )


@pytest.mark.parametrize(
    ("backend", "path", "place", "value"),
    [
        ("vllm", "/v1/completions", "choices.0.text", "\ud800 a"),
        ("vllm", "/v1/completions", "model", "m\udfff"),
        ("openai", "/v1/completions", "choices.0.finish_reason", "length"),
        ("sglang", "/generate", "meta_info.spec_verify_ct", -1),
        ("llama.cpp", "/completion", "completion_probabilities.0.logprob", float("inf")),
        ("openai", "/v1/completions", "choices.0.text", 2**70),
    ],
)
def test_a_log_can_be_read_again_whatever_was_answered(tmp_path, backend, path, place, value):
    answers = answers_of(backend)
    answers[path] = edited_event(answers[path], 0, place, value)
    log = RequestLog(tmp_path / "requests.jsonl")

    async def use(endpoint: Endpoint) -> None:
        request = REQUEST if endpoint.description.has_ids else ServedRequest(prompt="text", max_tokens=6)
        for number in range(2):
            await Sender(endpoint, 0.0, log.add).send(RequestKey(number=number), request)

    used(answers, use)
    again = RequestLog(tmp_path / "requests.jsonl")
    assert again.entries == log.entries and len(again.entries) == 2


def test_an_entry_that_cannot_be_stored_is_stored_as_a_failure():
    key = RequestKey(number=3)
    for entry in (
        LoggedRequest(key=key, text="\ud800"),
        LoggedRequest(key=key, tokens=[1.5]),  # type: ignore[list-item]  # what is tested
        LoggedRequest(key=key, seconds=float("nan")),
    ):
        found = storable(entry)
        assert found.key == key and found.error is not None
    fine = LoggedRequest(key=key, text="ä", tokens=[1])
    assert storable(fine) is fine


# Counters


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm:spec_decode_num_drafts_total NaN", "vllm:spec_decode_num_drafts_total is nan"),
        ("vllm:spec_decode_num_drafts_total +Inf", "is inf"),
        ("vllm:spec_decode_num_drafts_total -1", "is -1"),
        ("vllm:spec_decode_num_drafts_total 1.5", "is 11.5, no whole number"),
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total 5", "the label position is missing"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="-1"} 0', "the label position is '-1'"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="9"} 0', "the positions are 0, 1, 2, 9"),
        ("vllm:spec_decode_num_accepted_tokens_total 1667", "1682 accepted tokens of 30 drafted ones"),
        ("vllm:generation_tokens_total NaN", "vllm:generation_tokens_total is nan"),
    ],
)
def test_counters_that_are_no_counts_are_a_fault_and_no_figure(line, message):
    page = metrics("vllm") + line.encode() + b"\n"
    found = used(
        answers_of("vllm") | {"/metrics": Answer(page, kind="text/plain")}, lambda endpoint: endpoint.counters()
    )
    assert found.speculation is None and found.output_tokens is None
    assert re.search(f"http://.*/metrics: .*{re.escape(message)}", found.fault)
    assert "1 of 1 readings of the counters of on are wrong" in counter_notes([found], "on")[0].text


def test_counters_that_fall_or_exceed_drafts_are_faults_of_a_block():
    def counted(before: Counters, after: Counters) -> Counters:
        found = Block(side="on", concurrency=1, pair=0, before=before, after=after).counted
        assert found is not None
        return found

    one = Counters(SpeculationCounts(10, 30, 15, (8, 5, 2)), output_tokens=100.0)
    fallen = counted(one, Counters(SpeculationCounts(2, 6, 3, (2, 1, 0)), output_tokens=10.0))
    assert fallen.speculation is None and "changed by -8 rounds" in fallen.fault
    lower = counted(one, Counters(SpeculationCounts(10, 30, 15, (8, 5, 2)), output_tokens=10.0))
    assert "output tokens fell from 100 to 10" in lower.fault
    more = counted(one, Counters(SpeculationCounts(11, 33, 70, (9, 6, 55)), output_tokens=200.0))
    assert "55 accepted tokens of 3 drafted ones" in more.fault
    block = Block(
        side="on", concurrency=1, pair=0, before=one, after=Counters(SpeculationCounts(2, 6, 3), output_tokens=1.0)
    )
    assert acceptance_of([block], True).counts is None


def test_prometheus_lines_with_tabs_and_times_are_read():
    samples = metrics_of("a_total\t5 1700000000\nb_total   6\n")
    assert (samples.total("a_total"), samples.count("b_total")) == (5.0, 6)
    with pytest.raises(MalformedAnswer, match=r"p_drafts_total is 1e\+16"):
        speculation_of(metrics_of("p_drafts_total 1e16\n"), "p_")


# Counts against usage


@pytest.mark.parametrize(
    ("backend", "number", "place", "value", "fault"),
    [
        ("vllm", 3, "usage.completion_tokens", 9, "its usage has 9 output tokens, and 6 arrived"),
        ("vllm", 3, "usage.completion_tokens", 5, "its usage has 5 output tokens, and 6 arrived"),
        ("vllm", 3, "usage.prompt_tokens", 4, "its usage has 4 prompt tokens, and 3 were sent"),
        ("vllm", 3, "usage.prompt_tokens_details.cached_tokens", 99, "99 cached tokens of 3 prompt tokens"),
        ("vllm", 0, "choices.0.prompt_token_ids", [5, 6, 8], "another prompt than the one that was sent"),
        ("vllm", 3, "metrics.speculative_decoding.num_draft_tokens", 2, "3 accepted tokens of 2 drafted ones"),
        ("vllm", 3, "metrics.speculative_decoding.acceptance_histogram", [9, 1, 1], "2 rounds, and its histogram 11"),
        (
            "vllm",
            3,
            "metrics.speculative_decoding.num_accepted_draft_tokens",
            4,
            "4 accepted tokens, and 3 by position",
        ),
        ("llama.cpp", 6, "timings.draft_n_accepted", 333, "333 accepted tokens of 6 drafted ones"),
        ("sglang", 2, "meta_info.spec_correct_drafts_histogram", [1, 1, 1], "2 rounds, and its histogram 3"),
        ("sglang", 2, "meta_info.completion_tokens", 60, "its usage has 60 output tokens, and 6 arrived"),
    ],
)
def test_counts_that_disagree_are_faults_and_no_figures(backend, number, place, value, fault):
    path = {"vllm": "/v1/completions", "llama.cpp": "/completion", "sglang": "/generate"}[backend]
    answers = answers_of(backend)
    answers[path] = edited_event(answers[path], number, place, value)
    found = completed(answers)
    assert found.tokens == TOKENS
    assert [fault in each for each in found.faults] == [True]
    assert found.speculation is None or "accepted" not in fault + "histogram" * ("histogram" in fault)
    entry = LoggedRequest(key=RequestKey(), tokens=list(TOKENS), faults=list(found.faults))
    assert fault in fault_notes([entry, LoggedRequest(key=RequestKey(number=1))], "on")[0].text


def test_reasoning_that_the_usage_leaves_out_is_counted_by_its_pieces_and_reported():
    rows = [{"choices": [{"delta": {"reasoning": word}}]} for word in "abcde"]
    rows += [
        {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"usage": {"completion_tokens": 1}, "choices": None},
    ]
    found = completed(answers_of("openai") | {"/v1/chat/completions": stream(*rows)}, CHAT)
    assert (found.count, found.text, found.reasoning) == (6, "x", "abcde")
    assert found.faults == ("its usage has 1 output tokens, and 6 pieces of text arrived",)
