"""Records by column: the lines come back byte for byte, and damaged columns are an error."""

import json

import pytest

from specbench.errors import ConfigError
from specbench.features.archive.columns import LONGEST_KEY, columns_of, lines_of
from specbench.runs.record import Record, line_of


def lines() -> bytes:
    usage = {"prefill_fed": 3, "seconds": 0.0012345, "by_fed": {1: [2.0, 1e-07], 4: [1.0, 0.5]}}
    plain = {"tokens": 2, "drafted": 2, "tested": 2, "accepted": 1, "proposers": ["draft", "draft"]}
    few = {**usage, "by_fed": {}}
    records = [
        Record(method="ar", sample="0", repeat=0, seed=0, order=0, tokens=[5, 6], models={"target": usage}),
        Record(method="sd", sample="ü\u2028", repeat=0, seed=0, order=1, rounds=[plain, {**plain, "inner": [plain]}]),
        Record(method="sd", sample="1", repeat=1, seed=1, order=2, error="out of memory"),
        Record(
            method="sd", sample="2", repeat=1, seed=1, order=3, rounds=[{**plain, "counters": {}}], models={"t": few}
        ),
    ]
    return b"".join(map(line_of, records))


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
