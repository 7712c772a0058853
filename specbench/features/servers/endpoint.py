"""An endpoint: a server's address with the backend that was found by probing it, and what it says about itself."""

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from specbench.data.task import Message
from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.backends.backend import Backend
from specbench.features.servers.backends.llama_cpp import LlamaCpp
from specbench.features.servers.backends.openai import OpenAi
from specbench.features.servers.backends.sglang import Sglang
from specbench.features.servers.backends.vllm import Vllm
from specbench.features.servers.readiness import Patience, is_healthy, when_ready
from specbench.features.servers.served import Completion, Counters, Description, ServedRequest
from specbench.http_client import FailureKind, HttpClient, RequestFailed, Server

MOST_PROBABILITY = 1.01  # sum of a distribution that was rounded
SPARE = 4  # connections beside the requests in flight, such as for counters
BACKENDS: tuple[Backend, ...] = (LlamaCpp(), Sglang(), Vllm(), OpenAi())  # in the order in which they are tried


@dataclass(frozen=True)
class Endpoint:
    """A server that is connected."""

    client: HttpClient
    backend: Backend
    description: Description

    async def complete(self, request: ServedRequest) -> Completion:
        """Send a request and return its completion. Raises RequestFailed, also for an id beyond the vocabulary."""
        with self._named():
            found = await self.backend.complete(self.client, self.description.model, request)
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
            rows = await self.backend.log_probabilities(self.client, model, prompt, output, alternatives)
        self._require_distributions(rows)
        return rows

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text by the server's tokenizer; None if the backend has no ids."""
        with self._named():
            ids = await self.backend.tokenize(self.client, self.description.model, text)
        return self._known(ids, text)

    async def rendered(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Return the ids of a chat if the server's answers to chats have none; else None."""
        with self._named():
            ids = await self.backend.rendered(self.client, self.description.model, messages)
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
        return await self.backend.counters(self.client)


def backend_named(name: str) -> Backend:
    """Return the backend of a name."""
    return next(backend for backend in BACKENDS if backend.name == name)


@asynccontextmanager
async def connected(
    server: Server, model: str = "", connections: int = 64, patience: Patience | None = None
) -> AsyncIterator[Endpoint]:
    """Connect to a server and find its backend, after waiting for it to load its model.

    Without `patience`, a server that is loading is waited for as long as one request may take.

    Raises:
        MissingAsset: The server does not answer, does not become ready, or answers in another form.
        ConfigError: It serves another model, or several, or no known interface.
    """
    async with HttpClient(replace(server, url=server.root), connections) as client:
        try:
            backend, description = await when_ready(
                client, lambda: _described(client, model), patience or Patience(seconds=server.seconds)
            )
        except RequestFailed as error:
            text = str(error) if server.root in str(error) else f"{server.root}: {error}"
            lost = error.kind in (FailureKind.connection, FailureKind.reset, FailureKind.timeout, FailureKind.status)
            raise MissingAsset(text + ("; help: start the server, or check the URL" if lost else "")) from None
        except ValueError as error:
            raise ConfigError(str(error)) from None
        yield Endpoint(client, backend, description)


async def _described(client: HttpClient, model: str) -> tuple[Backend, Description]:
    """Return the backend and the description of a server that is ready. Raises RequestFailed and ValueError."""
    is_ready = await is_healthy(client)
    backend, description = await _found(client, model)
    if not is_ready:  # a first completion shows it
        try:
            await backend.complete(client, description.model, ServedRequest(prompt="1", max_tokens=1))
        except RequestFailed as error:
            if error.is_loading:
                raise
    return backend, description


async def _found(client: HttpClient, model: str) -> tuple[Backend, Description]:
    failure: RequestFailed | None = None
    for backend in BACKENDS:
        try:
            description = await backend.describe(client, model)
        except RequestFailed as error:
            if error.is_loading or not error.status:
                raise
            failure = error  # this backend's addresses are missing
            continue
        if description is not None:
            return backend, description
    raise failure or ValueError(f"{client.server.host} has no interface that specbench knows")
