"""The interface of a dialect, and the reading of Prometheus counters."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from specbench.data.task import Message
from specbench.features.servers.served import Completion, Counters, Description, ServedRequest, SpeculationCounts
from specbench.http_client import FailureKind, HttpClient, RequestFailed

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PER_POSITION = "accepted_tokens_per_pos_total"


class TestedOn(StrEnum):
    """What a dialect was tested on."""

    server = "a real server"
    answers = "hand-written responses"


class Arrival(NamedTuple):
    """A JSON event of a stream, and the seconds from sending to its arrival."""

    json: Any
    seconds: float


class Dialect(ABC):
    """How to talk with one kind of server. Its subclasses have no state."""

    name: ClassVar[str]
    tested_on: ClassVar[TestedOn]
    streams_steps: ClassVar[bool] = False  # whether an event holds the tokens of one verification step
    seeds_help: ClassVar[str] = ""  # the option of the server with which equal seeds repeat outputs, if it needs one
    metrics_prefix: ClassVar[str] = ""  # of its counters at /metrics; empty without any

    @abstractmethod
    async def describe(self, client: HttpClient, model: str) -> Description | None:
        """Return what the server says about itself; None if it speaks another dialect.

        `model` is the name that the user gives, or empty. Raises RequestFailed if the server does not answer, ValueError if
        the model is unknown or ambiguous.
        """

    @abstractmethod
    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a streamed request."""

    @abstractmethod
    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        """Return the completion that the events of a stream make up, without `seconds`.

        Raises KeyError, TypeError, ValueError or IndexError for events of another form.
        """

    async def log_probabilities(
        self, client: HttpClient, model: str, prompt: Sequence[int], output: Sequence[int], alternatives: int
    ) -> list[Mapping[int, float]]:
        """Return for each token of `output` the log-probabilities of that token and its alternatives, at T = 1.

        By default one request of one token for each: its distribution is that of the target, since the first token of an
        output is never drafted.
        """
        rows = []
        for at in range(len(output)):
            request = ServedRequest(
                prompt=(*prompt, *output[:at]), max_tokens=1, alternatives=alternatives, reuse_cache=True
            )
            found = (await self.complete(client, model, request)).log_probabilities
            if not found:
                raise RequestFailed(FailureKind.garbage, "no log-probabilities")
            rows.append(found[0])
        return rows

    async def tokenize(self, client: HttpClient, model: str, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text by the server's tokenizer; None if the dialect has no ids. Raises RequestFailed."""
        return None

    async def rendered(self, client: HttpClient, model: str, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Return the ids of a chat, for a dialect whose answers to chats have no ids; else None. Raises RequestFailed."""
        return None

    async def complete(self, client: HttpClient, model: str, request: ServedRequest) -> Completion:
        """Send a request and return its completion. Raises RequestFailed."""
        path, body = self.body(request, model)
        arrivals: list[Arrival] = []
        begin = time.perf_counter()
        async for event in client.stream(path, body):
            value = client.parsed(event.data)
            if isinstance(value, dict) and value.get("error"):
                raise RequestFailed(FailureKind.incomplete, client.server.redacted(str(value["error"])))
            arrivals.append(Arrival(value, event.at - begin))
        seconds = time.perf_counter() - begin
        try:
            completion = self.completion(request, arrivals)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise RequestFailed(
                FailureKind.garbage, f"not in the form of {self.name} ({type(error).__name__}: {error})"
            ) from None
        if not completion.finish:
            raise RequestFailed(FailureKind.incomplete, "the stream ended before its last event")
        return _with_seconds(completion, seconds)

    async def counters(self, client: HttpClient) -> Counters | None:
        """Return the server's counters; None if it publishes none."""
        if not self.metrics_prefix:
            return None
        try:
            samples = metrics_of((await client.get("/metrics")).decode(errors="replace"))
        except RequestFailed:
            return None
        return self.read_counters(samples)

    def read_counters(self, samples: "Samples") -> Counters:
        """Return the counters of a reading of /metrics."""
        prefix = f"{self.metrics_prefix}:"
        return Counters(speculation_of(samples, f"{prefix}spec_decode_num_"))

    def flags(self, length: int) -> str:
        """Return the flags of the server for a draft length; 0 turns speculation off. Empty if unknown."""
        return ""

    def flags_by_concurrency(self, lengths: Mapping[int, int]) -> str:
        """Return the flags for a draft length at each concurrency; empty if the server has one length for all."""
        return ""


class Samples(dict[str, list[tuple[dict[str, str], float]]]):
    """Prometheus samples: the labels and the value of each, by name."""

    def total(self, name: str) -> float | None:
        """Return the sum over all labels; None if there is no sample."""
        rows = self.get(name)
        return None if rows is None else sum(value for _, value in rows)


def metrics_of(text: str) -> Samples:
    """Return the samples in the text format of Prometheus. Lines of another form are ignored."""
    samples = Samples()
    for line in text.splitlines():
        if (match := SAMPLE.match(line)) is not None:
            try:
                samples.setdefault(match[1], []).append((dict(LABEL.findall(match[2] or "")), float(match[3])))
            except ValueError:
                continue
    return samples


def speculation_of(samples: Samples, prefix: str) -> SpeculationCounts | None:
    """Return the speculation counters whose names begin with `prefix`; None if they are missing."""
    rounds, drafted, accepted = (
        samples.total(f"{prefix}{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if rounds is None or drafted is None or accepted is None:
        return None
    by: dict[int, float] = {}
    for labels, value in samples.get(f"{prefix}{PER_POSITION}", []):
        position = int(labels["position"])
        by[position] = by.get(position, 0.0) + value
    positions = tuple(int(by[i]) for i in sorted(by)) if by else None
    return SpeculationCounts(int(rounds), int(drafted), int(accepted), positions)


def _with_seconds(completion: Completion, seconds: float) -> Completion:
    object.__setattr__(completion, "seconds", seconds)
    return completion


async def single_model(client: HttpClient, model: str) -> dict[str, Any]:
    """Return the entry of /v1/models for the model that is named, or for the only one.

    Raises ValueError if it is unknown or ambiguous, RequestFailed if the server does not answer.
    """
    listed = await client.get_json("/v1/models")
    entries = [entry for entry in listed.get("data", []) if isinstance(entry, dict)]
    names = [str(entry.get("id", "")) for entry in entries]
    if not model and len(entries) == 1:
        return entries[0]
    if model in names:
        return entries[names.index(model)]
    problem = f"does not serve {model!r}" if model else "serves several models"
    raise ValueError(f"{client.server.host} {problem}: {', '.join(names) or 'none is listed'}; help: --model NAME")
