"""Server-sent events (WHATWG), read from the pieces in which a body arrives, and the errors that servers send as JSON."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

DONE = b"[DONE]"
BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\n|\r")
FIELDS = (b"data", b"event", b"error", b"id", b"retry", b"")  # `error` is llama.cpp's, an empty one a comment
UNKNOWN: Any = object()  # the value of a text that is not JSON


class Event(NamedTuple):
    """An event of a stream: its data, when its last byte arrived, on `time.perf_counter`, and its JSON value."""

    data: bytes
    at: float
    value: Any = UNKNOWN


class EventReader:
    """Reads server-sent events (WHATWG) from pieces of a body: a BOM, CR and CRLF, comments, and events of several lines.

    If each data line of an event is JSON by itself, each is an event, since some servers leave out the empty line between
    events. `is_error` says whether the last returned event is called an error: by `event: error`, or by llama.cpp's `error:`.
    """

    def __init__(self) -> None:
        self.is_error = False
        self._rest, self._other, self._lines = bytearray(), bytearray(), list[Event]()
        self._name, self._is_first, self._has_events, self._searched = b"", True, False, 0

    def add(self, chunk: bytes, at: float) -> Iterator[Event]:
        """Yield the events that a piece completes. `at` is its time of arrival."""
        self._rest += chunk
        if self._is_first and len(self._rest) < len(BOM) and BOM.startswith(self._rest):
            return
        if self._is_first:
            self._rest, self._is_first = self._rest.removeprefix(BOM), False
        begin = 0
        for match in LINE_END.finditer(self._rest, self._searched):
            if match[0] == b"\r" and match.end() == len(self._rest):
                break  # may be the first half of CRLF
            line, begin = bytes(self._rest[begin : match.start()]), match.end()
            yield from self._line(line, at)
        del self._rest[:begin]
        self._searched = max(len(self._rest) - 1, 0)

    def end(self, at: float) -> Iterator[Event]:
        """Yield the last events, which may lack an empty line, or an answer that is no stream."""
        if self._rest:
            yield from self._line(bytes(self._rest).rstrip(b"\r"), at)
        yield from self._line(b"", at)
        if not self._has_events and self._other.strip():
            yield Event(bytes(self._other), at, _value(bytes(self._other)))

    def _line(self, line: bytes, at: float) -> Iterator[Event]:
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            yield from self._dispatched()
        elif name not in FIELDS or (name and not colon):
            self._other += line + b"\n"
        elif name == b"event":
            self._name = value.strip()
        elif name in (b"data", b"error"):
            self._has_events = True
            if name == b"error":
                self._name = name
            if value.strip() == DONE:
                yield from self._dispatched()
                yield Event(DONE, at)
            else:
                self._lines.append(Event(value, at, _value(value)))
                if len(self._lines) == 1 and self._name != b"error" and self._lines[0].value is not UNKNOWN:
                    yield from self._dispatched()  # at once: the time of an event is the time of its data

    def _dispatched(self) -> Iterator[Event]:
        lines, self._lines = self._lines, []
        self.is_error, self._name = self._name == b"error", b""
        if any(line.value is UNKNOWN for line in lines):
            data = b"\n".join(line.data for line in lines)
            yield Event(data, lines[-1].at, _value(data))
        else:
            yield from lines


def error_message(value: Any) -> str:
    """Return the message of a JSON value that is an error, in the forms of OpenAI, vLLM, SGLang and FastAPI; else nothing."""
    if not isinstance(value, dict):
        return ""
    error = value.get("error")
    if error:
        inner = error.get("message") or error.get("error") if isinstance(error, dict) else error
        return inner if isinstance(inner, str) else _short_json(inner or error)
    if value.get("object") == "error" or not ({"choices", "data", "content", "meta_info", "tokens"} & value.keys()):
        found = value.get("message") or value.get("detail")
        if found and (isinstance(found, str) or "detail" in value):
            return found if isinstance(found, str) else _short_json(found)
    return ""


def _short_json(value: Any) -> str:
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return "an error without a message"


def _value(text: bytes) -> Any:
    """Return a JSON value, with NaN, which the type of a field rejects by its name; UNKNOWN for other texts."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNKNOWN
