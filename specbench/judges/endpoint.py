"""Judges with an OpenAI-compatible HTTP API, such as the servers of OpenAI, vLLM, llama.cpp and Ollama."""

import json
import math
import os
import threading
import time
import zlib
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError, ReadTimeoutError

from specbench.errors import MissingAsset
from specbench.judges.judge import QUESTION, QuestionJudge

RETRIED = (408, 409, 429, 500, 502, 503, 504)  # HTTP status codes
LONGEST_WAIT = 60.0  # seconds
MOST_BYTES = 2**20  # of an answer, decoded
CHUNK = 2**12  # bytes
PASSING = (requests.ConnectionError, requests.Timeout, ReadTimeoutError, TimeoutError)  # errors that may pass
FAILURES = (requests.RequestException, HTTPError, TimeoutError, zlib.error)


class _Answer(NamedTuple):
    """A server's response."""

    status: int
    body: bytes
    retry_after: str


@dataclass(frozen=True, kw_only=True)
class Endpoint(QuestionJudge, name="endpoint"):
    """Sends each comparison to `url`/chat/completions, greedily decoded.

    The key is read from the environment variable `key_env`, and is not stored. Requests that fail for a reason that may pass
    are repeated `retries` times, after 1, 2, 4, ... seconds or as long as the server's Retry-After says.
    """

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    question: str = QUESTION
    max_tokens: int = 16
    timeout: float = 120.0  # seconds of one request in all
    retries: int = 5
    parallel: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ValueError(f"url = {self.url!r}: use http://HOST/v1 or https://HOST/v1")
        if "@" in urlsplit(self.url).netloc:
            raise ValueError(f"url: the results name it, so it must not contain a password; help: set {self.key_env}")
        if not self.model:
            raise ValueError("the judge's model is missing; help: --judge-model NAME")
        if self.parallel < 1 or self.retries < 0 or self.max_tokens < 1:
            raise ValueError("parallel and max_tokens are at least 1, retries at least 0")

    @property
    def label(self) -> str:
        """The model's name and the server."""
        return f"{self.model} at {urlsplit(self.url).netloc}"

    def answer(self, prompt: str) -> str:
        """Return the server's answer.

        Raises:
            MissingAsset: The server does not answer, or answers with an error.
        """
        for attempt in range(self.retries + 1):
            last = attempt == self.retries
            try:
                answer = self._before_deadline(prompt)
            except FAILURES as error:
                if last or not isinstance(error, PASSING):
                    raise MissingAsset(f"the judge at {self.url} does not answer: {type(error).__name__}") from None
                time.sleep(min(2.0**attempt, LONGEST_WAIT))
                continue
            if answer.status in RETRIED and not last:
                time.sleep(_wait(answer, attempt))
                continue
            return self._content(answer)
        raise AssertionError("the last attempt returns or raises")

    def _before_deadline(self, prompt: str) -> _Answer:
        """Return the server's answer. Raises TimeoutError after `timeout` seconds, also if parts of it arrive meanwhile."""
        future: Future[_Answer] = Future()

        def post() -> None:
            try:
                future.set_result(self._post(prompt, time.monotonic() + self.timeout))
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=post, daemon=True, name="specbench judge").start()
        return future.result(self.timeout)

    def _post(self, prompt: str, deadline: float) -> _Answer:
        """Send a prompt and read at most MOST_BYTES of the answer. Redirections are not followed."""
        key = os.environ.get(self.key_env, "")
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        headers = {"Accept-Encoding": "gzip", **({"Authorization": f"Bearer {key}"} if key else {})}
        with requests.post(
            f"{self.url.rstrip('/')}/chat/completions",
            json=body, headers=headers, timeout=self.timeout, stream=True, allow_redirects=False,
        ) as response:  # fmt: skip
            return _Answer(
                response.status_code, self._body(response, deadline), response.headers.get("Retry-After", "")
            )

    def _body(self, response: requests.Response, deadline: float) -> bytes:
        """Return a response's decoded body. Raises MissingAsset if it is larger than MOST_BYTES."""
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("gzip", "identity"):
            raise MissingAsset(f"the judge at {self.url} answers in the unsupported encoding {encoding[:20]!r}")
        unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        body = b""
        for chunk in response.raw.stream(CHUNK, decode_content=False):
            body += unpacked.decompress(chunk, MOST_BYTES + 1 - len(body)) if unpacked else chunk
            if len(body) > MOST_BYTES:
                raise MissingAsset(f"the judge at {self.url} answers with more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError
        return body

    def _content(self, answer: _Answer) -> str:
        """Return the text of a completion."""
        if not 200 <= answer.status < 300:
            key = f"; is {self.key_env} set?" if answer.status in (401, 403) else ""
            text = " ".join(answer.body.decode(errors="replace").split())[:200]
            raise MissingAsset(f"the judge at {self.url} answers {answer.status}{key}: {text}")
        try:
            content: Any = json.loads(answer.body)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise MissingAsset(f"the judge at {self.url} does not answer in the OpenAI format") from None
        return content if isinstance(content, str) else ""


def _wait(answer: _Answer, attempt: int) -> float:
    """Return the seconds until the next attempt."""
    try:
        wait = float(answer.retry_after)
    except ValueError:
        wait = math.nan  # a date
    return min(max(wait, 0.0) if math.isfinite(wait) else 2.0**attempt, LONGEST_WAIT)
