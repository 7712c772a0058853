"""Requests that fail in every way: each is a recorded failure, and no key reaches a text."""

import asyncio
import itertools
from collections import Counter

import pytest

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.endpoint import connected
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import LoggedRequest, RequestLog
from specbench.features.servers.sending import ServerDied, send_all
from specbench.features.servers.served import ServedRequest
from specbench.http_client import FailureKind, HttpClient, RequestFailed, Server
from tests.fixtures.model_server import model_server

KEY = "sk-very-secret"
FAILURES = ("500", "429", "hang", "reset", "garbage", "cut")


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def failures(log: RequestLog) -> Counter[str]:
    """Return the number of failed requests by kind."""
    return Counter(entry.error_kind for entry in log.entries.values() if entry.error is not None)


async def sent(url: str, count: int, log: RequestLog, concurrency: int = 4, timeout: float = 2.0) -> None:
    async with connected(Server(url, seconds=timeout)) as endpoint:
        requests = [(RequestKey(number=i), ServedRequest(prompt=(1, 2, i % 50), max_tokens=2)) for i in range(count)]
        await send_all(endpoint, requests, log, concurrency, lambda: None)


def test_failures_are_recorded_and_the_next_call_sends_only_those_again(checkpoint, tmp_path):
    with model_server(checkpoint) as server:
        log = RequestLog(tmp_path / "requests.jsonl")
        server.failures = [*FAILURES, *[""] * 6, *FAILURES]
        asyncio.run(sent(server.url, 30, log))
        assert len(log.entries) == 30
        assert failures(log) == {
            FailureKind.status: 4, FailureKind.timeout: 2, FailureKind.reset: 2, FailureKind.garbage: 2,
            FailureKind.incomplete: 2,
        }  # fmt: skip
        before = len(server.requests)
        again = RequestLog(tmp_path / "requests.jsonl")
        asyncio.run(sent(server.url, 30, again))
        assert not failures(again) and len(again.entries) == 30
        assert len(server.requests) - before == 12
        assert set(server.keys) == {f"Bearer {KEY}"}
    assert KEY not in (tmp_path / "requests.jsonl").read_text()


def test_at_most_the_configured_requests_are_in_flight(checkpoint, tmp_path):
    with model_server(checkpoint, seconds_per_step=0.01) as server:
        asyncio.run(sent(server.url, 20, RequestLog(tmp_path / "log"), concurrency=3))
        assert server.most_in_flight == 3


def test_a_server_that_dies_ends_the_command_and_keeps_what_is_finished(checkpoint, tmp_path):
    with model_server(checkpoint) as server:
        server.failures = ["", "", *["reset"] * 50]
        log = RequestLog(tmp_path / "log")
        with pytest.raises(ServerDied, match="finished requests are kept; help: restart the server"):
            asyncio.run(sent(server.url, 40, log, concurrency=1))
        assert sum(entry.error is None for entry in log.entries.values()) == 2


def test_a_killed_write_loses_only_the_incomplete_line(tmp_path):
    path = tmp_path / "log"
    log = RequestLog(path)
    for i in range(5):
        log.add(LoggedRequest(key=RequestKey(number=i), text="ä" * i, tokens=[i]))
    whole = path.read_bytes()
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        kept = RequestLog(path)
        assert len(kept.entries) == whole[:end].count(b"\n")
        kept.add(LoggedRequest(key=RequestKey(number=-1)))
        assert set(RequestLog(path).entries) == {*kept.entries}


def test_a_damaged_line_is_an_error_that_names_it(tmp_path):
    (tmp_path / "log").write_bytes(b'{"key": {}}\n{"key": 5}\n')
    with pytest.raises(ConfigError, match="log:2: damaged"):
        RequestLog(tmp_path / "log")


def test_errors_name_the_server_and_never_the_key():
    async def connect(url: str) -> None:
        async with connected(Server(url, seconds=1.0)):
            pass

    with pytest.raises(MissingAsset, match=r"^http://127\.0\.0\.1:9: no connection: .*start the server"):
        asyncio.run(connect("http://127.0.0.1:9"))
    with pytest.raises(ValueError, match="must not contain a password"):
        Server("http://user:word@host")
    with pytest.raises(ValueError, match="is no URL of a server"):
        Server("localhost:8000")
    assert KEY not in Server("http://host").redacted(f"401 {KEY} {KEY}")


def test_paths_of_a_server_do_not_depend_on_a_trailing_v1():
    assert {Server(url).root for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/")} == {
        "http://h:1"
    }


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost:1", True), ("api.localhost", True), ("localhost.:8000", True), ("127.0.0.2", True), ("[::1]:8", True),
        ("0.0.0.0:8000", True), ("[::]:8000", True), ("[::ffff:127.0.0.1]:8", True), ("127.1:80", True),
        ("[::ffff:0.0.0.0]", True), ("example.org", False), ("10.0.0.1", False), ("[::ffff:10.0.0.1]", False),
        ("localhost.example.org", False), ("[fe80::1]", False),
    ],
)  # fmt: skip
def test_addresses_of_this_machine_are_local(host, is_local):
    assert Server(f"http://{host}").is_local is is_local


def test_another_or_an_ambiguous_model_is_an_error(checkpoint):
    async def connect(url: str, model: str) -> str:
        async with connected(Server(url), model) as endpoint:
            return endpoint.description.model

    with model_server(checkpoint) as server:
        assert asyncio.run(connect(server.url, "")) == "m"
        with pytest.raises(ConfigError, match="does not serve 'x': m; help: --model NAME"):
            asyncio.run(connect(server.url, "x"))


@pytest.mark.parametrize("backend", ["vllm", "llama.cpp"])
def test_the_backend_is_found_by_probing(checkpoint, backend):
    async def found(url: str) -> tuple[str, bool | None]:
        async with connected(Server(url)) as endpoint:
            return endpoint.description.backend, endpoint.description.speculation.is_on

    for speculates in (True, False):
        with model_server(checkpoint, backend=backend, speculates=speculates) as server:
            assert asyncio.run(found(server.url)) == (backend, speculates)


def test_a_large_answer_is_cut_off(checkpoint):
    async def fetch(url: str) -> None:
        async with HttpClient(Server(url)) as client:
            await client.post("/tokenize", {"prompt": "x" * 5000}, most_bytes=1000)

    with model_server(checkpoint) as server, pytest.raises(RequestFailed, match="more than 1000 bytes"):
        asyncio.run(fetch(server.url))


def test_hundreds_of_requests_of_all_kinds_lose_nothing(checkpoint, tmp_path):
    """Nine kinds of failures, and one complete answer in ten; a hanging one, which takes the timeout, is tested apart."""
    kinds = ("500", "429", "404", "reset", "garbage", "cut", "half", "empty", "page", "")
    with model_server(checkpoint) as server:
        log = RequestLog(tmp_path / "log")
        server.failures = list(itertools.islice(itertools.cycle(kinds), 300))
        asyncio.run(sent(server.url, 300, log, concurrency=4))
        assert len(log.entries) == 300
        assert sum(entry.error is None for entry in log.entries.values()) == 30
        assert len(RequestLog(tmp_path / "log").entries) == 300
