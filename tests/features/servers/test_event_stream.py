"""Server-sent events in the forms that servers write them, whatever the pieces in which they arrive."""

import json

import pytest

from specbench.event_stream import EventReader, error_message


def events(body: bytes, size: int) -> list[tuple[bytes, bool]]:
    """Return the events of a body that arrives in pieces of a size, and whether each is called an error."""
    reader, found = EventReader(), list[tuple[bytes, bool]]()
    for begin in range(0, len(body), size):
        found += [(event.data, reader.is_error) for event in reader.add(body[begin : begin + size], 0.0)]
    return found + [(event.data, reader.is_error) for event in reader.end(0.0)]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'\xef\xbb\xbfdata: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
        (b'data: {"a":1}\r\n\r\ndata: {"b":2}\r\n\r\n', [b'{"a":1}', b'{"b":2}']),
        (b'data: {"a":1}\r\rdata: {"b":2}\r\r', [b'{"a":1}', b'{"b":2}']),
        (b': ping\n\nid: 7\nevent: message\nretry: 5\ndata:{"a":1}\n\n', [b'{"a":1}']),
        (b'data: {"a":\ndata: 1}\n\n', [b'{"a":\n1}']),  # one event of two lines
        (b'data: {"a":1}\ndata: {"b":2}\n', [b'{"a":1}', b'{"b":2}']),  # two events without an empty line between them
        (b'data: {"a":1}', [b'{"a":1}']),
        (b"data: {oops\n\n", [b"{oops"]),
        (b'{"error": "busy"}', [b'{"error": "busy"}\n']),  # no stream
        (b"<html>\nBad gateway\n</html>", [b"<html>\nBad gateway\n</html>\n"]),
        (b"", []),
    ],
)
def test_events_do_not_depend_on_line_ends_comments_or_pieces(body, expected, size):
    assert events(body, size) == [(data, False) for data in expected]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("body", [b'event: error\ndata: {"m":1}\n\n', b'error: {"m":1}\n\n'])
def test_an_event_that_the_stream_calls_an_error_is_marked(body, size):
    assert events(body, size) == [(b'{"m":1}', True)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"error": {"message": "too long", "code": 400}}, "too long"),
        ({"error": "busy"}, "busy"),
        ({"error": {"code": 400}}, '{"code": 400}'),
        ({"object": "error", "message": "too long"}, "too long"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"msg": "field required"}]}, '[{"msg": "field required"}]'),
        ({"message": "no", "code": 1}, "no"),
        ({"error": None, "choices": []}, ""),
        ({"choices": [], "message": "an answer"}, ""),
        ({"version": "1"}, ""),
        ([1], ""),
    ],
)
def test_errors_are_recognized_in_the_forms_of_every_server(value, message):
    assert error_message(json.loads(json.dumps(value))) == message
