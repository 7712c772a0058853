"""Streams of completions: channels, pieces, errors within them, and the forms of SGLang."""

import asyncio
import json

import pytest

from specbench.features.servers.answer_notes import id_notes
from specbench.features.servers.backends.answers import Arrival
from specbench.features.servers.backends.sglang import Sglang
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.load.load_metrics import first_token, time_per_token
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.sending import Sender
from specbench.features.servers.served import Completion, ServedRequest, SpeculationCounts
from specbench.http_client import RequestFailed
from tests.fixtures.answering_server import (
    BACKENDS,
    CHAT,
    REQUEST,
    Answer,
    answers_of,
    as_json,
    completed,
    edited_event,
    stream,
    used,
)

KEY = "sk-very/secret+key"


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "t"},
        {"reasoning": "t"},
        {"reasoning": "t", "reasoning_content": "t"},  # a version that sends both
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "t"}}]},
        {"content": None, "reasoning_content": "t"},
    ],
)
def test_tokens_of_every_channel_count_for_times(delta):
    rows = [{"choices": [{"delta": delta}]} for _ in range(4)]
    rows += [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    rows += [{"choices": [], "usage": {"completion_tokens": 5}}]
    found = completed(answers_of("openai") | {"/v1/chat/completions": stream(*rows)}, CHAT)
    assert (found.reasoning, found.text, len(found.chunks), found.faults) == ("tttt", "a", 5, ())


def test_times_of_a_reasoning_answer_begin_with_its_reasoning():
    entry = LoggedRequest(key=RequestKey(), output_tokens=5, chunks=[(0.02 + 0.01 * i, 1) for i in range(5)])
    assert first_token(entry) == pytest.approx(0.02) and time_per_token(entry) == pytest.approx(0.01)
    assert time_per_token(LoggedRequest(key=RequestKey(), chunks=[(0.1, 1), (0.2, 0)])) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_json_error_with_status_200_keeps_its_message(backend):
    answers = answers_of(backend)
    for path in ("/v1/completions", "/completion", "/generate"):
        for body in (
            {"object": "error", "message": "maximum context length is 9", "code": 400},
            {"error": {"message": "maximum context length is 9"}},
        ):
            if path in answers:
                request = ServedRequest(prompt="text", max_tokens=6) if backend == "openai" else REQUEST
                with pytest.raises(RequestFailed, match=r"error in the answer: .*maximum context length is 9"):
                    completed(answers | {path: as_json(body)}, request)


def test_an_error_after_some_tokens_keeps_its_message():
    answers = answers_of("vllm")
    rows = answers["/v1/completions"].body.split(b"\n\n")
    for event in (b'data: {"error": {"message": "engine dead"}}', b"event: error\ndata: engine dead"):
        body = b"\n\n".join([rows[0], event, *rows[1:]])
        with pytest.raises(RequestFailed, match="engine dead"):
            completed(answers | {"/v1/completions": Answer(body, kind="text/event-stream")})
    with pytest.raises(RequestFailed, match=r"ended the request \(abort\)"):
        completed(
            answers
            | {"/v1/completions": edited_event(answers["/v1/completions"], 2, "choices.0.finish_reason", "abort")}
        )


def test_a_server_that_does_not_stream_is_read():
    answers = answers_of("openai")
    whole = {
        "model": "m",
        "choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 2},
    }
    found = completed(answers | {"/v1/chat/completions": as_json(whole)}, CHAT)
    assert (found.text, found.count, len(found.chunks)) == ("a b", 2, 1)


def test_a_character_that_two_events_share_is_joined():
    rows = [{"choices": [{"text": half}]} for half in ("a\ud83d", "\ude00b")]
    rows.append({"choices": [{"text": "\ud800", "finish_reason": "stop"}]})
    found = completed(
        answers_of("openai") | {"/v1/completions": stream(*rows)}, ServedRequest(prompt="x", max_tokens=6)
    )
    assert found.text == "a\U0001f600b\ufffd"


@pytest.mark.parametrize("backend", ["vllm", "llama.cpp", "sglang"])
def test_answers_without_token_ids_are_counted_by_usage_and_named(backend):
    path = {"vllm": "/v1/completions", "llama.cpp": "/completion", "sglang": "/generate"}[backend]
    answers = answers_of(backend)
    rows = []
    for row in answers[path].body.split(b"\n\n")[:-2]:
        event = json.loads(row.removeprefix(b"data: "))
        for part in (event, *(event.get("choices") or ())):
            for key in ("token_ids", "tokens", "output_ids", "prompt_token_ids"):
                part.pop(key, None)
        rows.append(event)

    async def use(endpoint: Endpoint) -> tuple[Completion, LoggedRequest, object]:
        entries = list[LoggedRequest]()
        await Sender(endpoint, 0.0, entries.append).send(RequestKey(), REQUEST)
        return await endpoint.complete(REQUEST), entries[0], endpoint.description

    found, entry, description = used(answers | {path: stream(*rows)}, use)
    assert (found.tokens, found.text, found.count) == (None, " a b c d e f", 6)
    assert sum(count for _, count in entry.chunks) == 6
    assert "1 of 1 answers have no token ids" in id_notes([entry], description, "on")[0].text


def chunks_of(*pieces: tuple[str, int | None], total: int | None) -> list[int]:
    """Return the counted tokens of pieces of text, each with the usage beside it."""
    rows = [
        {"choices": [{"text": text}], "usage": None if made is None else {"completion_tokens": made}}
        for text, made in pieces
    ]
    rows.append({"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": total}})

    async def use(endpoint: Endpoint) -> list[int]:
        entry = await Sender(endpoint, 0.0, lambda _: None).send(RequestKey(), ServedRequest(prompt="x", max_tokens=99))
        return [count for _, count in entry.chunks or ()]

    return used(answers_of("openai") | {"/v1/completions": stream(*rows)}, use)


