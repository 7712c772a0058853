"""What `specbench server verify` is given, and the requests of each kind that follow from it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.exactness.kinds import SAMPLINGS
from specbench.features.servers.prompts import PromptSource, ServedPrompt, read_again
from specbench.features.servers.request_key import PromptKind, RequestKey, RequestKind, Role
from specbench.features.servers.served import ServedRequest, ServedSampling
from specbench.http_client import Server

REPEATED = 8  # requests of a seeded kind that are sent twice
LONG_PROMPT = 272  # tokens of a prompt with a cached prefix, more than two of vLLM's blocks


@dataclass(frozen=True, kw_only=True)
class ServerVerifyRequest:
    """A server to verify, and the reference that it should follow.

    Args:
        on: The server.
        weights: A checkpoint of the model that it serves, for our own forward; empty without.
        off: A server of the same model without speculation; None without.
        model: The model's name on the server, if it serves several.
        draft: A checkpoint of the drafting model, whose distribution one more test compares with; empty without.
        dtype: The dtype of our own forward.
        prompts: The prompts.
        source: The tasks and data that they were read from; None if they cannot be read again.
        samplings: The sampling parameters to test.
        concurrencies: Numbers of requests in flight.
        seeds: Whether requests with seeds are tested too.
        kinds: Kinds of prompts.
        outputs: Outputs of each sampled kind.
        max_tokens: The largest number of tokens of an output.
        max_prompt_tokens: Longer prompts are truncated to their last tokens.
        seed: Of the seeds of requests.
        threads: CPU threads of our own forward and of the tests; few, since the server may share the processors.
    """

    on: Server
    weights: str = ""
    off: Server | None = None
    model: str = ""
    draft: str = ""
    dtype: str = "float32"
    prompts: Sequence[ServedPrompt] = ()
    source: PromptSource | None = None
    samplings: tuple[ServedSampling, ...] = SAMPLINGS
    concurrencies: tuple[int, ...] = (1, 8)
    seeds: bool = True
    kinds: tuple[PromptKind, ...] = (PromptKind.raw, PromptKind.cached, PromptKind.chat)
    outputs: int = 64
    max_tokens: int = 32
    max_prompt_tokens: int = 160
    seed: int = 0
    threads: int = 1

    def stored(self) -> "ServerVerifyRequest":
        """Return the request without its prompts, which `again` reads from `source`. Results store this form."""
        return replace(self, prompts=())

    def again(self) -> "ServerVerifyRequest":
        """Return a stored request with its prompts. Raises ConfigError and MissingAsset."""
        return replace(self, prompts=read_again(self.source))


Prompt = tuple[int, ...] | str
Keyed = list[tuple[RequestKey, ServedRequest]]


@dataclass(frozen=True)
class EncodedPrompts:
    """The prompts as they are sent: ids, or texts for a server that takes none.

    `chats` are ids of rendered chats, for a server whose answers to chats have no ids; None where messages are sent.
    """

    raw: list[Prompt]
    chats: list[tuple[int, ...] | None]


async def encoded(request: ServerVerifyRequest, on: Endpoint, as_text: bool) -> EncodedPrompts:
    """Encode the prompts, as ids unless `as_text` or the server takes none.

    Raw prompts are cut at random places, so that the next token is uncertain. Of prompts longer than `max_prompt_tokens` or
    the context, the last tokens are kept; texts are cut between words. Raises RequestFailed.
    """
    chooser = random.Random(request.seed)
    room = min(_room(request, on), request.max_prompt_tokens)
    found: list[Prompt] = []
    for prompt in request.prompts:
        ids = None if as_text else await on.tokenize(prompt.text)
        if ids is None:
            words = prompt.text.split(" ")
            end = chooser.randint(max(len(words) // 2, 1), max(len(words), 1))
            found.append(" ".join(words[:end][-room:]))
        else:
            end = chooser.randint(max(len(ids) // 2, 1), max(len(ids), 1))
            found.append(ids[:end][-room:])
    chats = [
        await on.rendered(prompt.messages) if PromptKind.chat in request.kinds and not as_text else None
        for prompt in request.prompts
    ]
    return EncodedPrompts(found, chats)


def requests_of(request: ServerVerifyRequest, kind: RequestKind, prompts: EncodedPrompts, on: Endpoint) -> Keyed:
    """Return the requests of a kind. Of a seeded kind, the first REPEATED ones occur twice."""
    chats = kind.prompt is PromptKind.chat
    count = len(prompts.raw) if kind.sampling.is_greedy else request.outputs
    rows = []
    for i in range(count):
        at = i % len(prompts.raw)
        chat = prompts.chats[at] if chats else None
        served = ServedRequest(
            prompt=(chat or ()) if chats else _prompt(request, kind, prompts.raw, at, on),
            messages=request.prompts[at].messages if chats and chat is None else (),
            sampling=kind.sampling,
            max_tokens=request.max_tokens,
            seed=_seed(request, kind, i) if kind.is_seeded else None,
            reuse_cache=kind.prompt is PromptKind.cached,
        )
        rows.append((RequestKey(kind=kind, prompt=at, number=i // len(prompts.raw)), served))
    again = [(replace(key, role=Role.again), served) for key, served in rows[:REPEATED]] if kind.is_seeded else []
    return rows + again


def _seed(request: ServerVerifyRequest, kind: RequestKind, number: int) -> int:
    """Return the seed of a request. Kinds that are tested together have different ones, so that their outputs differ."""
    return 1000 * (request.seed + 1) + number + 10**6 * (kind.concurrency - 1)


def _room(request: ServerVerifyRequest, on: Endpoint) -> int:
    """Return the largest number of tokens of a prompt."""
    return (on.description.context or 2**20) - request.max_tokens - 1


def _prompt(
    request: ServerVerifyRequest, kind: RequestKind, prompts: Sequence[Prompt], at: int, on: Endpoint
) -> Prompt:
    """Return a prompt; for a cached prefix, several in succession, since servers cache blocks of many tokens."""
    longer, i = prompts[at], at
    if kind.prompt is not PromptKind.cached or isinstance(longer, str):
        return longer
    while len(longer) < LONG_PROMPT and i < at + 64:
        i += 1
        before = prompts[i % len(prompts)]
        assert not isinstance(before, str)
        longer = (*before, *longer)
    return longer[-_room(request, on) :]
