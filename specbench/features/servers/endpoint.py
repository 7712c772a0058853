"""An endpoint: a server's address with the dialect that was found by probing it, and what it says about itself."""

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from specbench.data.task import Message
from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.dialects.dialect import Dialect
from specbench.features.servers.dialects.llama_cpp import LlamaCpp
from specbench.features.servers.dialects.openai import OpenAi
from specbench.features.servers.dialects.sglang import Sglang
from specbench.features.servers.dialects.vllm import Vllm
from specbench.features.servers.readiness import Patience, is_healthy, when_ready
from specbench.features.servers.served import Completion, Counters, Description, ServedRequest
from specbench.http_client import FailureKind, HttpClient, RequestFailed, Server

MOST_PROBABILITY = 1.01  # sum of a distribution that was rounded
SPARE = 4  # connections beside the requests in flight, such as for counters
DIALECTS: tuple[Dialect, ...] = (LlamaCpp(), Sglang(), Vllm(), OpenAi())  # in the order in which they are tried


@dataclass(frozen=True)
class Endpoint:
    """A server that is connected."""

    client: HttpClient
    dialect: Dialect
    description: Description

    async def complete(self, request: ServedRequest) -> Completion:
        """Send a request and return its completion. Raises RequestFailed, also for an id beyond the vocabulary."""
        with self._named():
            found = await self.dialect.complete(self.client, self.description.model, request)
        self._require_known(found.tokens or ())
        self._require_distributions(found.log_probabilities)
        return found

    def _require_known(self, tokens: Iterable[int]) -> None:
        """Raise RequestFailed for an id beyond the vocabulary."""
        size = self.description.vocabulary
        if size and (largest := max(tokens, default=0)) >= size:
            text = f"{self.description.url}: token {largest}, and its vocabulary has {size} tokens"
            raise RequestFailed(FailureKind.garbage, text)

    def _require_distributions(self, rows: Sequence[Mapping[int, float]]) -> None:
        """Raise RequestFailed for log-probabilities of unknown ids, or whose probabilities have a sum above 1."""
        for row in rows:
            self._require_known(row)
            if (whole := math.fsum(map(math.exp, row.values()))) > MOST_PROBABILITY:
                text = f"{self.description.url}: log-probabilities of one token whose probabilities have the sum {whole:.3g}"
                raise RequestFailed(FailureKind.garbage, text)

    async def log_probabilities(
        self, prompt: Sequence[int], output: Sequence[int], alternatives: int
    ) -> list[Mapping[int, float]]:
        """Return for each token of `output` the log-probabilities of that token and its alternatives, at T = 1."""
        model = self.description.model
        with self._named():
            rows = await self.dialect.log_probabilities(self.client, model, prompt, output, alternatives)
        self._require_distributions(rows)
        return rows

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text by the server's tokenizer; None if the dialect has no ids."""
        with self._named():
            ids = await self.dialect.tokenize(self.client, self.description.model, text)
        return self._known(ids, text)

    async def rendered(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Return the ids of a chat if the server's answers to chats have none; else None."""
        with self._named():
            ids = await self.dialect.rendered(self.client, self.description.model, messages)
        return self._known(ids, "a chat")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the server in failures."""
        try:
            yield
        except RequestFailed as error:
            raise error.at(self.description.url) from None

    def _known(self, ids: tuple[int, ...] | None, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text. Raises RequestFailed if there are none of a text that is not empty, or unknown ones."""
        if ids is not None and not ids and text:
            raise RequestFailed(FailureKind.garbage, f"{self.description.url}/tokenize: no tokens of a text")
        self._require_known(ids or ())
        return ids

    async def counters(self) -> Counters | None:
        """Return the server's counters; None if it publishes none."""
        return await self.dialect.counters(self.client)


def dialect_named(name: str) -> Dialect:
    """Return the dialect of a name."""
    return next(dialect for dialect in DIALECTS if dialect.name == name)


@asynccontextmanager
async def connected(
    server: Server, model: str = "", connections: int = 64, patience: Patience | None = None
) -> AsyncIterator[Endpoint]:
    """Connect to a server and find its dialect, after waiting for it to load its model.

    Without `patience`, a server that is loading is waited for as long as one request may take.

    Raises:
        MissingAsset: The server does not answer, does not become ready, or answers in another form.
        ConfigError: It serves another model, or several, or no known interface.
    """
    async with HttpClient(replace(server, url=server.root), connections) as client:
        try:
            dialect, description = await when_ready(
                client, lambda: _described(client, model), patience or Patience(seconds=server.seconds)
            )
        except RequestFailed as error:
            text = str(error) if server.root in str(error) else f"{server.root}: {error}"
            lost = error.kind in (FailureKind.connection, FailureKind.reset, FailureKind.timeout, FailureKind.status)
            raise MissingAsset(text + ("; help: start the server, or check the URL" if lost else "")) from None
        except ValueError as error:
            raise ConfigError(str(error)) from None
        yield Endpoint(client, dialect, description)


async def _described(client: HttpClient, model: str) -> tuple[Dialect, Description]:
    """Return the dialect and the description of a server that is ready. Raises RequestFailed and ValueError."""
    is_ready = await is_healthy(client)
    dialect, description = await _found(client, model)
    if not is_ready:  # a first completion shows it
        try:
            await dialect.complete(client, description.model, ServedRequest(prompt="1", max_tokens=1))
        except RequestFailed as error:
            if error.is_loading:
                raise
    return dialect, description


async def _found(client: HttpClient, model: str) -> tuple[Dialect, Description]:
    failure: RequestFailed | None = None
    for dialect in DIALECTS:
        try:
            description = await dialect.describe(client, model)
        except RequestFailed as error:
            if error.is_loading or not error.status:
                raise
            failure = error  # this dialect's addresses are missing
            continue
        if description is not None:
            return dialect, description
    raise failure or ValueError(f"{client.server.host} has no interface that specbench knows")
