"""Servers that specbench starts: one at a time, ended with their process group, and their failures."""

import json
import sys
import textwrap

import pytest

from tests.fixtures.console import specbench

SERVER = """
    import json, os, subprocess, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(sys.argv[2], "a") as log:
        log.write(f"{os.getpid()} {child.pid} {os.environ['SIDE']}\\n")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"data": [{"id": "m", "owned_by": "x"}]}).encode()
            self.answer(200 if self.path == "/v1/models" else 404, body)

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            self.rfile.read(length)
            events = [{"model": "m", "choices": [{"text": "a"}]} for _ in range(6)]
            events.append({"model": "m", "choices": [{"text": "b", "finish_reason": "length"}],
                           "usage": {"prompt_tokens": 3, "completion_tokens": 7}})
            self.answer(200, "".join(f"data: {json.dumps(event)}\\n\\n" for event in events).encode())

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def commands(tmp_path, port: int, **changes) -> str:
    """Write a TOML file that starts the server above on a port, for both sides."""
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    command = json.dumps([sys.executable, str(tmp_path / "server.py"), str(port), str(tmp_path / "pids")])
    settings = {"command": command, "url": f'"http://127.0.0.1:{port}"', "ready_seconds": "60", **changes}
    text = "".join(
        f"[{side}]\n"
        + "".join(f"{key} = {value}\n" for key, value in settings.items())
        + f'env = {{ SIDE = "{side}" }}\n'
        for side in ("on", "off")
    )
    (tmp_path / "start.toml").write_text(text)
    return str(tmp_path / "start.toml")


def run(tmp_path, start: str, code=0):
    return specbench(
        "server", "run", "--start", start, "--data", "synthetic", "-n", "5", "-c", "1,2", "--pairs", "2", "--seconds", "0.2",
        "--ramp", "0", "-o", tmp_path / "out", cwd=tmp_path, code=code,
    )  # fmt: skip


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def port(unused_port):
    return unused_port


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_servers_run_one_at_a_time_in_the_order_a_b_b_a_and_end_with_their_children(tmp_path, port):
    done = run(tmp_path, commands(tmp_path, port))
    rows = [line.split() for line in (tmp_path / "pids").read_text().splitlines()]
    assert [side for _, _, side in rows] == ["on", "off", "on", "off"]  # described, then off on, on off
    assert not any(alive(int(pid)) for server, child, _ in rows for pid in (server, child))
    levels = json.loads(next((tmp_path / "out").glob("run-*/summary.json")).read_text())["levels"]
    assert [(level["concurrency"], level["pairs"]) for level in levels] == [(1, 2), (2, 2)]
    assert "shows no sign of it" in done.stdout


def test_a_server_that_does_not_start_is_an_error_with_its_last_lines(tmp_path, port):
    start = commands(
        tmp_path, port, command=json.dumps([sys.executable, "-c", "print('no memory'); raise SystemExit(3)"])
    )
    done = run(tmp_path, start, code=4)
    assert "ended with code 3" in done.stderr and "no memory" in done.stderr
    done = run(tmp_path, commands(tmp_path, port, command='["/no/such/program"]'), code=2)
    assert "cannot be started" in done.stderr


def test_an_address_that_answers_already_is_an_error(tmp_path, checkpoint):
    from tests.fixtures.model_server import model_server

    with model_server(checkpoint) as other:
        done = run(tmp_path, commands(tmp_path, int(other.url.rsplit(":", 1)[1])), code=2)
    assert "answers already; help: stop that server" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[on]\ncommand = []\nurl = 'http://h'\n[off]\ncommand = ['x']\nurl = 'http://h'\n",
            "command must not be empty",
        ),
        ("[on]\ncommand = ['x']\nurl = 'h'\n[off]\ncommand = ['x']\nurl = 'http://h'\n", "is no URL"),
        ("[on]\ncommand = ['x']\nurl = 'http://h'\n", "a value for 'off' is missing"),
        ("[on]\ncomand = ['x']\n[off]\n", "unknown key 'comand'"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, message):
    (tmp_path / "start.toml").write_text(text)
    assert message in run(tmp_path, str(tmp_path / "start.toml"), code=2).stderr
