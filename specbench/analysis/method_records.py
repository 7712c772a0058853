"""The records of one method of a run, and the sums over them that several metrics need."""

from collections.abc import Iterator, Sequence

from specbench.runs.record import Record, RoundRecord

Records = Sequence[Record]


def complete(records: Records, method: str) -> list[Record]:
    """Return the records of one method that did not fail."""
    return [r for r in records if r.method == method and r.error is None]


def paired(rows: Records, base: Records) -> tuple[list[Record], list[Record]]:
    """Return the records of the (sample, repeat) pairs that are in both inputs, in the same order."""
    ours, theirs = ({(r.sample, r.repeat): r for r in side} for side in (rows, base))
    keys = [key for key in ours if key in theirs]
    return [ours[key] for key in keys], [theirs[key] for key in keys]


def seconds(row: Record, end_to_end: bool = False) -> float:
    """Return the seconds of a completed generation: of decoding, or end to end, which includes prefill."""
    assert row.decode_seconds is not None and row.prefill_seconds is not None
    return row.decode_seconds + (row.prefill_seconds if end_to_end else 0.0)


def token_count(rows: Records) -> int:
    """Return the number of committed tokens of all generations."""
    return sum(len(r.tokens) for r in rows)


def round_count(rows: Records) -> int:
    """Return the number of verification rounds of all generations. Without drafting, each token is a round."""
    return sum(len(r.rounds) or len(r.tokens) for r in rows)


def rounds_of(rows: Records) -> Iterator[RoundRecord]:
    """Return all recorded rounds of all generations."""
    return (x for r in rows for x in r.rounds)
