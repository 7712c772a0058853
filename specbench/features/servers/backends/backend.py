"""The interface of a backend, and the reading of Prometheus counters."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar

from specbench.data.task import Message
from specbench.features.servers.backends.answers import ABORTED, Arrival, MalformedAnswer, malformed
from specbench.features.servers.served import Completion, Counters, Description, ServedRequest, SpeculationCounts
from specbench.http_client import FailureKind, HttpClient, RequestFailed

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
MOST_COUNTED = 2.0**53
LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
PER_POSITION = "accepted_tokens_per_pos_total"


class TestedOn(StrEnum):
    """What a backend was tested on."""

    server = "a real server"
    answers = "hand-written responses"


WITHOUT_METRICS = (404, 405, 501)  # statuses of /metrics on servers that publish no counters


class Backend(ABC):
    """How to talk with one kind of server. Its subclasses have no state."""

    name: ClassVar[str]
    tested_on: ClassVar[TestedOn]
    streams_steps: ClassVar[bool] = False  # whether an event holds the tokens of one verification step
    seeds_help: ClassVar[str] = ""  # the option of the server with which equal seeds repeat outputs, if it needs one
    drafts_chains: ClassVar[bool] = True  # whether a round drafts at most the number of tokens that the server states
    metrics_prefix: ClassVar[str] = ""  # of its counters at /metrics; empty without any

    @abstractmethod
    async def describe(self, client: HttpClient, model: str) -> Description | None:
        """Return what the server says about itself; None if it speaks another backend.

        `model` is the name that the user gives, or empty. Raises RequestFailed if the server does not answer, ValueError if
        the model is unknown or ambiguous.
        """

    @abstractmethod
    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a streamed request."""

    @abstractmethod
    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        """Return the completion that the events of a stream make up, without `seconds`.

        Raises MalformedAnswer for events of another form.
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
                raise RequestFailed(FailureKind.garbage, f"{client.server.root}: no log-probabilities")
            rows.append(found[0])
        return rows

    async def tokenize(self, client: HttpClient, model: str, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text by the server's tokenizer; None if the backend has no ids. Raises RequestFailed."""
        return None

    async def rendered(self, client: HttpClient, model: str, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Return the ids of a chat, for a backend whose answers to chats have no ids; else None. Raises RequestFailed."""
        return None

    async def complete(self, client: HttpClient, model: str, request: ServedRequest) -> Completion:
        """Send a request and return its completion, with what contradicts itself in it. Raises RequestFailed."""
        path, body = self.body(request, model)
        begin = time.perf_counter()
        async with aclosing(client.stream(path, body)) as events:
            arrivals = [Arrival(client.value_of(event), event.at - begin) async for event in events]
        seconds = time.perf_counter() - begin
        try:
            completion = self.completion(request, arrivals)
        except MalformedAnswer as error:
            raise malformed(client, path, error) from None
        if not completion.finish:
            raise RequestFailed(FailureKind.incomplete, "the stream ended before its last event")
        if completion.finish in ABORTED:
            raise RequestFailed(FailureKind.incomplete, f"the server ended the request ({completion.finish})")
        cleaned = client.server.cleaned
        completion = replace(
            completion, seconds=seconds, text=cleaned(completion.text), reasoning=cleaned(completion.reasoning),
            finish=cleaned(completion.finish), model=cleaned(completion.model),
        )  # fmt: skip
        return completion.checked(request)

    async def counters(self, client: HttpClient) -> Counters | None:
        """Return the server's counters; None if it publishes none."""
        if not self.metrics_prefix:
            return None
        try:
            page = client.server.without_key((await client.get("/metrics")).decode(errors="replace"))
        except RequestFailed as error:
            if error.status in WITHOUT_METRICS:
                return None
            return Counters(None, fault=f"{client.server.root}/metrics: {error}")
        try:
            return self.read_counters(metrics_of(page))
        except MalformedAnswer as error:
            return Counters(None, fault=f"{client.server.root}/metrics: {client.server.redacted(str(error))}")

    def read_counters(self, samples: "Samples") -> Counters:
        """Return the counters of a reading of /metrics. Raises MalformedAnswer."""
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
        """Return the sum over all labels; None without samples. Raises MalformedAnswer if one is negative or not finite."""
        rows = self.get(name)
        if rows is None:
            return None
        for _, value in rows:
            if not 0.0 <= value <= MOST_COUNTED:
                raise MalformedAnswer(f"{name} is {value:g}")
        return sum(value for _, value in rows)

    def count(self, name: str) -> int | None:
        """Return the sum over all labels of a counter. Raises MalformedAnswer if it is no whole number."""
        found = self.total(name)
        if found is not None and found != int(found):
            raise MalformedAnswer(f"{name} is {found:g}, no whole number")
        return None if found is None else int(found)


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
    """Return the speculation counters whose names begin with `prefix`; None if they are missing.

    Raises MalformedAnswer for counters that are no counts, or contradict each other.
    """
    rounds, drafted, accepted = (
        samples.count(f"{prefix}{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if rounds is None or drafted is None or accepted is None:
        return None
    name, by = f"{prefix}{PER_POSITION}", dict[int, int]()
    samples.count(name)  # checks the values
    for labels, value in samples.get(name, []):
        label = labels.get("position")
        if label is None or not (label.isascii() and label.isdigit() and len(label) <= 4):
            raise MalformedAnswer(f"{name}: the label position is {'missing' if label is None else repr(label[:40])}")
        by[int(label)] = by.get(int(label), 0) + int(value)
    if sorted(by) != list(range(len(by))):
        raise MalformedAnswer(f"{name}: the positions are {', '.join(map(str, sorted(by)[:8]))}")
    counts = SpeculationCounts(rounds, drafted, accepted, tuple(by[i] for i in range(len(by))) or None)
    if counts.fault:
        raise MalformedAnswer(f"{prefix}*: {counts.fault}")
    return counts
