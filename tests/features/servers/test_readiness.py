"""Servers that load their model: they are waited for, within a limit, and never taken for another kind of server."""

import asyncio
from contextlib import contextmanager

import pytest

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.endpoint import connected
from specbench.features.servers.readiness import NotReady, Patience
from specbench.http_client import Server
from specbench.observer import Observer
from tests.fixtures.answering_server import BACKENDS, Answer, AnsweringServer, answering, answers_of


class Statuses(Observer):
    """Keeps the texts of what is waited for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextmanager
    def status(self, text: str):
        self.texts.append(text)
        yield


def backend_of(server: AnsweringServer, seconds: float = 20.0, observer: Observer | None = None) -> str:
    async def connect() -> str:
        patience = Patience(seconds=seconds, observer=observer or Observer())
        async with connected(Server(server.url, seconds=5.0), patience=patience) as endpoint:
            return endpoint.description.backend

    return asyncio.run(connect())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loading_server_that_lists_its_models_is_waited_for(backend):
    observer = Statuses()
    with answering(answers_of(backend), loading=2) as server:
        assert backend_of(server, observer=observer) == backend.partition(",")[0]
        (text,) = observer.texts
        assert f"wait for {server.url}, which is loading, for at most 20 s" in text
        assert server.loading == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_health_a_first_completion_shows_that_a_server_is_loading(backend):
    answers = answers_of(backend)
    del answers["/health"]
    path = {"llama.cpp": "/completion", "sglang": "/generate", "sglang, incremental": "/generate"}.get(
        backend, "/v1/completions"
    )
    ready = answers[path]
    answers[path] = Answer(b'{"error": {"message": "Loading model"}}', status=503)

    async def load() -> None:
        await asyncio.sleep(0.3)
        answers[path] = ready

    async def connect(url: str) -> str:
        loading = asyncio.create_task(load())
        async with connected(Server(url, seconds=20.0)) as endpoint:
            await loading
            return endpoint.description.backend

    with answering(answers) as server:
        assert asyncio.run(connect(server.url)) == backend.partition(",")[0]


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_a_server_that_never_finishes_loading_is_an_error_with_its_limit(status, path):
    answers = answers_of("openai") | {path: Answer(b'{"error": "Loading model"}', status=status)}
    with answering(answers) as server, pytest.raises(NotReady) as error:
        backend_of(server, seconds=0.2)
    expected = f"{server.url} was not ready within 0.2 s: error status: {status} Loading model; help: wait until it has"
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize("health", [Answer(b"", status=401), Answer(b"", status=404), Answer(b"<html>app</html>")])
def test_a_server_whose_health_says_nothing_is_not_waited_for(health):
    observer = Statuses()
    with answering(answers_of("vllm") | {"/health": health}) as server:
        assert backend_of(server, observer=observer) == "vllm"
    assert not observer.texts


def test_a_server_that_has_chats_only_is_not_waited_for():
    answers = answers_of("openai")
    del answers["/health"], answers["/v1/completions"]
    with answering(answers) as server:
        assert backend_of(server) == "openai"


def test_nothing_at_a_url_is_an_error_at_once_and_a_wrong_page_is_no_server():
    with pytest.raises(MissingAsset, match=r"no connection: .*; help: start the server, or check the URL"):
        asyncio.run(_connect("http://127.0.0.1:9"))
    pages = {path: Answer(b"<html>app</html>", kind="text/html") for path in ("/health", "/props", "/v1/models")}
    with answering(pages) as server, pytest.raises(MissingAsset, match="not JSON: '<html>app</html>'"):
        asyncio.run(_connect(server.url))
    models = Answer(b'{"data": []}')
    with (
        answering({"/v1/models": models}) as server,
        pytest.raises(ConfigError, match="serves no model: none is listed"),
    ):
        asyncio.run(_connect(server.url))


async def _connect(url: str) -> None:
    async with connected(Server(url, seconds=5.0), patience=Patience(seconds=60.0)):
        pass
