"""Answers of servers as types: what is read from them, and the error of an answer in another form."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from specbench.features.servers.served import Chunk, Completion
from specbench.http_client import FailureKind, HttpClient, RequestFailed

T = TypeVar("T")
Anything: Any = object  # a type that every JSON value has
MOST_TOKENS = 2**22  # of a vocabulary; the largest ones have 2**18
TokenId = Annotated[int, Meta(ge=0, lt=MOST_TOKENS)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Milliseconds = Annotated[float, Meta(ge=0.0, le=1e12)]
LogProbability = Annotated[float, Meta(ge=-3.5e38, le=1e-3)]  # rounding may give a little more than 0
HALVES = re.compile("[\ud800-\udfff]")
PLACE = re.compile(r"(?: - at (.*))?$", re.DOTALL)
ABORTED = ("abort", "error")  # finish reasons of requests that the server gave up


class MalformedAnswer(ValueError):
    """An answer of another form. The message names the field."""


def converted(value: Any, kind: type[T]) -> T:
    """Return a JSON value as a type. Raises MalformedAnswer."""
    try:
        return msgspec.convert(value, kind)
    except UnicodeEncodeError:  # half a character, where another type is expected
        return converted(json.loads(HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False))), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        text = str(error).replace("`", "")
        place = PLACE.search(text)
        what = text[: place.start()] if place else text
        field = (place[1] if place and place[1] else "").replace("$.", "").replace("$", "the answer") or "the answer"
        raise MalformedAnswer(f"{field}: {what[:1].lower()}{what[1:]}") from None


async def fetched(client: HttpClient, path: str, kind: type[T]) -> T:
    """Return the JSON at a path as a type. Raises RequestFailed, also for another form."""
    return converted_in(client, path, await client.get_json(path), kind)


async def fetched_optional(client: HttpClient, path: str, kind: type[T]) -> T | None:
    """Return the JSON at a path as a type; None if there is no JSON at the path. Raises RequestFailed for another form."""
    try:
        value = await client.get_json(path)
    except RequestFailed as error:
        if error.is_loading or not (error.status or error.kind in (FailureKind.garbage, FailureKind.rejected)):
            raise
        return None
    return converted_in(client, path, value, kind)


async def identifying(client: HttpClient, path: str, *keys: str) -> dict[str, Any] | None:
    """Return the JSON at a path by which a kind of server is recognized; None if it is no table with these keys.

    Servers of other kinds have nothing there, or a page or JSON of their own. Raises RequestFailed if the server is lost.
    """
    found = await fetched_optional(client, path, Anything)
    is_table = isinstance(found, dict) and all(key in found for key in keys)
    return found if is_table else None


async def posted(client: HttpClient, path: str, body: Any, kind: type[T]) -> T:
    """Send JSON, and return the answer as a type. Raises RequestFailed, also for another form."""
    return converted_in(client, path, await client.post_json(path, body), kind)


def converted_in(client: HttpClient, path: str, value: Any, kind: type[T]) -> T:
    """Return a part of the answer at a path as a type. Raises RequestFailed."""
    try:
        return converted(value, kind)
    except MalformedAnswer as error:
        raise malformed(client, path, error) from None


def malformed(client: HttpClient, path: str, error: Exception) -> RequestFailed:
    """Return the failure of a request whose answer has another form."""
    return RequestFailed(FailureKind.garbage, f"{client.server.root}{path}: {client.server.redacted(str(error))}")


# /v1/models


class ModelFacts(Struct):
    """llama.cpp's facts of a model."""

    n_vocab: Count | None = None


class ModelEntry(Struct):
    """A model that a server lists."""

    id: str
    owned_by: str | None = None
    root: str | None = None
    max_model_len: Count | None = None
    meta: ModelFacts | None = None


class ModelList(Struct):
    """The answer of /v1/models."""

    data: list[ModelEntry] | None = None


