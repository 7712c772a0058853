"""An asynchronous HTTP client for model servers: JSON, event streams, deadlines, and errors without secrets.

The client is a thin layer over aiohttp. It follows no redirection, reads a bounded number of bytes, and never repeats a
request: what to do about a failure is up to the caller.
"""

import ipaddress
import json
import math
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from specbench.errors import MissingAsset
from specbench.event_stream import BOM, DONE, UNKNOWN, Event, EventReader, error_message

KEY = "OPENAI_API_KEY"  # default environment variable of the key
MOST_BYTES = 2**26  # of an answer, decoded
MOST_ERROR_BYTES = 2**16  # of the answer with an error status
SHOWN = 200  # characters of an error's text
SHORTEST_KEY = 8  # characters; a shorter key is a placeholder such as EMPTY, which may occur in any text
LOADING = (502, 503, 504)  # HTTP statuses of a server that loads its model, and of a proxy before it
IDLE_SECONDS = 2.0  # after which a connection is not used again; servers close idle ones, often after 5 s


class FailureKind(StrEnum):
    """How a request failed."""

    connection = "no connection"
    reset = "connection lost"
    timeout = "timeout"
    status = "error status"
    garbage = "unreadable answer"
    too_large = "answer too large"
    incomplete = "incomplete answer"
    rejected = "error in the answer"


