"""Keys of servers: echoed ones reach no text, and malformed ones are errors."""

import json

import pytest

from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.request_log import RequestLog
from specbench.features.servers.sending import Sender
from specbench.features.servers.served import ServedRequest
from specbench.http_client import RequestFailed, Server
from tests.fixtures.answering_server import (
    CHAT,
    Answer,
    answers_of,
    completed,
    stream,
    used,
)
from tests.fixtures.console import specbench

KEY = "sk-very/secret+key"


@pytest.mark.parametrize("echo", [KEY, KEY.replace("/", r"\/"), "".join(rf"\u{ord(char):04x}" for char in KEY)])
def test_a_key_that_a_server_echoes_reaches_no_value_log_or_error(monkeypatch, tmp_path, echo):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    log = RequestLog(tmp_path / "log")

    def echoed(table: object) -> bytes:
        return json.dumps(table).replace("ECHO", echo).encode()

    answers = answers_of("openai")
    answers["/v1/models"] = Answer(echoed({"data": [{"id": "m ECHO"}]}))
    rows = [{"model": "m ECHO", "choices": [{"text": f" {word}ECHO", "finish_reason": "stop ECHO"}]} for word in "ab"]
    answers["/v1/completions"] = Answer(b"".join(b"data: " + echoed(row) + b"\n\n" for row in rows))

    async def use(endpoint: Endpoint) -> object:
        request = ServedRequest(prompt="x", max_tokens=9)
        await Sender(endpoint, 0.0, log.add).send(RequestKey(), request)
        with pytest.raises(RequestFailed) as error:
            await endpoint.complete(CHAT)
        return endpoint.description, str(error.value)

    answers["/v1/chat/completions"] = Answer(echoed({"error": {"message": "no key ECHO"}}), status=500)
    found = used(answers, use)
    stored = (tmp_path / "log").read_text()
    assert "$OPENAI_API_KEY" in stored and "$OPENAI_API_KEY" in repr(found)
    assert KEY not in stored + repr(found) and "secret" not in stored + repr(found)


def test_a_key_that_arrives_in_pieces_is_redacted(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    rows = [{"choices": [{"text": piece}]} for piece in (" ", KEY[:5], KEY[5:])]
    rows.append({"choices": [{"text": "", "finish_reason": "stop"}]})
    found = completed(
        answers_of("openai") | {"/v1/completions": stream(*rows)}, ServedRequest(prompt="x", max_tokens=9)
    )
    assert found.text == " $OPENAI_API_KEY"


def test_a_placeholder_of_a_key_is_left_in_texts(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    assert Server("http://host").without_key("EMPTY") == "EMPTY"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = Server("http://host")
    assert server.redacted(f"key {KEY[:12]}") == "key $OPENAI_API_KEY"  # an answer that was cut within the key


@pytest.mark.parametrize("key", ["sk-secret\n", "sk-\x7fsecret", "sk-\tsecret", "sk-\u2028secret"])
def test_a_key_with_a_line_break_is_an_error_that_names_its_variable(monkeypatch, key):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ValueError, match="environment variable MY_KEY has a line break") as error:
        Server("http://host", "MY_KEY")
    assert "secret" not in str(error.value)


def test_a_command_with_such_a_key_ends_with_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_KEY", "sk-secret\n")
    (tmp_path / "start.toml").write_text(
        "".join(f'[{side}]\ncommand = ["x"]\nurl = "http://h"\n' for side in ("on", "off"))
    )
    for words in (
        ("run", "--start", "start.toml"),
        ("describe", "http://h"),
        ("verify", "--on", "http://h", "--off", "http://h"),
    ):
        done = specbench("server", *words, "--key-env", "MY_KEY", cwd=tmp_path, code=2)
        assert "environment variable MY_KEY has a line break" in done.stderr and "secret" not in done.stderr
