"""SGLang's native server. Written after its documentation and tested only against hand-written responses: it needs a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Struct

from specbench.features.servers.backends.answers import (
    ABORTED,
    Arrival,
    Count,
    LogProbability,
    MalformedAnswer,
    OpenAiStream,
    TokenId,
    converted_in,
    events_of,
    fetched_optional,
    identifying,
)
from specbench.features.servers.backends.backend import Backend, TestedOn
from specbench.features.servers.served import (
    Chunk,
    Completion,
    Counters,
    Description,
    ServedRequest,
    ServedSpeculation,
    SpeculationCounts,
    of_histogram,
)
from specbench.http_client import HttpClient

INFO = ("/get_model_info", "/get_server_info")
NEWER_INFO = ("/model_info", "/server_info")
S = TypeVar("S", str, tuple[int, ...])


class ModelInfo(Struct):
    """The answer of /get_model_info."""

    model_path: str


class ServerInfo(Struct):
    """The part of the answer of /get_server_info that is read."""

    version: str | None = None
    served_model_name: str | None = None
    dtype: str | None = None
    context_length: Count | None = None
    max_total_num_tokens: Count | None = None
    max_running_requests: Count | None = None
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_steps: Count | None = None
    speculative_num_draft_tokens: Count | None = None  # with the target's own token
    enable_deterministic_inference: bool | None = None


class FinishReason(Struct):
    """Why an output ended. An aborted one has a message."""

    type: str = ""
    message: str | None = None


class MetaInfo(Struct):
    """The facts of a request so far. Counts of speculation have had three names since 2025, of which any may be present."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    finish_reason: FinishReason | str | None = None
    output_token_logprobs: list[tuple[LogProbability, TokenId, str | None]] | None = None
    output_top_logprobs: list[list[tuple[LogProbability, TokenId, str | None]] | None] | None = None
    spec_verify_ct: Count | None = None
    spec_num_correct_drafts: Count | None = None
    spec_accepted_drafts: Count | None = None
    spec_accept_token_num: Count | None = None
    spec_num_proposed_drafts: Count | None = None
    spec_proposed_drafts: Count | None = None
    spec_draft_token_num: Count | None = None
    spec_correct_drafts_histogram: list[Count] | None = None  # rounds with 0, 1, ... accepted tokens
    spec_accept_histogram: list[Count] | None = None

    @property
    def speculation(self) -> tuple[SpeculationCounts | None, tuple[str, ...]]:
        """The counts of the request, None without a round, and their faults.

        Versions that do not count accepted tokens count the output: a token of the prompt's forward, then the accepted
        tokens and one more of each round. Rounds that the end of the output cuts then have fewer.
        """
        rounds = self.spec_verify_ct
        accepted = _stated(self.spec_num_correct_drafts, self.spec_accepted_drafts, self.spec_accept_token_num)
        drafted = _stated(self.spec_num_proposed_drafts, self.spec_proposed_drafts, self.spec_draft_token_num)
        if not rounds or (accepted is None and self.completion_tokens is None):
            return None, ()
        if accepted is None:
            return SpeculationCounts(rounds, drafted, (self.completion_tokens or 0) - 1 - rounds), ()
        return of_histogram(rounds, drafted, accepted, self.spec_correct_drafts_histogram or self.spec_accept_histogram)


class GenerateEvent(Struct):
    """An event of `/generate`, or its whole answer."""

    meta_info: MetaInfo
    output_ids: list[TokenId] | None = None
    text: str | None = None


