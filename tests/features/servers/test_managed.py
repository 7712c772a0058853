"""Servers that specbench starts: one at a time, ended with their process group, and their failures."""

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.fixtures.console import specbench

SERVER = """
    import json, os, subprocess, sys, threading, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    # a worker that leaves the session, and starts one that outlives it
    WORKER = "import os, subprocess, sys; os.setsid(); "
    WORKER += "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
    child = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
    with open(sys.argv[2], "a") as log:
        log.write(f"{os.getpid()} {child.stdout.readline().strip()} {os.environ['SIDE']}\\n")
    BEGIN, SECONDS = time.monotonic(), float(os.environ.get("LOADING", 0))
    if os.environ.get("DIES"):
        threading.Timer(0.2, lambda: (print("out of memory", flush=True), os._exit(9))).start()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/v1/models" and time.monotonic() - BEGIN < SECONDS:
                return self.answer(503, b'{"error": {"message": "Loading model"}}')
            body = json.dumps({"data": [{"id": "m", "owned_by": "x"}]}).encode()
            self.answer(200 if self.path == "/v1/models" else 404, body)

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            self.rfile.read(length)
            if time.monotonic() - BEGIN < SECONDS:
                return self.answer(503, b'{"error": {"message": "Loading model"}}')
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


def commands(tmp_path, port: int, loading: float = 0.0, dies: str = "", **changes) -> str:
    """Write a TOML file that starts the server above on a port, for both sides."""
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    command = json.dumps([sys.executable, str(tmp_path / "server.py"), str(port), str(tmp_path / "pids")])
    settings = {"command": command, "url": f'"http://127.0.0.1:{port}"', "ready_seconds": "60", **changes}
    text = "".join(
        f"[{side}]\n"
        + "".join(f"{key} = {value}\n" for key, value in settings.items())
        + f'env = {{ SIDE = "{side}", LOADING = "{loading}", DIES = "{dies}" }}\n'
        for side in ("on", "off")
    )
    (tmp_path / "start.toml").write_text(text)
    return str(tmp_path / "start.toml")


def run(tmp_path, start: str, *words, code=0):
    return specbench(
        "server", "run", "--start", start, "--data", "synthetic", "-n", "5", "-c", "1,2", "--pairs", "2", "--seconds", "0.2",
        "--ramp", "0", "-o", tmp_path / "out", *words, cwd=tmp_path, code=code,
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


def pids(tmp_path) -> list[int]:
    """Return the servers and their workers that were started."""
    rows = [line.split() for line in (tmp_path / "pids").read_text().splitlines()]
    return [int(pid) for server, worker, _ in rows for pid in (server, worker)]


def test_a_server_that_answers_while_it_loads_is_measured_when_it_is_ready(tmp_path, port):
    done = run(tmp_path, commands(tmp_path, port, loading=0.6), "--pairs", "1", "-c", "1")
    assert f"wait for http://127.0.0.1:{port}, which is loading, for at most 60 s" in done.stderr
    summary = json.loads(next((tmp_path / "out").glob("run-*/summary.json")).read_text())
    assert summary["failures"] == {"on": 0, "off": 0} and summary["levels"][0]["pairs"] == 1


def test_a_server_that_dies_while_it_loads_is_an_error_with_its_last_lines(tmp_path, port):
    done = run(tmp_path, commands(tmp_path, port, loading=60.0, dies="1"), code=4)
    assert "ended with code 9: out of memory" in done.stderr
    assert not any(map(alive, pids(tmp_path)))


def test_a_server_that_loads_too_long_is_an_error_with_its_last_lines(tmp_path, port):
    done = run(tmp_path, commands(tmp_path, port, loading=60.0, ready_seconds="0.8"), code=4)
    assert f"http://127.0.0.1:{port} was not ready within 0.8 s: error status: 503 Loading model" in done.stderr


def test_after_sigkill_of_the_command_nothing_of_its_server_stays_and_the_same_command_works(tmp_path, port):
    start = commands(tmp_path, port)
    program = str(Path(sys.executable).with_name("specbench"))
    line = [
        program,
        "server",
        "run",
        "--start",
        start,
        "--data",
        "synthetic",
        "-n",
        "5",
        "--seconds",
        "60",
        "-o",
        "out",
    ]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 3:
            assert command.poll() is None
            time.sleep(0.02)
        started = pids(tmp_path)
        assert len(started) == 2 and all(map(alive, started))
        command.kill()
    commands(tmp_path, port)
    run(tmp_path, start, "--pairs", "1", "-c", "1")  # waits for the address
    assert not any(map(alive, pids(tmp_path)))


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
