"""vLLM's OpenAI-compatible server with its own fields. Tested with vLLM 0.32 on a CPU."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from specbench.features.servers.dialects.dialect import (
    Arrival,
    Dialect,
    Samples,
    TestedOn,
    single_model,
    speculation_of,
)
from specbench.features.servers.served import (
    Chunk,
    Completion,
    Counters,
    Description,
    ServedRequest,
    ServedSpeculation,
    SpeculationCounts,
)
from specbench.http_client import HttpClient, RequestFailed

LARGEST_BATCH = 4096  # the end of the last range of batch sizes
FINISH = {"stop": "eos", "length": "length"}
SPECULATION = ("method", "model", "num_speculative_tokens")


class Vllm(Dialect):
    """vLLM: `/v1/completions` with token ids; an event of a stream holds the tokens of one verification step."""

    name = "vllm"
    tested_on = TestedOn.server
    streams_steps = True
    metrics_prefix = "vllm"

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        entry = await single_model(client, model)
        if entry.get("owned_by") != "vllm":
            return None
        version = await _optional(client, "/version")
        info = (await _optional(client, "/server_info?config_format=json")).get("vllm_config", {})
        counters = await self.counters(client)
        is_on = counters.speculation is not None if counters else None
        config = info.get("speculative_config") or {}
        settings = {key: value for key, value in config.items() if _is_setting(key, value)}
        return Description(
            dialect=self.name,
            url=client.server.url,
            version=str(version.get("version", "")),
            model=str(entry["id"]),
            weights=str(entry.get("root") or ""),
            dtype=str(info.get("model_config", {}).get("dtype", "")).removeprefix("torch."),
            context=entry.get("max_model_len"),
            slots=info.get("scheduler_config", {}).get("max_num_seqs"),
            speculation=ServedSpeculation(
                is_on=bool(config) if info else is_on,
                method=str(config.get("method") or ""),
                draft=str(config.get("model") or ""),
                length=config.get("num_speculative_tokens") or _positions(counters),
                settings=settings,
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
        chunks, finish, prompt, model = list[Chunk](), "", None, ""
        usage: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        log_probabilities: list[Mapping[int, float]] = []
        for event, seconds in arrivals:
            model = event.get("model", model)
            usage, metrics = event.get("usage") or usage, event.get("metrics") or metrics
            prompt = event.get("prompt_token_ids") or prompt  # of a chat, beside its choices
            for choice in event["choices"]:
                prompt = choice.get("prompt_token_ids") or prompt
                text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                if ids := tuple(choice.get("token_ids") or ()):
                    chunks.append(Chunk(ids, text, seconds))
                if reason := choice.get("finish_reason"):
                    finish = FINISH.get(reason, reason)
                if choice.get("logprobs") and "delta" not in choice:
                    log_probabilities += _log_probabilities(choice["logprobs"])
        details = usage.get("prompt_tokens_details") or {}
        queue = metrics.get("queue_time_ms")
        return Completion(
            prompt=None if prompt is None else tuple(prompt),
            tokens=tuple(token for chunk in chunks for token in chunk.tokens),
            text="".join(chunk.text for chunk in chunks),
            chunks=tuple(chunks),
            finish=finish,
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            cached_tokens=details.get("cached_tokens"),
            queue_seconds=None if queue is None else queue / 1e3,
            speculation=_speculation(metrics.get("speculative_decoding")),
            log_probabilities=tuple(log_probabilities),
            model=model,
        )

    async def log_probabilities(
        self, client: HttpClient, model: str, prompt: Sequence[int], output: Sequence[int], alternatives: int
    ) -> list[Mapping[int, float]]:
        """Return the log-probabilities of a given text from one request."""
        answer = await client.post_json(
            "/v1/completions",
            {
                "model": model, "prompt": [*prompt, *output], "max_tokens": 1, "temperature": 0.0,
                "prompt_logprobs": alternatives,
            },
        )  # fmt: skip
        rows = answer["choices"][0]["prompt_logprobs"][len(prompt) :]
        return [{int(key): float(value["logprob"]) for key, value in row.items()} for row in rows]

    async def tokenize(self, client: HttpClient, model: str, text: str) -> tuple[int, ...] | None:
        return tuple((await client.post_json("/tokenize", {"model": model, "prompt": text}))["tokens"])

    def read_counters(self, samples: Samples) -> Counters:
        return Counters(
            speculation_of(samples, "vllm:spec_decode_num_"),
            *(
                samples.total(f"vllm:{name}")
                for name in (
                    "num_requests_running", "num_requests_waiting", "generation_tokens_total",
                    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
                )
            ),
        )  # fmt: skip

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
    return (
        value not in (None, "", False, 0)
        and isinstance(value, str | int | float | list)
        and not key.endswith("_config")
    )


def _positions(counters: Counters | None) -> int | None:
    """Return the draft length that counters by position imply."""
    found = counters.speculation.by_position if counters and counters.speculation else None
    return len(found) if found else None


def _speculation(counts: dict[str, Any] | None) -> SpeculationCounts | None:
    """Return the counts of a request, from per-request metrics."""
    if not counts:
        return None
    accepted, rounds = counts["num_accepted_draft_tokens"], counts["num_spec_steps"]
    histogram = counts.get("acceptance_histogram")  # steps with 0, 1, ... accepted tokens
    by = tuple(sum(histogram[i:]) for i in range(1, len(histogram))) if histogram else None
    return SpeculationCounts(rounds, counts["num_draft_tokens"], accepted, by)


def _log_probabilities(logprobs: dict[str, Any]) -> list[Mapping[int, float]]:
    """Return log-probabilities by id, of tokens named `token_id:N`."""
    rows: list[Mapping[int, float]] = []
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        row = {_id(key): float(of) for key, of in (top or {}).items()}
        row[_id(token)] = float(value)
        rows.append(row)
    return rows


def _id(name: str) -> int:
    return int(name.removeprefix("token_id:"))


async def _optional(client: HttpClient, path: str) -> dict[str, Any]:
    """Return the JSON object at a path; empty if the server has none."""
    try:
        found = await client.get_json(path)
    except RequestFailed:
        return {}
    return found if isinstance(found, dict) else {}
