"""What a server offers to `specbench server`: checks of one endpoint, with advice."""

import asyncio

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.backends.backend import TestedOn
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.exactness.reference import Served
from specbench.features.servers.readiness import Patience
from specbench.features.servers.served import Completion, ServedRequest
from specbench.http_client import RequestFailed, Server
from specbench.machine.check import Check, State
from specbench.observer import Observer

PROMPT = "Question: what is three plus four? Answer:"
TOKENS = 16
SECONDS = 60.0  # longest duration of a request


def checks_of_url(url: str, key_env: str, observer: Observer) -> list[Check]:
    """Return the checks of the server at a URL. Raises ConfigError and MissingAsset."""
    try:
        return asyncio.run(check_server(Server(url, key_env, SECONDS), observer=observer))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except RequestFailed as error:
        raise MissingAsset(f"{url}: {error}") from None


async def check_server(server: Server, model: str = "", observer: Observer | None = None) -> list[Check]:
    """Return the checks of a server. Raises as `connected` does, and RequestFailed."""
    patience = Patience(seconds=server.seconds, observer=observer or Observer())
    async with connected(server, model, patience=patience) as endpoint:
        ids = await endpoint.tokenize(PROMPT)
        completion = await endpoint.complete(
            ServedRequest(prompt=PROMPT if ids is None else ids, max_tokens=TOKENS, ignore_eos=ids is not None)
        )
        return [
            _backend(endpoint),
            _speculation(endpoint),
            _ids(endpoint, ids, completion),
            await _distributions(endpoint, ids),
            await _counters(endpoint),
            _per_request(endpoint, completion),
            _usage(completion),
            _cache(completion),
            _stream(completion),
            _local(server),
        ]


def _backend(endpoint: Endpoint) -> Check:
    tested = endpoint.backend.tested_on
    state: State = "ok" if tested is TestedOn.server else "warn"
    return Check("backend", state, f"{endpoint.description.label}; tested on {tested}")


def _speculation(endpoint: Endpoint) -> Check:
    speculation = endpoint.description.speculation
    words = {True: "on", False: "off", None: "unknown: the server does not say"}[speculation.is_on]
    details = ", ".join(filter(None, [speculation.method, speculation.draft, f"{speculation.length or ''}"]))
    return Check(
        "speculation", "warn" if speculation.is_on is None else "ok", f"{words}{f' ({details})' if details else ''}"
    )


def _ids(endpoint: Endpoint, ids: tuple[int, ...] | None, completion: Completion) -> Check:
    if ids is None:
        text = f"none in the backend {endpoint.backend.name}"
        return Check("token ids", "warn", text, "verify compares samples with --off, which finds large deviations only")
    if completion.tokens is None:
        advice = (
            "tokens are counted by the server's usage, and verify cannot compare them; a newer version returns them"
        )
        return Check("token ids", "warn", "in, and none out", advice)
    return Check("token ids", "ok", "in and out")


async def _distributions(endpoint: Endpoint, ids: tuple[int, ...] | None) -> Check:
    """Check whether the server can be the reference of another one."""
    name, advice = "log-probabilities", "verify needs --weights; vLLM returns all with --max-logprobs VOCABULARY_SIZE"
    if ids is None:
        return Check(name, "warn", "not compared without token ids", advice)
    try:
        await Served(endpoint).logits(ids, ids[:1])
    except ConfigError:
        return Check(
            name, "warn", "returned for a part of the vocabulary, so it cannot be the reference of verify --off", advice
        )
    except RequestFailed as error:
        return Check(name, "warn", f"none ({error})", advice)
    return Check(name, "ok", "returned for the whole vocabulary, so it can be the reference of verify --off")


async def _counters(endpoint: Endpoint) -> Check:
    counters = await endpoint.counters()
    if counters is None:
        return Check("counters", "warn", "none at /metrics", "llama.cpp publishes them with --metrics")
    if counters.fault:
        return Check("counters", "warn", f"wrong: {counters.fault}", "they are not used")
    if counters.speculation is None:
        return Check("counters", "ok", "published, without speculation counters")
    if counters.speculation.by_position:
        return Check("counters", "ok", "published, with drafts by position")
    if endpoint.description.speculation.is_on is False:
        return Check("counters", "ok", "published")
    return Check("counters", "warn", "published, but not by position of drafts: draft lengths cannot be predicted")


def _per_request(endpoint: Endpoint, completion: Completion) -> Check:
    if completion.speculation is not None:
        return Check("request counts", "ok", "drafted and accepted tokens")
    if not endpoint.description.speculation.is_on:
        return Check("request counts", "ok", "none, speculation is off")
    advice = "vLLM has them with --enable-per-request-metrics --per-request-spec-decode-metrics detailed"
    return Check("request counts", "warn", "none", advice)


def _usage(completion: Completion) -> Check:
    """Check whether the server's counts of tokens agree with what arrived."""
    if completion.faults:
        return Check("usage", "warn", "; ".join(completion.faults), "counts of speculation that disagree are not used")
    if completion.output_tokens is None:
        return Check("usage", "warn", "none", "chunks are counted as tokens")
    return Check("usage", "ok", f"{completion.output_tokens} output tokens, as many as arrived")


def _cache(completion: Completion) -> Check:
    if completion.cached_tokens is None:
        advice = "cache hits are not detected; vLLM reports them with --enable-prompt-tokens-details"
        return Check("prefix cache", "warn", "the server does not report hits", advice)
    return Check("prefix cache", "ok", f"hits are reported ({completion.cached_tokens} tokens in this request)")


def _stream(completion: Completion) -> Check:
    chunks = len(completion.chunks)
    if chunks <= 1 < completion.count:
        advice = "a proxy may buffer streams: times to the first token and per token are then not measured"
        return Check("stream", "warn", f"{completion.count} tokens arrived in one chunk", advice)
    return Check("stream", "ok", f"{completion.count} tokens in {chunks} chunks")


def _local(server: Server) -> Check:
    if server.is_local:
        return Check("address", "ok", "on this machine")
    return Check("address", "ok", f"{server.host} receives the prompts")
