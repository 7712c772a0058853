"""One generation as a run folder keeps it: a line of samples.jsonl with a checksum."""

import dataclasses
import json
import math
import zlib
from dataclasses import dataclass, field
from typing import Annotated, NotRequired, TypedDict, cast

from msgspec import Meta

from specbench.decoding.round import Round
from specbench.decoding.usage import Usage
from specbench.errors import ConfigError
from specbench.files import parse_json

CHECKSUM = b', "crc32": "%08x"}\n'  # the end of a record's line

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0)]
Key = tuple[str, str, int]  # method, sample, repeat


class RoundRecord(TypedDict):
    """One round as it is recorded (`step.Round`). `refused` is the text of the draft from the rejected token on."""

    tokens: Count
    drafted: Count
    tested: Count
    accepted: Count
    proposers: list[str]
    counters: NotRequired[dict[str, float]]
    untested: NotRequired[Count]
    inner: "NotRequired[list[RoundRecord]]"
    rejected: NotRequired[str]


class UsageRecord(TypedDict):
    """What one model's session cost (`usage.Usage`)."""

    prefill_fed: Count
    prefill_seconds: Seconds
    encodes: Count
    forwards: Count
    fed: Count
    seconds: Seconds
    by_fed: dict[int, Annotated[list[Seconds], Meta(min_length=2, max_length=2)]]
    read: Count
    off_clock: float
    beside: float
    prefill_beside: float


def usage_record(usage: Usage) -> UsageRecord:
    """What a session cost, as it is recorded."""
    return cast(UsageRecord, dataclasses.asdict(usage))


def round_record(step: Round) -> RoundRecord:
    """A round as it is recorded; the text of what was rejected is the caller's to add."""
    out = RoundRecord(
        tokens=len(step.tokens),
        drafted=step.drafted,
        tested=step.tested,
        accepted=step.accepted,
        proposers=list(step.proposers),
    )
    if step.counters:
        out["counters"] = step.counters
    if step.untested:
        out["untested"] = step.untested
    if step.inner:
        out["inner"] = [round_record(each) for each in step.inner]
    return out


@dataclass(kw_only=True)
class Record:
    """One prompt, decoded once by one method. A failed one has an `error`, and no tokens and no timing."""

    method: str
    sample: str
    repeat: Count
    seed: int  # the run's, plus the repeat; with the sample it makes the generator's
    order: int  # how many generations were timed before it in this process: for drift
    prompt_tokens: Count = 0
    prompt_cut: Count = 0  # tokens of the prompt that were cut away
    prompt_ends: list[int] = field(default_factory=list)  # its first and last eight ids
    tokens: list[Count] = field(default_factory=list)  # committed ids, the first stop included
    text: str = ""  # without what follows a stop string
    pieces: list[str] = field(default_factory=list)  # what each token adds to the text
    finish: str = ""  # eos | stop | length | window
    rounds: list[RoundRecord] = field(default_factory=list)  # of methods that draft or note
    models: dict[str, UsageRecord] = field(default_factory=dict)  # by role
    first_token_seconds: Seconds | None = None  # from the prompt to the first committed tokens
    prefill_seconds: Seconds | None = None  # each model's first forward, its encoder's included
    decode_seconds: Annotated[float, Meta(gt=0.0)] | None = None  # all else between the prompt and the last token
    peak_bytes: Count | None = None  # CUDA only
    simulated: str = ""  # what about the models is not real: dummy weights, synthetic laws
    captured: Count = 0  # CUDA graphs captured for this generation, before its clock started
    capture_seconds: Seconds = 0.0
    error: str | None = None

    @property
    def has_valid_times(self) -> bool:
        """Whether all of its seconds are finite and not negative, and decoding took some."""
        times = [self.first_token_seconds, self.prefill_seconds, self.decode_seconds, self.capture_seconds]
        for usage in self.models.values():
            times += [usage["prefill_seconds"], usage["seconds"], *(each[1] for each in usage["by_fed"].values())]
        return self.decode_seconds != 0.0 and all(
            each is None or (math.isfinite(each) and each >= 0.0) for each in times
        )

    @property
    def key(self) -> Key:
        return self.method, self.sample, self.repeat


def line_of(record: Record) -> bytes:
    """A record as a line of samples.jsonl, which ends with a checksum of what is before it."""
    text = json.dumps(dataclasses.asdict(record), ensure_ascii=False)[:-1].encode()
    return text + CHECKSUM % zlib.crc32(text)


def parse_record(line: bytes) -> Record:
    """One line of samples.jsonl. Raises ConfigError where it is not a record, was changed, or contradicts itself.

    A line without a checksum, which an earlier version wrote, is taken as it is.
    """
    text, ending = line[: -len(CHECKSUM % 0)], line[-len(CHECKSUM % 0) :]
    if ending.startswith(CHECKSUM[:12]) and ending != CHECKSUM % zlib.crc32(text):
        raise ConfigError("it was changed after it was written")
    record = parse_json(line, Record, "record")
    if record.error is not None:
        if record.tokens or record.decode_seconds is not None:
            raise ConfigError("a failed generation has tokens or a timing")
        return record
    if record.decode_seconds is None or record.prefill_seconds is None:
        raise ConfigError("a generation without an error has no timing")
    if not record.tokens:
        raise ConfigError("a generation without an error has no tokens")
    if record.rounds and sum(each["tokens"] for each in record.rounds) != len(record.tokens):
        raise ConfigError("its rounds do not add up to its tokens")
    if any(
        each["accepted"] > each["tested"] or len(each["proposers"]) not in (0, each["tested"]) for each in record.rounds
    ):
        raise ConfigError("a round accepts more than it tests")
    return record
