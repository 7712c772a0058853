"""An asynchronous HTTP client for model servers: JSON, event streams, deadlines, and errors without secrets.

The client is a thin layer over aiohttp. It follows no redirection, reads a bounded number of bytes, and never repeats a
request: what to do about a failure is up to the caller.
"""

import ipaddress
import json
import math
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import aiohttp

KEY = "OPENAI_API_KEY"  # default environment variable of the key
MOST_BYTES = 2**26  # of an answer, decoded
SHOWN = 200  # characters of an error's text
IDLE_SECONDS = 2.0  # after which a connection is not used again; servers close idle ones, often after 5 s
DATA = b"data:"
DONE = b"[DONE]"


class FailureKind(StrEnum):
    """How a request failed."""

    connection = "no connection"
    reset = "connection lost"
    timeout = "timeout"
    status = "error status"
    garbage = "unreadable answer"
    too_large = "answer too large"
    incomplete = "incomplete answer"


class RequestFailed(Exception):
    """A failed request. `status` is the HTTP status, 0 if none arrived; `retry_after` is in seconds, None if unknown."""

    def __init__(self, kind: FailureKind, text: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(f"{kind}: {text}" if text else str(kind))
        self.kind, self.status, self.retry_after = kind, status, retry_after


class Event(NamedTuple):
    """An event of a stream: its data, and the time at which its last byte arrived, on `time.perf_counter`."""

    data: bytes
    at: float


@dataclass(frozen=True)
class Server:
    """The address of a server, and where its key is.

    Args:
        url: `http://HOST:PORT`, with or without `/v1`.
        key_env: The environment variable of the key. Its value is sent, and never stored or printed.
        seconds: The longest duration of one request.
    """

    url: str
    key_env: str = KEY
    seconds: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self._without_password!r} is no URL of a server; help: http://HOST:PORT")
        if "@" in parts.netloc:
            raise ValueError(
                f"the URL of {parts.hostname} must not contain a password, since results name it; help: set {self.key_env}"
            )

    @property
    def root(self) -> str:
        """The URL without a trailing `/v1` or slash."""
        return re.sub(r"(/v1)?/*$", "", self.url)

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    @property
    def is_local(self) -> bool:
        """Whether requests stay on this machine."""
        name = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost" or name.endswith(".localhost")

    @property
    def key(self) -> str:
        """The key; empty if the variable is not set."""
        return os.environ.get(self.key_env, "")

    def redacted(self, text: str) -> str:
        """Return a text in one line of at most SHOWN characters, with the key replaced."""
        if self.key:
            text = text.replace(self.key, f"${self.key_env}")
        return " ".join(text.split())[:SHOWN]

    @property
    def _without_password(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self.url)


def _not_finite(word: str) -> None:
    """Reject NaN and infinite numbers, which are no JSON."""
    raise ValueError(word)


class HttpClient:
    """Connections to one server, open inside `async with`. Paths are appended to the server's URL.

    Args:
        server: The server.
        connections: The largest number of requests in flight; further ones wait.

    `reuses_connections` can be turned off for a server that closes connections which it announced to keep.
    """

    def __init__(self, server: Server, connections: int = 64) -> None:
        self.server, self._connections, self.reuses_connections = server, connections, True

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.server.key}"} if self.server.key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=self.server.seconds),
            headers={**headers, "Accept-Encoding": "identity"},
            trust_env=not self.server.is_local,  # proxies of the environment
            read_bufsize=2**20,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> bytes:
        """Return the body of an answer. Raises RequestFailed."""
        async with self._answer("GET", path, None) as response:
            return await self._body(response)

    async def post(self, path: str, body: Any, most_bytes: int = MOST_BYTES) -> bytes:
        """Send JSON, and return the body of the answer. Raises RequestFailed."""
        async with self._answer("POST", path, body) as response:
            return await self._body(response, most_bytes)

    async def get_json(self, path: str) -> Any:
        """Return the JSON of an answer. Raises RequestFailed."""
        return self.parsed(await self.get(path))

    async def post_json(self, path: str, body: Any) -> Any:
        """Send JSON, and return the JSON of the answer. Raises RequestFailed."""
        return self.parsed(await self.post(path, body))

    async def stream(self, path: str, body: Any) -> AsyncIterator[Event]:
        """Send JSON, and yield the events of the answer up to `[DONE]`. Raises RequestFailed."""
        async with self._answer("POST", path, body) as response:
            rest, read = b"", 0
            async for chunk in response.content.iter_any():
                at = time.perf_counter()
                read += len(chunk)
                if read > MOST_BYTES:
                    raise RequestFailed(FailureKind.too_large, f"more than {MOST_BYTES} bytes")
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(DATA):
                        data = line[len(DATA) :].strip()
                        if data == DONE:
                            return
                        yield Event(data, at)
            if rest.startswith(DATA) and (data := rest[len(DATA) :].strip()) != DONE:
                yield Event(data, time.perf_counter())

    def parsed(self, content: bytes) -> Any:
        """Return the value of a JSON text. Raises RequestFailed for other texts."""
        try:
            return json.loads(content, parse_constant=_not_finite)
        except (ValueError, RecursionError):
            shown = self.server.redacted(content[: 2 * SHOWN].decode(errors="replace"))
            raise RequestFailed(FailureKind.garbage, f"not JSON: {shown!r}") from None

    @asynccontextmanager
    async def _answer(self, verb: str, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {} if self.reuses_connections else {"Connection": "close"}
        try:
            async with self._session.request(
                verb, f"{self.server.url.rstrip('/')}{path}", json=body, headers=headers, allow_redirects=False
            ) as response:
                if not 200 <= response.status < 300:
                    raise await self._rejected(response)
                yield response
        except TimeoutError:
            raise RequestFailed(FailureKind.timeout, f"no answer within {self.server.seconds:g} s") from None
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            why = str(getattr(error, "os_error", error)) or type(error).__name__
            raise RequestFailed(FailureKind.connection, self.server.redacted(why)) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
            raise RequestFailed(FailureKind.reset, type(error).__name__) from None
        except aiohttp.ClientPayloadError:
            raise RequestFailed(FailureKind.incomplete, "the connection ended within the answer") from None
        except aiohttp.ClientError as error:
            raise RequestFailed(FailureKind.garbage, self.server.redacted(f"{type(error).__name__}: {error}")) from None

    async def _rejected(self, response: aiohttp.ClientResponse) -> RequestFailed:
        """Return the error of an answer whose status is no success."""
        text = self.server.redacted((await response.content.read(4 * SHOWN)).decode(errors="replace"))
        if response.status in (401, 403):
            text += f"; is {self.server.key_env} set?"
        after = _seconds(response.headers.get("Retry-After", ""))
        return RequestFailed(FailureKind.status, f"{response.status} {text}".strip(), response.status, after)

    async def _body(self, response: aiohttp.ClientResponse, most_bytes: int = MOST_BYTES) -> bytes:
        body = b""
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > most_bytes:
                raise RequestFailed(FailureKind.too_large, f"more than {most_bytes} bytes")
        return body


def _seconds(text: str) -> float | None:
    """Return a Retry-After in seconds, at least 0; None if it is missing, a date, or no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None
