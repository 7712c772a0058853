"""vLLM's OpenAI-compatible server with its own fields. Tested with vLLM 0.32 on a CPU."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import uuid4

from msgspec import Struct

from specbench.features.servers.backends.answers import (
    Arrival,
    Count,
    LogProbability,
    MalformedAnswer,
    OpenAiStream,
    Tokens,
    converted_in,
    fetched_optional,
    id_of,
    malformed,
    posted,
    rows_of,
    single_model,
)
from specbench.features.servers.backends.backend import Backend, Samples, TestedOn, speculation_of
from specbench.features.servers.served import (
    Completion,
    Counters,
    Description,
    ServedRequest,
    ServedSpeculation,
    of_histogram,
)
from specbench.http_client import HttpClient

LARGEST_BATCH = 4096  # the end of the last range of batch sizes


class Version(Struct):
    """The answer of /version."""

    version: str | None = None


class ModelConfig(Struct):
    """The part of vLLM's configuration about the model."""

    dtype: str | None = None


class SchedulerConfig(Struct):
    """The part of vLLM's configuration about batches."""

    max_num_seqs: Count | None = None


class VllmConfig(Struct):
    """vLLM's configuration."""

    model_config: ModelConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    speculative_config: dict[str, Any] | None = None


class ServerInfo(Struct):
    """The answer of /server_info. Versions that do not know `config_format` return the configuration as text."""

    vllm_config: VllmConfig | str | None = None