def test_several_tokens_of_a_piece_of_text_are_counted_by_the_usage_beside_it_or_by_its_text():
    assert chunks_of(("a", 1), ("bcd", 4), ("ef", 6), total=6) == [1, 3, 2]
    assert chunks_of((" a", None), (" b c d e f", None), total=6) == [1, 5]
    assert chunks_of(("a", None), ("a long piece", None), ("b", None), total=3) == [1, 1, 1]
    assert chunks_of(("a", None), ("bb", None), ("c", None), total=1000) == [250, 500, 250]
    assert chunks_of(("a", None), ("b", None), total=None) == [1, 1]


def sglang(*steps: tuple[list[int], str], **meta: object) -> Completion:
    made, events = 0, list[Arrival]()
    for at, (ids, text) in enumerate(steps):
        made = (
            int(meta.get("completion_tokens", 0))
            if at == len(steps) - 1 and "completion_tokens" in meta
            else made + len(ids)
        )
        last = {"finish_reason": {"type": "length"}} if at == len(steps) - 1 else {}
        events.append(
            Arrival({"output_ids": ids, "text": text, "meta_info": {"completion_tokens": made, **last, **meta}}, at)
        )
    return Sglang().completion(ServedRequest(prompt=(1,), max_tokens=9), events)


def test_an_incremental_stream_of_equal_tokens_is_not_taken_for_a_repeated_one():
    found = sglang(([5], "x"), ([5], "x"), ([5], "x"))
    assert (found.tokens, found.text, len(found.chunks)) == ((5, 5, 5), "xxx", 3)
    repeated = sglang(([5], "x"), ([5, 5], "xx"), ([5, 5, 5], "xxx"), completion_tokens=3)
    assert (repeated.tokens, repeated.text, len(repeated.chunks)) == ((5, 5, 5), "xxx", 3)


def test_a_wrong_count_does_not_make_a_repeating_stream_an_incremental_one():
    found = sglang(([5], "x"), ([5, 6, 7], "xyz"), completion_tokens=7)
    assert (found.tokens, found.text) == ((5, 6, 7), "xyz")


def test_a_server_with_the_newer_addresses_is_described():
    answers = answers_of("sglang")
    answers["/model_info"], answers["/server_info"] = answers.pop("/get_model_info"), answers.pop("/get_server_info")
    found = used(answers, lambda endpoint: asyncio.sleep(0, endpoint.description))
    assert (found.backend, found.speculation.method, found.speculation.length) == ("sglang", "EAGLE", 3)


@pytest.mark.parametrize(
    "names",
    [
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    ],
)
def test_counts_of_speculation_of_every_version_are_read(names):
    meta = {"spec_verify_ct": 2, **dict(zip(names, (3, 6, [0, 1, 1, 0]), strict=True))}
    found = sglang(([1], "a"), ([2, 3], "bc"), ([4, 5, 6], "def"), **meta)
    assert found.speculation == SpeculationCounts(2, 6, 3, (2, 1, 0)) and not found.faults


def test_an_old_version_counts_accepted_tokens_by_the_output_without_the_first_token():
    found = sglang(([1], "a"), ([2, 3], "bc"), ([4, 5, 6], "def"), spec_verify_ct=2)
    assert found.speculation == SpeculationCounts(2, None, 3)
    assert found.speculation.tokens_per_round == 2.5
