"""Records by column: the lines come back byte for byte, and damaged columns are an error."""

import json
import zlib

import pytest

from specbench.errors import ConfigError
from specbench.features.archive.archive_columns import LONGEST_KEY, columns_of, lines_of
from specbench.runs.record import CHECKSUM


def lines() -> bytes:
    usage = {"prefill_fed": 3, "seconds": 0.0012345, "by_fed": {"1": [2.0, 1e-07], "4": [1.0, 0.5]}}
    plain = {"tokens": 2, "drafted": 2, "tested": 2, "accepted": 1, "proposers": ["draft", "draft"]}
    few = {**usage, "by_fed": {}}
    records = [
        {"method": "ar", "tokens": [5, 6], "rounds": [], "models": {"target": usage}, "error": None},
        {
            "method": "ü\u2028",
            "tokens": [5],
            "rounds": [plain, {**plain, "inner": [plain]}],
            "models": {},
            "error": None,
        },
        {"method": "sd", "tokens": [], "rounds": [], "models": {}, "error": "out of memory"},
        {"method": "sd", "tokens": [], "rounds": [{**plain, "counters": {}}], "models": {"draft": few}, "error": None},
    ]
    texts = (json.dumps(record, ensure_ascii=False)[:-1].encode() for record in records)
    return b"".join(text + CHECKSUM % zlib.crc32(text) for text in texts)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_lines_come_back_byte_for_byte(count):
    some = b"".join(lines().split(b"\n")[i] + b"\n" for i in range(count))
    assert lines_of(columns_of(some)) == some


@pytest.mark.parametrize(
    "columns",
    [
        b"",
        b"{",
        b"3",
        b"[3]x",
        b'{"keys": [["a"]], "of": [0, 0], "columns": [[[1]]]}',
        b'{"keys": [["a"]], "of": [1], "columns": [[[1]]]}',
        b'{"keys": [["a", "b"]], "of": [0], "columns": [[[1], []]]}',
        b'{"keys": [["a"]], "of": [0]}',
        json.dumps({"keys": [["a" * (LONGEST_KEY + 1)]], "of": [0], "columns": [[[1]]]}).encode(),
        b"[" * 100_000,
    ],
)
def test_damaged_columns_are_an_error(columns):
    with pytest.raises(ConfigError, match="damaged columns"):
        lines_of(columns)