class SpeculativeConfig(Struct):
    """The settings of speculation that are read by their names."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: Count | None = None


class PromptLogProbability(Struct):
    """The log-probability of a token of a prompt."""

    logprob: LogProbability


class ScoredChoice(Struct):
    """An output with the log-probabilities of its prompt: of each token by id, null for the first one."""

    prompt_logprobs: list[dict[str, PromptLogProbability] | None] | None = None


class ScoredText(Struct):
    """The answer to a request for the log-probabilities of a prompt."""

    choices: list[ScoredChoice]


class Vllm(Backend):
    """vLLM: `/v1/completions` with token ids; an event of a stream holds the tokens of one verification step."""

    name = "vllm"
    tested_on = TestedOn.server
    streams_steps = True
    metrics_prefix = "vllm"

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        entry = await single_model(client, model)
        if entry.owned_by != "vllm":
            return None
        version = await fetched_optional(client, "/version", Version)
        found = await fetched_optional(client, "/server_info?config_format=json", ServerInfo)
        config = found.vllm_config if found and isinstance(found.vllm_config, VllmConfig) else None
        counters = await self.counters(client)
        is_on = counters.speculation is not None if counters and not counters.fault else None
        settings = (config.speculative_config if config else None) or {}
        speculation = converted_in(client, "/server_info", settings, SpeculativeConfig)
        return Description(
            backend=self.name,
            url=client.server.url,
            version=(version.version if version else None) or "",
            model=entry.id,
            weights=entry.root or "",
            dtype=((config.model_config.dtype if config and config.model_config else None) or "").removeprefix(
                "torch."
            ),
            context=entry.max_model_len,
            slots=config.scheduler_config.max_num_seqs if config and config.scheduler_config else None,
            speculation=ServedSpeculation(
                is_on=bool(settings) if config else is_on,
                method=speculation.method or "",
                draft=speculation.model or "",
                length=speculation.num_speculative_tokens or _positions(counters),
                settings={key: value for key, value in settings.items() if _is_setting(key, value)},
            ),
            has_ids=True,
        )

    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": model, **asdict(request.sampling), "max_tokens": request.max_tokens, "ignore_eos": request.ignore_eos,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "n": 1,
            "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if request.seed is not None:
            body["seed"] = request.seed
        if not request.reuse_cache:
            body["cache_salt"] = uuid4().hex  # no other request has this prefix
        if request.messages:
            logprobs = {"logprobs": True, "top_logprobs": request.alternatives} if request.alternatives else {}
            return "/v1/chat/completions", {**body, "messages": list(request.messages), **logprobs}
        if request.alternatives:
            body |= {"logprobs": request.alternatives, "return_tokens_as_token_ids": True}
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        return "/v1/completions", {**body, "prompt": prompt}

    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        stream = OpenAiStream(arrivals)
        queue, counts = stream.metrics.queue_time_ms, stream.metrics.speculative_decoding
        speculation, faults = None, tuple[str, ...]()
        if counts is not None:
            speculation, faults = of_histogram(
                counts.num_spec_steps, counts.num_draft_tokens, counts.num_accepted_draft_tokens,
                counts.acceptance_histogram,
            )  # fmt: skip
        return replace(
            stream.completion(),
            queue_seconds=None if queue is None else queue / 1e3,
            speculation=speculation,
            faults=faults,
            log_probabilities=tuple(row for logprobs in stream.log_probabilities for row in rows_of(logprobs)),
        )

    async def log_probabilities(
        self, client: HttpClient, model: str, prompt: Sequence[int], output: Sequence[int], alternatives: int
    ) -> list[Mapping[int, float]]:
        """Return the log-probabilities of a given text from one request."""
        body = {
            "model": model, "prompt": [*prompt, *output], "max_tokens": 1, "temperature": 0.0,
            "prompt_logprobs": alternatives,
        }  # fmt: skip
        answer = await posted(client, "/v1/completions", body, ScoredText)
        try:
            return list(_rows(answer, prompt, output))
        except MalformedAnswer as error:
            raise malformed(client, "/v1/completions", error) from None

    async def tokenize(self, client: HttpClient, model: str, text: str) -> tuple[int, ...] | None:
        return tuple((await posted(client, "/tokenize", {"model": model, "prompt": text}, Tokens)).tokens)

    def read_counters(self, samples: Samples) -> Counters:
        return Counters(
            speculation_of(samples, "vllm:spec_decode_num_"),
            running=samples.total("vllm:num_requests_running"),
            waiting=samples.total("vllm:num_requests_waiting"),
            output_tokens=samples.total("vllm:generation_tokens_total"),
            cache_queries=samples.total("vllm:prefix_cache_queries_total"),
            cache_hits=samples.total("vllm:prefix_cache_hits_total"),
            preemptions=samples.total("vllm:num_preemptions_total"),
        )

    def flags(self, length: int) -> str:
        if not length:
            return "no --speculative-config"
        return "--speculative-config " + json.dumps({"num_speculative_tokens": length}).replace("}", ", ...}")

    def flags_by_concurrency(self, lengths: Mapping[int, int]) -> str:
        table = {
            "num_speculative_tokens": max(lengths.values()),
            "num_speculative_tokens_per_batch_size": ranges(lengths),
        }
        return "--speculative-config " + json.dumps(table).replace("}", ", ...}")


def ranges(lengths: Mapping[int, int]) -> list[list[int]]:
    """Return ranges [from, to, length] of concurrencies. Each measured level ends its range, the last one has no end."""
    out: list[list[int]] = []
    begin = 1
    for level, length in sorted(lengths.items()):
        if out and out[-1][2] == length:
            out[-1][1] = level
        else:
            out.append([begin, level, length])
        begin = level + 1
    out[-1][1] = max(out[-1][1], LARGEST_BATCH)
    return out


def _is_setting(key: str, value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and not key.endswith("_config")
    is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**53 and bool(value)
    return (is_number or (isinstance(value, str) and value != "")) and not key.endswith("_config")


def _positions(counters: Counters | None) -> int | None:
    """Return the draft length that counters by position imply."""
    found = counters.speculation.by_position if counters and counters.speculation else None
    return len(found) if found else None


def _rows(answer: ScoredText, prompt: Sequence[int], output: Sequence[int]) -> Iterator[Mapping[int, float]]:
    """Yield the log-probabilities of each token of an output. Raises MalformedAnswer."""
    rows = answer.choices[0].prompt_logprobs if answer.choices else None
    if rows is None or len(rows) != len(prompt) + len(output):
        found = "none" if rows is None else f"{len(rows)} entries"
        raise MalformedAnswer(f"choices[0].prompt_logprobs: {found} for {len(prompt) + len(output)} tokens")
    for at, (token, row) in enumerate(zip(output, rows[len(prompt) :], strict=True), len(prompt)):
        found_row = {id_of(key): float(value.logprob) for key, value in (row or {}).items()}
        if token not in found_row:
            raise MalformedAnswer(f"choices[0].prompt_logprobs[{at}]: token {token} is missing")
        yield found_row
