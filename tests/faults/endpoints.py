"""Judges at an endpoint that answers wrongly, too much, too slowly or not at all, and then properly."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.faults.attack import Outcome, apart, here
from tests.fixtures.judge_server import judge_server

MIB = 2**20
MOST_MEMORY = (
    3 * 2**30
)  # bytes of address space beyond which a command fails, far below what the large answers unpack to
RUN = ["run", "--suite", "own.toml"]
SUITE = """
paper = "none"
shows = "faults"
description = "one cell"
judge = {{ name = "endpoint", url = "{url}", model = "m", timeout = {timeout}, retries = 1, of = "ar-draft", against = "ar" }}
[options]
limit = 3
repeats = 1
max_new_tokens = 16
temperature = 1.0
[[grid]]
methods = ["ar-draft"]
pairs = ["tiny"]
tasks = ["gsm8k"]
"""


class Fault(NamedTuple):
    """What a server sends. With `status`, that code; with `drips`, headers or a body that never end."""

    name: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    status: int = 200
    drips: str = ""
    rejected: bool = True  # False: an answer without a letter, which is a tie


FAULTS = (
    Fault("deep JSON", b"[" * 100_000),
    Fault("deep objects", b'{"a":' * 50_000),
    Fault("a long number", b'{"choices": 1' + b"0" * 5000 + b"}"),
    Fault("cut JSON", b'{"choices": [{"mess'),
    Fault("empty choices", b'{"choices": []}'),
    Fault("null", b"null"),
    Fault("choices of numbers", b'{"choices": [5]}'),
    Fault("not UTF-8", b"\xff\xfe\x00"),
    Fault("HTML", b"<html><body>Bad gateway</body></html>"),
    Fault("no content", b'{"choices": [{"message": {"content": null}}]}', rejected=False),
    Fault("a lone surrogate", b'{"choices": [{"message": {"content": "\\ud800"}}]}', rejected=False),
    Fault("escapes", b'{"choices": [{"message": {"content": "\\u001b[2J\\u202e"}}]}', rejected=False),
    Fault("16 MiB", b" " * (16 * MIB)),
    Fault("a gzip bomb", gzip.compress(b" " * (300 * MIB), 1), (("Content-Encoding", "gzip"),)),
    Fault("no gzip", b"x", (("Content-Encoding", "gzip"),)),
    Fault("an unknown encoding", b"x", (("Content-Encoding", "br"),)),
    Fault("dripping headers", drips="headers"),
    Fault("a dripping body", drips="body"),
    Fault("Retry-After: nan", b"busy", (("Retry-After", "nan"),), 503),
    Fault("Retry-After: -1", b"busy", (("Retry-After", "-1"),), 429),
    Fault("unauthorized", b'{"error": "key"}', (), 401),
    Fault("a redirection", b"", (("Location", "http://127.0.0.1:9/"),), 307),
    Fault("server error with escapes", b"\x1b[31mred\xe2\x80\xae", (), 500),
)  # fmt: skip


def failing(trials: int, seed: int, folder: Path) -> Outcome:
    """Judge a measured run by a server that fails: one line; generations stay, and a server that answers completes it."""
    source = folder / "source"
    source.mkdir()
    (source / "own.toml").write_text("\n".join(line for line in SUITE.splitlines() if not line.startswith("judge")))
    assert here(RUN, source).code == 0
    outcome = Outcome()
    for trial in range(trials):
        fault, where = FAULTS[(seed + trial) % len(FAULTS)], folder / f"trial-{trial}"
        shutil.copytree(source, where)
        outcome.add(f"{fault.name}, trial {trial}", _judged(fault, where, random.Random(f"{seed}:{trial}")))
        shutil.rmtree(where)
    return outcome


def _judged(fault: Fault, where: Path, rng: random.Random) -> list[str]:
    (samples,) = where.glob("results/*/samples.jsonl")
    before = samples.read_bytes()
    limit = f"--as={MOST_MEMORY}"
    with judge_server() as server:
        server.body, server.drips = fault.body, fault.drips
        server.first = [(fault.status, dict(fault.headers))] * (100 if fault.status != 200 or fault.headers else 0)
        (where / "own.toml").write_text(SUITE.format(url=server.url, timeout=1.0))
        wrapper = ("prlimit", limit) if shutil.which("prlimit") and rng.random() < 0.5 else ()
        done = apart(RUN, where, *wrapper) if wrapper else here(RUN, where)
        problems = done.problems({4} if fault.rejected else {0})
        problems += (
            ["control characters in the output"] if {"\x1b[31m", "\u202e"} & set(_pieces(done.out + done.err)) else []
        )
        server.body, server.drips, server.first = b"", "", []
        (where / "own.toml").write_text(SUITE.format(url=server.url, timeout=60.0))
        problems += here(RUN, where).problems({0})
    if samples.read_bytes() != before:
        problems.append("the generations changed")
    judged = [json.loads(path.read_text()) for path in where.glob("results/*/judged.json")]
    if [each["comparisons"] for each in judged] != [3]:
        problems.append(f"{[each['comparisons'] for each in judged]} comparisons, expected [3]")
    return problems


def _pieces(text: str) -> list[str]:
    return [piece for piece in ("\x1b[31m", "\u202e") if piece in text]
