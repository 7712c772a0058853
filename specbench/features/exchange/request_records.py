"""Acceptance by request, as vLLM and AIPerf record it: `acceptance_histogram` and counts in lines of JSON.

vLLM writes the record with `--per-request-spec-decode-metrics`, with a list as histogram; AIPerf's has a table. Both count
the rounds by accepted tokens, without the target's own one. The record may be nested anywhere in the JSON of a line.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from specbench.analysis.acceptance_profile import AcceptanceProfile, of_lengths
from specbench.errors import ConfigError
from specbench.files import in_one_line

HISTOGRAM = "acceptance_histogram"
DEEPEST = 100  # levels of JSON within which a record may be nested
TOO_DEEP = f"the JSON is nested more than {DEEPEST} levels deep"


class RequestRecord(msgspec.Struct, kw_only=True):
    """The speculation of one request."""

    acceptance_histogram: list[int] | dict[int, int]
    num_spec_steps: int | None = None
    num_accepted_draft_tokens: int | None = None
    num_spec_tokens: int | None = None
    engine: str = ""

    @property
    def counts(self) -> dict[int, int]:
        """The number of rounds by accepted tokens."""
        found = self.acceptance_histogram
        return found if isinstance(found, dict) else dict(enumerate(found))


def has_records(text: str) -> bool:
    """Return whether a text has such records."""
    return f'"{HISTOGRAM}"' in text


def read(text: str, source: str) -> AcceptanceProfile:
    """Return the profile of all requests in a text. Raises ConfigError for records that contradict themselves."""
    lengths, positions, engine = Counter[int](), 0, ""
    for i, record in enumerate(_records(text, source), 1):
        rounds = sum(record.counts.values())
        accepted = sum(length * count for length, count in record.counts.items())
        for name, stated, counted in (
            ("num_spec_steps", record.num_spec_steps, rounds),
            ("num_accepted_draft_tokens", record.num_accepted_draft_tokens, accepted),
        ):
            if stated is not None and stated != counted:
                raise ConfigError(f"{source}: record {i}: {name} is {stated}, and its histogram has {counted}")
        lengths.update({length + 1: count for length, count in record.counts.items() if count})
        positions = max(positions, record.num_spec_tokens or 0, *record.counts)
        engine = record.engine or engine
    return of_lengths(lengths, positions, source, conditions={"engine": engine} if engine else {})


def _records(text: str, source: str) -> Iterator[RequestRecord]:
    for number, value in _values(text, source):
        for table in _tables(value, f"{source}: line {number}"):
            try:
                yield msgspec.convert(table, RequestRecord, strict=False)
            except (msgspec.ValidationError, UnicodeEncodeError) as error:
                raise ConfigError(f"{source}: line {number}: {error}") from None


def _values(text: str, source: str) -> Iterable[tuple[int, object]]:
    """Yield the JSON values of a text: one, or one per line, with the line."""
    try:
        yield 1, json.loads(text)
        return
    except RecursionError:
        raise ConfigError(f"{source}: {TOO_DEEP}") from None
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except RecursionError:
                raise ConfigError(f"{source}: line {number}: {TOO_DEEP}") from None
            except ValueError as error:
                raise ConfigError(f"{source}: line {number} is not valid JSON: {in_one_line(error)}") from None


def _tables(value: object, where: str, depth: int = 0) -> Iterator[dict[str, object]]:
    """Yield the tables within a JSON value that have a histogram. Raises ConfigError below DEEPEST levels."""
    if depth > DEEPEST:
        raise ConfigError(f"{where}: {TOO_DEEP}")
    if isinstance(value, dict):
        if isinstance(value.get(HISTOGRAM), list | dict):
            yield value
        else:
            for inner in value.values():
                yield from _tables(inner, where, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _tables(inner, where, depth + 1)
