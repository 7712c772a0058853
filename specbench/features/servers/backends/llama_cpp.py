"""llama.cpp's server (`llama-server`). Tested with build 11549 on a CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from specbench.data.task import Message
from specbench.features.servers.backends.answers import (
    Arrival,
    Count,
    Finite,
    LogProbability,
    OpenAiStream,
    Timings,
    TokenId,
    Tokens,
    Whole,
    converted_in,
    events_of,
    identifying,
    posted,
    single_model,
)
from specbench.features.servers.backends.backend import Backend, Samples, TestedOn, speculation_of
from specbench.features.servers.served import (
    Chunk,
    Completion,
    Counters,
    Description,
    ServedRequest,
    ServedSpeculation,
    SpeculationCounts,
)
from specbench.http_client import HttpClient

SAMPLERS = ["temperature", "min_p", "top_k", "top_p"]  # in this order; without "temperature", T = 0 would not be greedy
PROBED = 8  # tokens of a request after which the counters have positions
FINISH = {"eos": "eos", "limit": "length", "word": "stop"}


class Settings(Struct):
    """The sampling parameters that were used, and the kinds of drafts."""

    temperature: Finite | None = None
    top_k: Finite | None = None
    top_p: Finite | None = None
    min_p: Finite | None = None
    types: str | None = field(name="speculative.types", default=None)


class TopLogProbability(Struct):
    """The log-probability of a token."""

    id: TokenId
    logprob: LogProbability


class TokenProbability(Struct):
    """The log-probabilities of an output token and its alternatives."""

    id: TokenId
    logprob: LogProbability
    top_logprobs: list[TopLogProbability] | None = None


class LlamaEvent(Struct):
    """An event of `/completion`, or its whole answer."""

    content: str = ""
    tokens: list[TokenId] | None = None
    stop: bool = False
    stop_type: str | None = None
    completion_probabilities: list[TokenProbability] | None = None
    tokens_evaluated: Count | None = None
    tokens_predicted: Count | None = None
    model: str | None = None
    generation_settings: Settings | None = None
    timings: Timings | None = None


class Defaults(Struct):
    """The sampling parameters of requests that state none."""

    temperature: Finite | None = None
    top_k: Whole | None = None
    top_p: Finite | None = None
    min_p: Finite | None = None
    repeat_penalty: Finite | None = None
    samplers: list[str] | None = None
    seed: Whole | None = None


class GenerationSettings(Struct):
    """The defaults of requests, and the context of a slot."""

    params: Defaults | None = None
    n_ctx: Count | None = None


class Props(Struct):
    """The answer of /props."""

    default_generation_settings: GenerationSettings
    total_slots: Count | None = None
    build_info: str | None = None
    model_path: str | None = None
    model_ftype: str | None = None
    chat_template: str | None = None


class Rendered(Struct):
    """The answer of /apply-template."""

    prompt: str


class LlamaCpp(Backend):
    """llama.cpp: `/completion` with token ids; one event per token, those of one verification step in a burst."""

    name = "llama.cpp"
    tested_on = TestedOn.server
    metrics_prefix = "llamacpp"

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        found = await identifying(client, "/props", "default_generation_settings")
        if found is None:
            return None
        props = converted_in(client, "/props", found, Props)
        client.reuses_connections = False  # it closes them after a stream
        entry = await single_model(client, model)
        # /props does not name the speculation of a loaded draft, an answer does
        body = {"prompt": [0], "n_predict": 1, "cache_prompt": False}
        probe = (await posted(client, "/completion", body, LlamaEvent)).generation_settings
        types = (probe.types if probe else None) or ""
        length = await self._draft_length(client) if types.startswith("draft") else None
        defaults = props.default_generation_settings.params
        return Description(
            backend=self.name,
            url=client.server.url,
            version=props.build_info or "",
            model=entry.id,
            weights=props.model_path or "",
            dtype=props.model_ftype or "",
            context=props.default_generation_settings.n_ctx,
            vocabulary=entry.meta.n_vocab if entry.meta else None,
            slots=props.total_slots,
            defaults={key: value for key, value in asdict(defaults).items() if value is not None} if defaults else {},
            speculation=ServedSpeculation(
                is_on=types != "none" if types else None,
                method="" if types == "none" else types,
                length=length,
            ),
            has_ids=True,
            chat_template=bool(props.chat_template),
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
            stream = OpenAiStream(arrivals)
            found = replace(stream.completion(), prompt=None, tokens=None, cached_tokens=stream.timings.cache_n)
            return replace(found, speculation=_speculation(stream.timings))
        chunks, text, log_probabilities = list[Chunk](), list[str](), list[Mapping[int, float]]()
        last, has_ids = LlamaEvent(), False
        for event, seconds in events_of(arrivals, LlamaEvent):
            has_ids |= bool(event.tokens)
            text.append(event.content)
            if event.tokens or event.content:
                chunks.append(Chunk(tuple(event.tokens or ()), event.content, seconds))
            for row in event.completion_probabilities or ():
                log_probabilities.append(
                    {**{top.id: top.logprob for top in row.top_logprobs or ()}, row.id: row.logprob}
                )
            last = event if event.stop else last
        settings, times = last.generation_settings or Settings(), last.timings or Timings()
        echo = {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        stop = last.stop_type or ("stop" if last.stop else "")
        return Completion(
            tokens=tuple(token for chunk in chunks for token in chunk.tokens) if has_ids else None,
            text="".join(text),
            chunks=tuple(chunk for chunk in chunks if chunk.tokens or not has_ids),
            finish=FINISH.get(stop, stop),
            prompt_tokens=last.tokens_evaluated,
            output_tokens=last.tokens_predicted,
            cached_tokens=times.cache_n,
            speculation=_speculation(times),
            log_probabilities=tuple(log_probabilities),
            echo={name: float(value) for name, value in echo.items() if value is not None},
            model=last.model or "",
        )

    async def tokenize(self, client: HttpClient, model: str, text: str) -> tuple[int, ...] | None:
        return tuple((await posted(client, "/tokenize", {"content": text, "add_special": True}, Tokens)).tokens)

    async def rendered(self, client: HttpClient, model: str, messages: Sequence[Message]) -> tuple[int, ...] | None:
        text = (await posted(client, "/apply-template", {"messages": list(messages)}, Rendered)).prompt
        body = {"content": text, "add_special": True, "parse_special": True}
        return tuple((await posted(client, "/tokenize", body, Tokens)).tokens)

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


def _speculation(times: Timings) -> SpeculationCounts | None:
    if times.draft_n is None or times.draft_n_accepted is None:
        return None
    return SpeculationCounts(None, times.draft_n, times.draft_n_accepted)