class RequestFailed(MissingAsset):
    """A failed request; exit code 4 where nothing handles it.

    `status` is the HTTP status, 0 if none arrived; `retry_after` is in seconds, None if unknown.
    """

    def __init__(self, kind: FailureKind, text: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(f"{kind}: {text}" if text else str(kind))
        self.kind, self.text, self.status, self.retry_after = kind, text, status, retry_after

    def at(self, url: str) -> "RequestFailed":
        """Return the failure with the server's URL in its text."""
        return (
            self if url in self.text else RequestFailed(self.kind, f"{url}: {self.text}", self.status, self.retry_after)
        )

    @property
    def is_loading(self) -> bool:
        """Whether the server, or the one that a proxy forwards to, is not ready yet."""
        return self.status in LOADING


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
                f"the URL of {parts.hostname} must not contain a password, since results name it"
                + (f"; help: set {self.key_env}" if self.key_env else "")
            )
        if any(not char.isprintable() for char in self.key):
            raise ValueError(
                f"the environment variable {self.key_env} has a line break or another control character, which no key has;"
                f' help: {self.key_env}="$(cat FILE)" leaves out the last line break'
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
        name = (urlsplit(self.url).hostname or "").rstrip(".")
        address = _address(name)
        if address is None:
            return name == "localhost" or name.endswith(".localhost")
        return address.is_loopback or address.is_unspecified  # Linux connects 0.0.0.0 and [::] to this machine

    @property
    def key(self) -> str:
        """The key; empty if the variable is not set."""
        return os.environ.get(self.key_env, "")

    def redacted(self, text: str) -> str:
        """Return a text in one line of at most SHOWN characters, with the key replaced."""
        text = " ".join(self.cleaned(text).split())
        for length in range(len(self._secret) - 1, SHORTEST_KEY - 1, -1):
            if text.endswith(self._secret[:length]):  # cut within the key
                text = f"{text[:-length]}${self.key_env}"
        return text[:SHOWN]

    def without_key(self, text: str) -> str:
        """Return a text with the key replaced by the name of its variable.

        Keys of fewer than SHORTEST_KEY characters are not replaced.
        """
        for form in self._forms:
            text = text.replace(form, f"${self.key_env}")
        return text

    def cleaned(self, value: Any) -> Any:
        """Return a JSON value whose texts are all without the key, and can be encoded.

        Halves of a surrogate pair are joined, and single ones replaced by U+FFFD.
        """
        if isinstance(value, str):
            if not value.isascii():
                value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return self.without_key(value)
        if isinstance(value, list):
            return [self.cleaned(each) for each in value]
        if isinstance(value, dict):
            return {self.cleaned(key): self.cleaned(each) for key, each in value.items()}
        return value

    @property
    def _secret(self) -> str:
        return self.key if len(self.key) >= SHORTEST_KEY else ""

    @property
    def _forms(self) -> tuple[str, ...]:
        """The key as it is, and as it is written in JSON."""
        secret = self._secret
        plain = json.dumps(secret)[1:-1]
        return tuple(filter(None, dict.fromkeys((secret, plain, plain.replace("/", r"\/")))))

    @property
    def _without_password(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self.url)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is written as, also in the short forms of IPv4 such as 127.1; None for a name."""
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        try:
            found = ipaddress.ip_address(socket.inet_aton(name))
        except (OSError, ValueError):
            return None
    return getattr(found, "ipv4_mapped", None) or found


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

    async def stream(self, path: str, body: Any) -> AsyncGenerator[Event, None]:
        """Send JSON, and yield the events of the answer up to `[DONE]`.

        An answer that is no stream is one event, such as the error or the whole completion of a server that does not stream.
        Raises RequestFailed, also for an event that the stream calls an error.
        """
        async with self._answer("POST", path, body) as response:
            reader, read = EventReader(), 0
            async for chunk in response.content.iter_any():
                at = time.perf_counter()
                read += len(chunk)
                if read > MOST_BYTES:
                    raise RequestFailed(FailureKind.too_large, f"more than {MOST_BYTES} bytes")
                for event in reader.add(chunk, at):
                    if event.data == DONE:
                        return
                    yield self._without_error(event, reader)
            for event in reader.end(time.perf_counter()):
                if event.data != DONE:
                    yield self._without_error(event, reader)

    def _without_error(self, event: Event, reader: "EventReader") -> Event:
        """Return an event. Raises RequestFailed if the stream calls it an error."""
        if reader.is_error:
            text = (
                event.data.decode(errors="replace") if event.value is UNKNOWN else error_message({"error": event.value})
            )
            raise RequestFailed(FailureKind.rejected, self.server.redacted(text))
        return event

    def parsed(self, content: bytes) -> Any:
        """Return the value of a JSON text, without the key. Raises RequestFailed for other texts, and for errors."""
        try:
            event = Event(content, 0.0, json.loads(content.removeprefix(BOM)))
        except (ValueError, RecursionError):
            raise self._not_json(content) from None
        value = self.value_of(event)
        try:
            return self.server.cleaned(value) if self.server.key or b"\\u" in content else value
        except RecursionError:
            raise self._not_json(content) from None

    def value_of(self, event: Event) -> Any:
        """Return the JSON value of an event, whose texts may end within a character or the key.

        Raises RequestFailed for other texts, and for errors.
        """
        if event.value is UNKNOWN:
            raise self._not_json(event.data)
        if text := error_message(event.value):
            raise RequestFailed(FailureKind.rejected, self.server.redacted(text))
        return event.value

    def _not_json(self, content: bytes) -> RequestFailed:
        shown = self.server.redacted(content[: 2 * SHOWN].decode(errors="replace"))
        return RequestFailed(FailureKind.garbage, f"not JSON: {shown!r}")

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
        content = b""
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > MOST_ERROR_BYTES:
                break
        text = self.server.redacted(_message_in(content))
        if response.status in (401, 403):
            text += f"; is {self.server.key_env} set?"
        after = _seconds(response.headers.get("Retry-After", ""))
        return RequestFailed(FailureKind.status, f"{response.status} {text}".strip(), response.status, after)

    async def _body(self, response: aiohttp.ClientResponse, most_bytes: int = MOST_BYTES) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > most_bytes:
                raise RequestFailed(FailureKind.too_large, f"more than {most_bytes} bytes")
        return bytes(body)


def _message_in(content: bytes) -> str:
    """Return the message of an answer with an error status, or the answer as it is."""
    text = content.decode(errors="replace")
    try:
        return error_message(json.loads(text)) or text
    except (ValueError, RecursionError):
        return text


def _seconds(text: str) -> float | None:
    """Return a Retry-After in seconds, at least 0; None if it is missing, a date, or no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None