class Sglang(Backend):
    """SGLang: `/generate` with token ids.

    Each event of a stream repeats the whole output so far, or with `--incremental-streaming-output` has its new tokens.
    """

    name = "sglang"
    tested_on = TestedOn.answers
    streams_steps = True
    seeds_help = "--enable-deterministic-inference"
    drafts_chains = False

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        path, other = INFO
        found = await identifying(client, path, "model_path")
        if found is None:
            path, other = NEWER_INFO
            found = await identifying(client, path, "model_path", "is_generation")
        if found is None:
            return None
        model_info = converted_in(client, path, found, ModelInfo)
        answered = await fetched_optional(client, other, ServerInfo)
        info = answered or ServerInfo()
        draft_tokens = info.speculative_num_draft_tokens
        return Description(
            backend=self.name,
            url=client.server.url,
            version=info.version or "",
            model=model or info.served_model_name or model_info.model_path,
            weights=model_info.model_path,
            dtype=info.dtype or "",
            context=info.context_length or info.max_total_num_tokens,
            slots=info.max_running_requests,
            speculation=ServedSpeculation(
                is_on=info.speculative_algorithm is not None if answered else None,
                method=info.speculative_algorithm or "",
                draft=info.speculative_draft_model_path or "",
                length=info.speculative_num_steps or (draft_tokens - 1 if draft_tokens else None),
            ),
            has_ids=True,
            repeats_seeds=bool(info.enable_deterministic_inference),
        )

    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        if request.messages:
            body = {
                "model": model, "messages": list(request.messages), "max_tokens": request.max_tokens, "stream": True,
                "stream_options": {"include_usage": True}, "temperature": sampling.temperature, "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1, "min_p": sampling.min_p, "ignore_eos": request.ignore_eos,
                "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            }  # fmt: skip
            return "/v1/chat/completions", body if request.seed is None else {**body, "seed": request.seed}
        params: dict[str, Any] = {
            "max_new_tokens": request.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1, "min_p": sampling.min_p, "ignore_eos": request.ignore_eos,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        }  # fmt: skip
        if request.seed is not None:
            params["sampling_seed"] = request.seed
        if isinstance(request.prompt, str):
            prompt: dict[str, Any] = {"text": request.prompt}
        else:
            prompt = {"input_ids": list(request.prompt)}
        body = {**prompt, "sampling_params": params, "stream": True}
        if request.alternatives:
            body |= {"return_logprob": True, "top_logprobs_num": request.alternatives}
        return "/generate", body

    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        if request.messages:
            return replace(OpenAiStream(arrivals).completion(), prompt=None, tokens=None)
        events = [event for event, _ in events_of(arrivals, GenerateEvent)]
        metas = [event.meta_info for event in events]
        last = metas[-1] if metas else MetaInfo()
        ids = [tuple(event.output_ids or ()) for event in events]
        texts = [event.text or "" for event in events]
        is_whole = _repeats(ids) and (len(ids) == 1 or sum(map(len, ids)) != last.completion_tokens)
        has_whole_text = is_whole if any(ids) else _repeats(texts) and len(set(texts)) > 1
        new_ids = _increments(ids, ()) if is_whole else ids
        new_texts = _increments(texts, "") if has_whole_text else texts
        tokens = tuple(token for each in new_ids for token in each)
        pieces = [
            Chunk(new, text, arrival.seconds)
            for new, text, arrival in zip(new_ids, new_texts, arrivals, strict=True)
            if new or (text and not tokens)
        ]
        reason = last.finish_reason
        kind = reason.type if isinstance(reason, FinishReason) else reason or ""
        if kind in ABORTED:
            message = reason.message if isinstance(reason, FinishReason) else ""
            raise MalformedAnswer(f"meta_info.finish_reason: {kind}: {message or 'without a message'}")
        speculation, faults = last.speculation
        return Completion(
            tokens=tokens or None,
            text="".join(new_texts),
            chunks=tuple(pieces),
            finish={"stop": "eos"}.get(kind, kind),
            prompt_tokens=last.prompt_tokens,
            output_tokens=last.completion_tokens,
            cached_tokens=last.cached_tokens,
            reasoning_tokens=last.reasoning_tokens,
            speculation=speculation,
            faults=faults,
            log_probabilities=_rows(metas, len(tokens)),
        )

    async def counters(self, client: HttpClient) -> Counters | None:
        return None

    def flags(self, length: int) -> str:
        return f"--speculative-num-steps {length}" if length else "no --speculative-algorithm"


def _stated(*counts: int | None) -> int | None:
    """Return the first count that is stated."""
    return next((count for count in counts if count is not None), None)


def _repeats(values: Sequence[S]) -> bool:
    """Return whether each value begins with the one before it. Empty ones, of events without an output, do not count."""
    return all(later[: len(earlier)] == earlier for earlier, later in pairwise(filter(None, values)))


def _increments(values: Sequence[S], nothing: S) -> list[S]:
    """Return what each value adds to the one before it. An empty value adds nothing."""
    out, seen = list[S](), nothing
    for value in values:
        out.append(value[len(seen) :] if value else nothing)
        seen = value or seen
    return out


def _rows(metas: Sequence[MetaInfo], tokens: int) -> tuple[Mapping[int, float], ...]:
    """Return the log-probabilities by id of each token: of the last event, or if it lacks some, of all events."""
    own = [row for meta in metas[-1:] for row in meta.output_token_logprobs or ()]
    top = [row for meta in metas[-1:] for row in meta.output_top_logprobs or ()]
    if len(own) < tokens:
        own = [row for meta in metas for row in meta.output_token_logprobs or ()]
        top = [row for meta in metas for row in meta.output_top_logprobs or ()]
    if len(own) != len(top):
        raise MalformedAnswer("meta_info: output_token_logprobs and output_top_logprobs have different lengths")
    return tuple(
        {**{each[1]: each[0] for each in others or ()}, row[1]: row[0]} for row, others in zip(own, top, strict=True)
    )
