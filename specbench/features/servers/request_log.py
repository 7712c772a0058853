"""The log of finished requests, one JSON line each, from which an interrupted command resumes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specbench.errors import ConfigError
from specbench.features.servers.request_key import RequestKey
from specbench.features.servers.served import Completion, ServedRequest, SpeculationCounts
from specbench.files import in_one_line
from specbench.http_client import FailureKind, RequestFailed

T = TypeVar("T")
LOG_VERSION = 3  # of the form of logs, in the names of their folders


@dataclass(kw_only=True)
class LoggedRequest:
    """A finished request: what identifies it, and what came back. A failed one has an `error` and no output."""

    key: RequestKey
    prompt: list[int] | None = None
    tokens: list[int] | None = None
    text: str = ""
    reasoning: str = ""
    finish: str = ""
    seed: int | None = None
    seconds: float = 0.0
    started: float = 0.0  # seconds since the command began
    chunks: list[tuple[float, int]] | None = None  # seconds since sending, and number of tokens
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    speculation: SpeculationCounts | None = None
    changed: dict[str, tuple[float, float]] | None = None  # echoed parameters that differ: sent, echoed
    model: str = ""
    faults: list[str] | None = None  # of the server: what contradicts itself in the answer
    error: str | None = None
    error_kind: str = ""

    @property
    def count(self) -> int:
        """The number of output tokens."""
        if self.tokens is not None:
            return len(self.tokens)
        return max(self.output_tokens or 0, sum(count for _, count in self.chunks or ()))

    @property
    def output(self) -> str:
        """The text of every channel."""
        return self.reasoning + self.text


def logged(key: RequestKey, completion: Completion, request: ServedRequest) -> LoggedRequest:
    """Return the log entry of a completion of a request."""
    return LoggedRequest(
        key=key,
        prompt=_ids(request) or (None if completion.prompt is None else list(completion.prompt)),
        tokens=None if completion.tokens is None else list(completion.tokens),
        text=completion.text,
        reasoning=completion.reasoning,
        finish=completion.finish,
        seed=request.seed,
        seconds=completion.seconds,
        chunks=_counted(completion),
        prompt_tokens=completion.prompt_tokens,
        output_tokens=completion.output_tokens,
        cached_tokens=completion.cached_tokens,
        queue_seconds=completion.queue_seconds,
        speculation=completion.speculation,
        changed=completion.changed_parameters(request.sampling) or None,
        model=completion.model,
        faults=list(completion.faults) or None,
    )


def storable(entry: LoggedRequest) -> LoggedRequest:
    """Return an entry that the log can be read with, or if it is not, its failure."""
    try:
        msgspec.json.decode(msgspec.json.encode(entry), type=LoggedRequest)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        kind = FailureKind.garbage
        return LoggedRequest(
            key=entry.key, prompt=entry.prompt, error=f"{kind}: {in_one_line(error)}", error_kind=kind.value
        )
    return entry


def failed(key: RequestKey, error: RequestFailed, request: ServedRequest) -> LoggedRequest:
    """Return the log entry of a failed request."""
    return LoggedRequest(key=key, prompt=_ids(request), error=str(error), error_kind=error.kind.value)


def _counted(completion: Completion) -> list[tuple[float, int]]:
    """Return the time of each chunk and its number of tokens.

    Without ids, the tokens are those that the server counts beside each chunk, else its tokens of the whole answer, spread in
    proportion to the text of the chunks. A chunk is one token if it reports none, or fewer tokens than chunks.
    """
    chunks, total = completion.chunks, completion.output_tokens
    if completion.tokens is not None:
        counts = [len(chunk.tokens) for chunk in chunks]
    elif sum(chunk.reported for chunk in chunks) == total and all(chunk.reported for chunk in chunks):
        counts = [chunk.reported for chunk in chunks]
    elif total is None or total <= len(chunks):
        counts = [1] * len(chunks)
    else:
        counts = _spread(total, [len(chunk.text) for chunk in chunks])
    return [(chunk.seconds, count) for chunk, count in zip(chunks, counts, strict=True)]


def _spread(total: int, weights: Sequence[int]) -> list[int]:
    """Return counts with a sum of `total`, at least one each and otherwise in proportion to weights."""
    weights = weights if any(weights) else [1] * len(weights)
    whole = sum(weights)
    wanted = [total * weight / whole for weight in weights]
    counts = [max(int(each), 1) for each in wanted]
    for _ in range(abs(total - sum(counts))):
        if sum(counts) < total:
            counts[max(range(len(counts)), key=lambda i: wanted[i] - counts[i])] += 1
        else:
            counts[max((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: counts[i] - wanted[i])] -= 1
    return counts


def _ids(request: ServedRequest) -> list[int] | None:
    """Return the ids that were sent; None for a text or a chat."""
    return list(request.prompt) if isinstance(request.prompt, tuple) and request.prompt else None


def complete_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a log, and cut off an incomplete last line, which a killed process leaves."""
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - len(rest))
    return lines


def read_log(path: Path, kind: type[T]) -> list[T]:
    """Return the entries of a log, without an incomplete last line. Raises ConfigError, with the line, if one is damaged."""
    found = []
    for number, line in enumerate(complete_lines(path), 1):
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{path}:{number}: damaged ({error}); help: remove the folder, and verify or run again"
            ) from None
    return found


class RequestLog:
    """An append-only file of finished requests. Only the last line can be incomplete, after a kill; it is ignored.

    Args:
        path: The file, which is created on the first entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[RequestKey, LoggedRequest] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        self.entries |= {entry.key: entry for entry in read_log(self.path, LoggedRequest)}

    def has(self, key: RequestKey) -> bool:
        """Return whether a request is finished and did not fail."""
        return key in self.entries and self.entries[key].error is None

    def add(self, entry: LoggedRequest) -> None:
        """Append an entry."""
        self.entries[entry.key] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")


def compact(table: Mapping[str, Any]) -> str:
    """Return a table as JSON that identifies it."""
    return json.dumps(table, sort_keys=True, separators=(",", ":"))
