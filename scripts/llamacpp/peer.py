"""Decoding by a llama.cpp server as a method of specbench, so that a run measures both in turn.

Importing this module registers the method `llama.cpp`.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import NotRequired, TypedDict
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Usage

SERVE = Path(__file__).with_name("serve_gguf.py")
ANSWER_SECONDS, END_SECONDS = 600.0, 10.0  # the longest waits for an answer, and for the end of a server
_HTTP = build_opener(ProxyHandler({}))  # no proxy


class Timings(TypedDict):
    """llama.cpp's times of a request. The counts of drafts are missing if it did not draft."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_n: NotRequired[int]
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


class Answer(TypedDict):
    """The parts of an answer of `/completion` that are read."""

    tokens: list[int]
    timings: Timings


@dataclass(frozen=True)
class Completion:
    """The tokens of an answer, the seconds of decoding after the first one, and the counts of drafted and accepted tokens."""

    tokens: list[int]
    decode_seconds: float
    drafted: int
    accepted: int


class ServerFacts(TypedDict):
    """What a server prints once it listens: its address, the version of xllamacpp, and llama.cpp's instruction sets."""

    url: str
    version: str
    system: str


class LlamaCppError(RuntimeError):
    """A server did not start, or its answer does not fit the request."""


def request_of(prompt: Sequence[int], tokens: int) -> dict[str, object]:
    """Return the body of a greedy request of a fixed length, that uses no cached prompt."""
    return {
        "prompt": list(prompt), "n_predict": tokens, "ignore_eos": True, "return_tokens": True, "cache_prompt": False,
        "temperature": 0.0, "samplers": ["top_k", "temperature"], "top_k": 1,
    }  # fmt: skip


def completion_of(content: bytes, tokens: int) -> Completion:
    """Return what an answer to a request of so many tokens holds.

    Raises LlamaCppError if it has another number of tokens, or if a part of the prompt was cached.
    """
    try:
        answer = msgspec.json.decode(content, type=Answer)
    except msgspec.DecodeError as error:
        raise LlamaCppError(f"unexpected answer of llama.cpp ({error}): {content[:200]!r}") from None
    times = answer["timings"]
    if len(answer["tokens"]) != tokens or times["predicted_n"] != tokens:
        counts = f"{len(answer['tokens'])} tokens, {times['predicted_n']} of them timed"
        raise LlamaCppError(f"{tokens} tokens were requested from llama.cpp, which returned {counts}")
    if times.get("cache_n", 0):
        raise LlamaCppError(f"llama.cpp reused {times['cache_n']} cached tokens of an earlier prompt")
    return Completion(
        answer["tokens"], times["predicted_ms"] / 1e3, times.get("draft_n", 0), times.get("draft_n_accepted", 0)
    )


def post(url: str, request: Mapping[str, object]) -> bytes:
    """Send a request to `/completion` and return the answer. Raises LlamaCppError if that is an error."""
    body = Request(f"{url}/completion", json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with _HTTP.open(body, timeout=ANSWER_SECONDS) as reply:
            return bytes(reply.read())
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        raise LlamaCppError(f"llama.cpp answered {error.code}: {text[:200]}") from None


@dataclass
class _Served:
    """The cost of a request. All but the decoding counts as prefill, including HTTP."""

    usage: Usage = field(default_factory=Usage)

    def finish(self) -> None:
        """Do nothing: no timings are pending."""


@dataclass(frozen=True, kw_only=True)
class LlamaCpp(Method, name="llama.cpp"):
    """Greedy decoding by a llama.cpp server, in one request. The decoding time is the server's own."""

    url: str
    model: str = "target"

    @classmethod
    def undefined_at(cls, temperature: float) -> str:
        return "requests to llama.cpp are greedy" if temperature > 0.0 else ""

    def roles(self) -> tuple[str, ...]:
        return (self.model,)

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        served, count = _Served(), stop.room(models.ids)
        models.track("llama.cpp", served)
        begin = perf_counter()
        out = completion_of(post(self.url, request_of(models.ids, count)), count)
        before = perf_counter() - begin - out.decode_seconds
        served.usage.prefill(len(models.ids), before)
        yield Round(out.tokens, counters={"drafted": out.drafted, "accepted": out.accepted}, at=before)


@contextmanager
def serving(python: Path, log: Path, commands: Mapping[str, Sequence[str]]) -> Iterator[dict[str, ServerFacts]]:
    """Start servers, one for each command line of serve_gguf.py, and end them on exit. Their messages go to `log`.

    Raises LlamaCppError if one does not start.
    """
    with ExitStack() as stack:
        out = stack.enter_context(log.open("w", encoding="utf-8"))
        yield {
            name: stack.enter_context(_server([str(python), str(SERVE), *words], out.fileno(), log))
            for name, words in commands.items()
        }


@contextmanager
def _server(command: Sequence[str], errors: int, log: Path) -> Iterator[ServerFacts]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdin and process.stdout
    try:
        line = next((line for line in process.stdout if line.startswith("{")), "")
        if not line:
            raise LlamaCppError(f"llama.cpp did not start: {' '.join(command)}; its messages are in {log}")
        yield msgspec.json.decode(line, type=ServerFacts)
    finally:
        process.stdin.close()  # it ends by itself
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
