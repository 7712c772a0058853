"""llama.cpp's server (`llama-server`). Tested with build 11549 on a CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.data.task import Message
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

SAMPLERS = ["temperature", "min_p", "top_k", "top_p"]  # in this order; without "temperature", T = 0 would not be greedy
PROBED = 8  # tokens of a request after which the counters have positions
FINISH = {"eos": "eos", "limit": "length", "word": "stop"}
DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "samplers", "seed")


class LlamaCpp(Dialect):
    """llama.cpp: `/completion` with token ids; one event per token, those of one verification step in a burst."""

    name = "llama.cpp"
    tested_on = TestedOn.server
    metrics_prefix = "llamacpp"

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        try:
            props = await client.get_json("/props")
            defaults = props["default_generation_settings"]["params"]
            context, slots = props["default_generation_settings"]["n_ctx"], props["total_slots"]
        except (KeyError, TypeError):
            return None
        except RequestFailed as error:
            if error.status:
                return None
            raise
        client.reuses_connections = False  # it closes them after a stream
        entry = await single_model(client, model)
        # /props does not name the speculation of a loaded draft, an answer does
        probe = await client.post_json("/completion", {"prompt": [0], "n_predict": 1, "cache_prompt": False})
        types = str(probe["generation_settings"].get("speculative.types", ""))
        length = await self._draft_length(client) if types.startswith("draft") else None
        return Description(
            dialect=self.name,
            url=client.server.url,
            version=str(props.get("build_info", "")),
            model=str(entry["id"]),
            weights=str(props.get("model_path", "")),
            dtype=str(props.get("model_ftype", "")),
            context=context,
            vocabulary=entry.get("meta", {}).get("n_vocab"),
            slots=slots,
            defaults={key: defaults[key] for key in DEFAULTS if key in defaults},
            speculation=ServedSpeculation(
                is_on=bool(types) and types != "none" if types else None,
                method="" if types == "none" else types,
                length=length,
            ),
            has_ids=True,
            chat_template=bool(props.get("chat_template")),
        )

    async def _draft_length(self, client: HttpClient) -> int | None:
        """Return the draft length of a drafting model, which the counters imply after the first drafts."""
        for count in (0, PROBED):
            if count:
                await client.post_json("/completion", {"prompt": [0], "n_predict": count, "ignore_eos": True})
            counters = await self.counters(client)
            if counters and counters.speculation and counters.speculation.by_position:
                return len(counters.speculation.by_position)
        return None

    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": model, "n_predict": request.max_tokens, "ignore_eos": request.ignore_eos, "return_tokens": True,
            "temperature": sampling.temperature, "min_p": sampling.min_p, "top_k": sampling.top_k, "top_p": sampling.top_p,
            "samplers": SAMPLERS, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "dynatemp_range": 0.0, "mirostat": 0, "typical_p": 1.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
            "n_probs": request.alternatives, "cache_prompt": request.reuse_cache, "stream": True,
        }  # fmt: skip
        if request.seed is not None:
            body["seed"] = request.seed
        if request.messages:
            return "/v1/chat/completions", {
                **body,
                "messages": list(request.messages),
                "stream_options": {"include_usage": True},
            }
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        return "/completion", {**body, "prompt": prompt}

    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        if request.messages:
            return _chat(arrivals)
        chunks, log_probabilities = list[Chunk](), list[Mapping[int, float]]()
        last: dict[str, Any] = {}
        for event, seconds in arrivals:
            if event["tokens"] or event["content"]:
                chunks.append(Chunk(tuple(event["tokens"]), event["content"], seconds))
            for row in event.get("completion_probabilities", ()):
                found = {int(top["id"]): float(top["logprob"]) for top in row.get("top_logprobs", ())}
                log_probabilities.append({**found, int(row["id"]): float(row["logprob"])})
            if event["stop"]:
                last = event
        settings, times = last.get("generation_settings", {}), last.get("timings", {})
        return Completion(
            tokens=tuple(token for chunk in chunks for token in chunk.tokens),
            text="".join(chunk.text for chunk in chunks),
            chunks=tuple(chunks),
            finish=FINISH.get(last.get("stop_type", ""), last.get("stop_type", "")),
            prompt_tokens=last.get("tokens_evaluated"),
            output_tokens=last.get("tokens_predicted"),
            cached_tokens=times.get("cache_n"),
            speculation=_speculation(times),
            log_probabilities=tuple(log_probabilities),
            echo={key: float(settings[key]) for key in ("temperature", "top_k", "top_p", "min_p") if key in settings},
            model=str(last.get("model", "")),
        )

    async def tokenize(self, client: HttpClient, model: str, text: str) -> tuple[int, ...] | None:
        return tuple((await client.post_json("/tokenize", {"content": text, "add_special": True}))["tokens"])

    async def rendered(self, client: HttpClient, model: str, messages: Sequence[Message]) -> tuple[int, ...] | None:
        text = (await client.post_json("/apply-template", {"messages": list(messages)}))["prompt"]
        body = {"content": text, "add_special": True, "parse_special": True}
        return tuple((await client.post_json("/tokenize", body))["tokens"])

    def read_counters(self, samples: Samples) -> Counters:
        return Counters(
            speculation_of(samples, "llamacpp:spec_decode_num_"),
            running=samples.total("llamacpp:requests_processing"),
            waiting=samples.total("llamacpp:requests_deferred"),
            output_tokens=samples.total("llamacpp:tokens_predicted_total"),
            cache_queries=samples.total("llamacpp:prompt_tokens_total"),
            cache_hits=samples.total("llamacpp:prompt_tokens_cached_total"),
        )

    def flags(self, length: int) -> str:
        return f"--spec-draft-n-max {length}" if length else "--spec-type none"


def _speculation(times: Mapping[str, Any]) -> SpeculationCounts | None:
    if "draft_n" not in times:
        return None
    return SpeculationCounts(None, times["draft_n"], times["draft_n_accepted"])


def _chat(arrivals: Sequence[Arrival]) -> Completion:
    """Return the completion of `/v1/chat/completions`, which has no ids."""
    chunks, finish, usage, times, model = list[Chunk](), "", dict[str, Any](), dict[str, Any](), ""
    for event, seconds in arrivals:
        model = event.get("model", model)
        usage, times = event.get("usage") or usage, event.get("timings") or times
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                chunks.append(Chunk((), text, seconds))
            if reason := choice.get("finish_reason"):
                finish = {"stop": "eos"}.get(reason, reason)
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        chunks=tuple(chunks),
        finish=finish,
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cached_tokens=times.get("cache_n"),
        speculation=_speculation(times),
        model=model,
    )
