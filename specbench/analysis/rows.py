"""Records of one method: selection, pairing with another method's records, and their seconds."""

from collections.abc import Iterator, Sequence

from specbench.runs.record import Record, RoundRecord

Rows = Sequence[Record]


def complete(records: Rows, method: str) -> list[Record]:
    """Return the records of one method that did not fail."""
    return [r for r in records if r.method == method and r.error is None]


def paired(rows: Rows, base: Rows) -> tuple[list[Record], list[Record]]:
    """Return the generations (sample, repeat) that both sides completed, in one order."""
    ours, theirs = ({(r.sample, r.repeat): r for r in side} for side in (rows, base))
    keys = [key for key in ours if key in theirs]
    return [ours[key] for key in keys], [theirs[key] for key in keys]


def seconds(row: Record, end_to_end: bool = False) -> float:
    """Seconds of a completed generation: of decoding, or end to end, which includes prefill."""
    assert row.decode_seconds is not None and row.prefill_seconds is not None
    return row.decode_seconds + (row.prefill_seconds if end_to_end else 0.0)


def token_count(rows: Rows) -> int:
    """Committed tokens of all generations."""
    return sum(len(r.tokens) for r in rows)


def round_count(rows: Rows) -> int:
    """Verification rounds of all generations. Without drafting, each token is a round."""
    return sum(len(r.rounds) or len(r.tokens) for r in rows)


def rounds_of(rows: Rows) -> Iterator[RoundRecord]:
    """Return all recorded rounds of all generations."""
    return (x for r in rows for x in r.rounds)
