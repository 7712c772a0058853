"""Judges behind an OpenAI-compatible HTTP API, such as the servers of OpenAI, vLLM, llama.cpp and Ollama."""

import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

from specbench.errors import MissingAsset
from specbench.judges.judge import QUESTION, QuestionJudge

RETRIED = (408, 409, 429, 500, 502, 503, 504)  # HTTP status codes
LONGEST_WAIT = 60.0  # seconds


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
    timeout: float = 120.0  # seconds
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
                response = self._post(prompt)
            except requests.RequestException as error:
                if last or not isinstance(error, requests.ConnectionError | requests.Timeout):
                    raise MissingAsset(f"the judge at {self.url} does not answer: {type(error).__name__}") from None
                time.sleep(min(2.0**attempt, LONGEST_WAIT))
                continue
            if response.status_code in RETRIED and not last:
                time.sleep(_wait(response, attempt))
                continue
            return self._content(response)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, prompt: str) -> requests.Response:
        key = os.environ.get(self.key_env, "")
        return requests.post(
            f"{self.url.rstrip('/')}/chat/completions",
            json={
                "model": self.model,
                "messages": [{"role": "user", "content": prompt}],
                "temperature": 0,
                "max_tokens": self.max_tokens,
            },
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=self.timeout,
        )

    def _content(self, response: requests.Response) -> str:
        """Return the text of a completion."""
        if not response.ok:
            key = f"; is {self.key_env} set?" if response.status_code in (401, 403) else ""
            text = " ".join(response.text.split())[:200]
            raise MissingAsset(f"the judge at {self.url} answers {response.status_code}{key}: {text}")
        try:
            content: Any = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError):
            raise MissingAsset(f"the judge at {self.url} does not answer in the OpenAI format") from None
        return content if isinstance(content, str) else ""


def _wait(response: requests.Response, attempt: int) -> float:
    """Return the seconds until the next attempt."""
    try:
        return min(max(float(response.headers.get("Retry-After", "")), 0.0), LONGEST_WAIT)
    except ValueError:
        return min(2.0**attempt, LONGEST_WAIT)
