"""What a server offers to `specbench server`: checks of one endpoint, with advice."""

from dataclasses import dataclass

from specbench.errors import ConfigError
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.exactness.reference import Served
from specbench.features.servers.served import Completion, ServedRequest
from specbench.http_client import RequestFailed, Server

PROMPT = "Question: what is three plus four? Answer:"
TOKENS = 16


@dataclass(frozen=True)
class ServerCheck:
    """The result of one check of a server."""

    name: str
    is_ok: bool
    found: str
    help: str = ""


async def check_server(server: Server, model: str = "") -> list[ServerCheck]:
    """Return the checks of a server. Raises as `connected` does, and RequestFailed."""
    async with connected(server, model) as endpoint:
        ids = await endpoint.tokenize(PROMPT)
        completion = await endpoint.complete(
            ServedRequest(prompt=PROMPT if ids is None else ids, max_tokens=TOKENS, ignore_eos=ids is not None)
        )
        return [
            _dialect(endpoint),
            _speculation(endpoint),
            _ids(endpoint, ids),
            await _distributions(endpoint, ids),
            await _counters(endpoint),
            _per_request(endpoint, completion),
            _cache(completion),
            _stream(completion),
            _local(server),
        ]


def _dialect(endpoint: Endpoint) -> ServerCheck:
    tested = endpoint.dialect.tested_on
    return ServerCheck("dialect", tested == "a real server", f"{endpoint.description.label}; tested on {tested}")


def _speculation(endpoint: Endpoint) -> ServerCheck:
    speculation = endpoint.description.speculation
    words = {True: "on", False: "off", None: "unknown: the server does not say"}[speculation.is_on]
    details = ", ".join(filter(None, [speculation.method, speculation.draft, f"{speculation.length or ''}"]))
    return ServerCheck("speculation", speculation.is_on is not None, f"{words}{f' ({details})' if details else ''}")


def _ids(endpoint: Endpoint, ids: tuple[int, ...] | None) -> ServerCheck:
    if ids is None:
        text = f"none in the dialect {endpoint.dialect.name}"
        return ServerCheck(
            "token ids", False, text, "verify compares samples with --off, which finds large deviations only"
        )
    return ServerCheck("token ids", True, "in and out")


async def _distributions(endpoint: Endpoint, ids: tuple[int, ...] | None) -> ServerCheck:
    """Check whether the server can be the reference of another one."""
    name, advice = "log-probabilities", "verify needs --weights; vLLM returns all with --max-logprobs VOCABULARY_SIZE"
    if ids is None:
        return ServerCheck(name, False, "not compared without token ids", advice)
    try:
        await Served(endpoint).logits(ids, ids[:1])
    except ConfigError:
        return ServerCheck(
            name, False, "returned for a part of the vocabulary, so it cannot be the reference of verify --off", advice
        )
    except RequestFailed as error:
        return ServerCheck(name, False, f"none ({error})", advice)
    return ServerCheck(name, True, "returned for the whole vocabulary, so it can be the reference of verify --off")


async def _counters(endpoint: Endpoint) -> ServerCheck:
    counters = await endpoint.counters()
    if counters is None:
        return ServerCheck("counters", False, "none at /metrics", "llama.cpp publishes them with --metrics")
    if counters.speculation is None:
        return ServerCheck("counters", True, "published, without speculation counters")
    if counters.speculation.by_position:
        return ServerCheck("counters", True, "published, with drafts by position")
    if endpoint.description.speculation.is_on is False:
        return ServerCheck("counters", True, "published")
    return ServerCheck("counters", False, "published, but not by position of drafts: draft lengths cannot be predicted")


def _per_request(endpoint: Endpoint, completion: Completion) -> ServerCheck:
    if completion.speculation is not None:
        return ServerCheck("request counts", True, "drafted and accepted tokens")
    if not endpoint.description.speculation.is_on:
        return ServerCheck("request counts", True, "none, speculation is off")
    advice = "vLLM has them with --enable-per-request-metrics --per-request-spec-decode-metrics detailed"
    return ServerCheck("request counts", False, "none", advice)


def _cache(completion: Completion) -> ServerCheck:
    if completion.cached_tokens is None:
        advice = "cache hits are not detected; vLLM reports them with --enable-prompt-tokens-details"
        return ServerCheck("prefix cache", False, "the server does not report hits", advice)
    return ServerCheck("prefix cache", True, f"hits are reported ({completion.cached_tokens} tokens in this request)")


def _stream(completion: Completion) -> ServerCheck:
    chunks = len(completion.chunks)
    if chunks <= 1 < completion.count:
        advice = "a proxy may buffer streams: times to the first token and per token are then not measured"
        return ServerCheck("stream", False, f"{completion.count} tokens arrived in one chunk", advice)
    return ServerCheck("stream", True, f"{completion.count} tokens in {chunks} chunks")


def _local(server: Server) -> ServerCheck:
    if server.is_local:
        return ServerCheck("address", True, "on this machine")
    return ServerCheck("address", True, f"{server.host} receives the prompts")