async def single_model(client: HttpClient, model: str) -> ModelEntry:
    """Return the entry of /v1/models for the model that is named, or for the only one.

    Raises ValueError if it is unknown or ambiguous, RequestFailed if the server does not answer.
    """
    entries = (await fetched(client, "/v1/models", ModelList)).data or []
    if not model and len(entries) == 1:
        return entries[0]
    if named := [entry for entry in entries if entry.id == model and model]:
        return named[0]
    problem = f"does not serve {model!r}" if model else "serves several models" if entries else "serves no model"
    names = ", ".join(entry.id for entry in entries) or "none is listed"
    raise ValueError(f"{client.server.host} {problem}: {client.server.redacted(names)}; help: --model NAME")


class Tokens(Struct):
    """The answer of /tokenize."""

    tokens: list[TokenId]


# Completions in OpenAI's form, with the fields that vLLM and llama.cpp add


class CachedTokens(Struct):
    """The part of a prompt that was read from a cache."""

    cached_tokens: Count | None = None


class ReasoningTokens(Struct):
    """The part of an output that is reasoning."""

    reasoning_tokens: Count | None = None


class Usage(Struct):
    """The server's own counts of tokens."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | None = None


class Part(Struct):
    """A part of a message, such as Mistral's, whose reasoning is nested."""

    text: str | None = None
    thinking: "list[Part] | None" = None


class Function(Struct):
    """A part of a call of a tool."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct):
    """A call of a tool."""

    function: Function | None = None


class Delta(Struct):
    """A piece of a chat's answer. Tokens of every channel are generated tokens."""

    content: str | list[Part] | None = None
    reasoning_content: str | None = None  # DeepSeek, llama.cpp, SGLang
    reasoning: str | None = None  # vLLM, which may send both
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def answer(self) -> str:
        """The text of the answer."""
        parts = [self.content] if isinstance(self.content, str) else [part.text or "" for part in self.content or ()]
        return "".join([*parts, self.refusal or ""])

    @property
    def others(self) -> str:
        """The texts of other channels: reasoning, and calls of tools."""
        nested = [] if isinstance(self.content, str) else [part.thinking or () for part in self.content or ()]
        calls = [call.function for call in self.tool_calls or () if call.function is not None]
        return "".join(
            [
                self.reasoning_content or self.reasoning or "",
                *(part.text or "" for parts in nested for part in parts),
                *(
                    f"{call.name or ''}{call.arguments or ''}" for call in calls
                ),  # a table of Ollama's as Python writes it
            ]
        )


class TokenLogProbabilities(Struct):
    """Log-probabilities of `/v1/completions`. Those of chats have other fields and are not read."""

    tokens: list[str] | None = None
    token_logprobs: list[LogProbability] | None = None
    top_logprobs: list[dict[str, LogProbability] | None] | None = None


class Choice(Struct):
    """An output, or a piece of it."""

    index: Count | None = None
    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None  # of a server that does not stream
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    logprobs: TokenLogProbabilities | None = None

    @property
    def answer(self) -> str:
        """The text of the answer."""
        delta = self.delta or self.message
        return delta.answer if delta is not None else self.text or ""

    @property
    def others(self) -> str:
        """The text of other channels."""
        delta = self.delta or self.message
        return delta.others if delta is not None else ""


class Counted(Struct):
    """vLLM's speculation of a request, or of a step."""

    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: list[Count] | None = None  # steps with 0, 1, ... accepted tokens


class Metrics(Struct):
    """vLLM's metrics of a request."""

    queue_time_ms: Milliseconds | None = None
    speculative_decoding: Counted | None = None


