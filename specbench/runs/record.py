"""Records of generations: the lines of samples.jsonl, each with a checksum."""

import json
import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from specbench.decoding.round import Round
from specbench.errors import ConfigError
from specbench.files import parse_json

if TYPE_CHECKING:
    from specbench.decoding.session import Usage  # imports torch

CHECKSUM = b', "crc32": "%08x"}\n'  # the end of a record's line
SECONDS_DIGITS = 7  # decimal places of a time
EARLIER_WORDS = {  # keys of usage in records of earlier revisions -> today's
    b'"off_clock":': b'"excluded_seconds":',
    b'"beside":': b'"overlapped_seconds":',
    b'"prefill_beside":': b'"prefill_overlapped_seconds":',
}

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0)]
Key = tuple[str, str, int]  # method, sample, repeat


@dataclass(kw_only=True)
class RoundRecord:
    """A round (`decoding.round.Round`). `rejected` is the text of the draft from the rejected token on."""

    tokens: Count
    drafted: Count
    tested: Count
    accepted: Count
    proposers: list[str]
    counters: dict[str, float] = field(default_factory=dict)
    untested: Count = 0
    inner: "list[RoundRecord]" = field(default_factory=list)
    rejected: str = ""
    siblings: list[Annotated[int, Meta(ge=1)]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the round as JSON, without what is empty."""
        needed = {key: getattr(self, key) for key in ("tokens", "drafted", "tested", "accepted", "proposers")}
        others = {key: getattr(self, key) for key in ("counters", "untested", "rejected", "siblings")}
        inner = {"inner": [round_.to_json() for round_ in self.inner]} if self.inner else {}
        return {**needed, **{key: value for key, value in others.items() if value}, **inner}


@dataclass(kw_only=True)
class UsageRecord:
    """The usage of one model's session (`decoding.session.Usage`)."""

    prefill_fed: Count
    prefill_seconds: Seconds
    encodes: Count
    forwards: Count
    fed: Count
    seconds: Seconds
    by_fed: dict[int, Annotated[list[Seconds], Meta(min_length=2, max_length=2)]]
    read: Count
    excluded_seconds: float
    overlapped_seconds: float
    prefill_overlapped_seconds: float

    @property
    def own_seconds(self) -> float:
        """The seconds of decoding forwards during which no slower model was running."""
        return self.seconds - self.overlapped_seconds


def rounded(seconds: float) -> float:
    """Return a time to 0.1 µs, about what reading the clock takes, so that records compress well. Smaller times stay."""
    return round(seconds, SECONDS_DIGITS) or seconds


def usage_record(usage: "Usage") -> UsageRecord:
    """Return the usage of a session as a record."""
    return UsageRecord(
        prefill_fed=usage.prefill_fed,
        prefill_seconds=rounded(usage.prefill_seconds),
        encodes=usage.encodes,
        forwards=usage.forwards,
        fed=usage.fed,
        seconds=rounded(usage.seconds),
        by_fed={fed: [count, rounded(seconds)] for fed, (count, seconds) in usage.by_fed.items()},
        read=usage.read,
        excluded_seconds=rounded(usage.excluded_seconds),
        overlapped_seconds=rounded(usage.overlapped_seconds),
        prefill_overlapped_seconds=rounded(usage.prefill_overlapped_seconds),
    )


def round_record(round_: Round, rejected: str = "") -> RoundRecord:
    """Return the record of a round. `rejected` is the text of the rejected draft."""
    return RoundRecord(
        tokens=len(round_.tokens),
        drafted=round_.drafted,
        tested=round_.tested,
        accepted=round_.accepted,
        proposers=list(round_.proposers),
        counters=round_.counters,
        untested=round_.untested,
        inner=[round_record(inner) for inner in round_.inner],
        rejected=rejected,
        siblings=list(round_.siblings),
    )


@dataclass(kw_only=True)
class Record:
    """One generation: a prompt decoded once by a method. A failed one has an `error`, and neither tokens nor times."""

    method: str
    sample: str
    repeat: Count
    seed: int  # of the run, plus the repeat; with the sample it determines the sampler's seed
    order: int  # the number of generations timed before it in this process, to detect drift
    run: str = ""  # the start of the hash of the run that it belongs to
    same_as: str = ""  # the first sample of the run with an equal prompt; empty for that sample itself
    prompt_tokens: Count = 0
    prompt_cut: Count = 0  # tokens truncated from the prompt
    prompt_ends: list[int] = field(default_factory=list)  # its first and last eight ids
    tokens: list[Count] = field(default_factory=list)  # committed ids, including the first stop token
    text: str = ""  # up to the first stop string
    pieces: list[str] = field(default_factory=list)  # the text that each token adds
    finish: str = ""  # eos | stop | length | window
    window_of: str = ""  # the model whose context window ended it
    rounds: list[RoundRecord] = field(default_factory=list)  # of methods that draft or have counters
    models: dict[str, UsageRecord] = field(default_factory=dict)  # by role
    first_token_seconds: Seconds | None = None  # from the prompt to the first committed tokens
    prefill_seconds: Seconds | None = None  # the first forward of each model, including its encoder
    decode_seconds: Annotated[float, Meta(gt=0.0)] | None = None  # the remaining time from the prompt to the last token
    other_cpu_seconds: float | None = None  # of other programs, on all processors, while it was decoded
    wrong_tokens: Count | None = None  # greedy tokens that the declared distribution excludes; None if not compared
    peak_bytes: Count | None = None  # CUDA only
    simulated: str = ""  # what is simulated: dummy weights, synthetic logits
    captured: Count = 0  # CUDA graphs captured for this generation, before its clock started
    capture_seconds: Seconds = 0.0
    error: str | None = None

    @property
    def has_valid_times(self) -> bool:
        """Whether all of its times are finite and not negative, and the decoding time is positive."""
        times = [self.first_token_seconds, self.prefill_seconds, self.decode_seconds, self.capture_seconds]
        for usage in self.models.values():
            times += [usage.prefill_seconds, usage.seconds, *(pair[1] for pair in usage.by_fed.values())]
        return self.decode_seconds != 0.0 and all(
            time is None or (math.isfinite(time) and time >= 0.0) for time in times
        )

    def as_failed(self, error: str) -> "Record":
        """Return the record of a failure: what identifies the generation, and neither tokens nor times of decoding."""
        return Record(
            method=self.method, sample=self.sample, repeat=self.repeat, seed=self.seed, order=self.order, run=self.run,
            same_as=self.same_as, prompt_tokens=self.prompt_tokens, simulated=self.simulated,
            captured=self.captured, capture_seconds=self.capture_seconds, error=error,
        )  # fmt: skip

    @property
    def prompt(self) -> str:
        """The sample that stands for all samples with this prompt: equal prompts are one prompt."""
        return self.same_as or self.sample

    @property
    def key(self) -> Key:
        """Method, sample and repeat, which identify a generation in a run."""
        return self.method, self.sample, self.repeat


def line_of(record: Record) -> bytes:
    """Return a record as a line of samples.jsonl that ends with its checksum."""
    table = {
        **vars(record),
        "rounds": [round_.to_json() for round_ in record.rounds],
        "models": {role: vars(usage) for role, usage in record.models.items()},
    }
    text = json.dumps(table, ensure_ascii=False)[:-1].encode()
    return text + CHECKSUM % zlib.crc32(text)


def parse_record(line: bytes) -> Record:
    """Parse a line of samples.jsonl. Raises ConfigError if it is not a record, was changed, or is inconsistent."""
    text, ending = line[: -len(CHECKSUM % 0)], line[-len(CHECKSUM % 0) :]
    if not ending.startswith(CHECKSUM[:12]):
        raise ConfigError("it has no checksum")
    if ending != CHECKSUM % zlib.crc32(text):
        raise ConfigError("it was changed after it was written")
    if b'"beside":' in line:
        for earlier, word in EARLIER_WORDS.items():
            line = line.replace(earlier, word)
    record = parse_json(line, Record, "record")
    if record.error is not None:
        if record.tokens or record.decode_seconds is not None:
            raise ConfigError("a failed generation has tokens or a timing")
        return record
    if record.decode_seconds is None or record.prefill_seconds is None:
        raise ConfigError("a generation without an error has no timing")
    if not record.tokens:
        raise ConfigError("a generation without an error has no tokens")
    if record.rounds and sum(round_.tokens for round_ in record.rounds) != len(record.tokens):
        raise ConfigError("its rounds do not add up to its tokens")
    if any(
        round_.accepted > round_.tested or len(round_.proposers) not in (0, round_.tested) for round_ in record.rounds
    ):
        raise ConfigError("a round accepts more than it tests")
    if any(len(round_.siblings) not in (0, round_.tested) for round_ in record.rounds):
        raise ConfigError("siblings must have one count per tested depth")
    return record