class Timings(Struct):
    """llama.cpp's times and counts of a request."""

    cache_n: Count | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class CompletionEvent(Struct):
    """An event of a stream, or a whole answer. Every field may be null, as `choices` is beside the usage on some servers."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    prompt_token_ids: list[TokenId] | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None


class Arrival(NamedTuple):
    """A JSON event of a stream, and the seconds from sending to its arrival."""

    json: Any
    seconds: float


def events_of(arrivals: Iterable[Arrival], kind: type[T]) -> Iterator[tuple[T, float]]:
    """Yield the events of a stream as a type, with their times. Raises MalformedAnswer, naming the event and the field."""
    for at, arrival in enumerate(arrivals, 1):
        try:
            event = converted(arrival.json, kind)
        except MalformedAnswer as error:
            raise MalformedAnswer(f"event {at}: {error}") from None
        yield event, arrival.seconds


class OpenAiStream:
    """What the events of a stream in OpenAI's form say."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.usage, self.metrics, self.timings = Usage(), Metrics(), Timings()
        self.prompt: list[int] | None = None
        self.model = self.finish = ""
        self._counted = 0  # tokens by the usage of the events so far, on servers that send it with each
        self.log_probabilities: list[TokenLogProbabilities] = []
        self._pieces, self._answer, self._others = list[Chunk](), list[str](), list[str]()
        for at, (event, seconds) in enumerate(events_of(arrivals, CompletionEvent), 1):
            try:
                self._add(event, seconds)
            except MalformedAnswer as error:
                raise MalformedAnswer(f"event {at}: {error}") from None

    def _add(self, event: CompletionEvent, seconds: float) -> None:
        self.model = event.model or self.model
        self.usage, self.metrics = event.usage or self.usage, event.metrics or self.metrics
        self.timings = event.timings or self.timings
        self.prompt = event.prompt_token_ids or self.prompt  # of a chat, beside its choices
        for choice in event.choices or ():
            if choice.index:
                raise MalformedAnswer(f"choices: an output {choice.index}, and one output was requested")
            self.prompt = choice.prompt_token_ids or self.prompt
            self.finish = choice.finish_reason or self.finish
            if choice.logprobs is not None:
                self.log_probabilities.append(choice.logprobs)
            answer, others = choice.answer, choice.others
            self._answer.append(answer)
            self._others.append(others)
            if choice.token_ids or answer or others:
                so_far = (event.usage.completion_tokens if event.usage else None) or self._counted
                count, self._counted = so_far - self._counted, so_far
                self._pieces.append(Chunk(tuple(choice.token_ids or ()), others + answer, seconds, max(count, 0)))

    def completion(self) -> Completion:
        """Return the completion: with ids if the server returned some, else with text only."""
        ids = tuple(token for piece in self._pieces for token in piece.tokens)
        details, reasoning = self.usage.prompt_tokens_details, self.usage.completion_tokens_details
        return Completion(
            prompt=None if self.prompt is None else tuple(self.prompt),
            tokens=ids or None,
            text="".join(self._answer),
            reasoning="".join(self._others),
            chunks=tuple(piece for piece in self._pieces if piece.tokens or not ids),
            finish={"stop": "eos"}.get(self.finish, self.finish),
            prompt_tokens=self.usage.prompt_tokens,
            output_tokens=self.usage.completion_tokens,
            cached_tokens=details.cached_tokens if details else None,
            reasoning_tokens=reasoning.reasoning_tokens if reasoning else None,
            model=self.model,
        )


def rows_of(logprobs: TokenLogProbabilities) -> Iterator[dict[int, float]]:
    """Yield the log-probabilities of each token and its alternatives by id, of tokens named `token_id:N`."""
    if logprobs.tokens is None or logprobs.token_logprobs is None or logprobs.top_logprobs is None:
        return
    if not len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs):
        raise MalformedAnswer("logprobs: tokens, token_logprobs and top_logprobs have different lengths")
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        yield {**{id_of(key): float(of) for key, of in (top or {}).items()}, id_of(token): float(value)}


def id_of(name: str) -> int:
    """Return the id in `token_id:N`, or in the key of a table. Raises MalformedAnswer."""
    digits = name.removeprefix("token_id:")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) < MOST_TOKENS):
        raise MalformedAnswer(f"logprobs: {name!r} is no token id")
    return int(digits)
