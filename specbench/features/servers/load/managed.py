"""Servers that specbench starts itself, one at a time: their commands, logs and ends."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.construct import construct
from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.files import read_toml
from specbench.http_client import HttpClient, RequestFailed, Server

POLL_SECONDS = 0.5
END_SECONDS = 15.0  # from the first signal to SIGKILL
SHOWN_LINES = 5  # of the log of a server that did not start


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """How a server is started.

    Args:
        command: The program and its arguments.
        url: The address at which it listens.
        env: Environment variables that are set in addition to the current ones.
        ready_seconds: How long it may take to answer.
    """

    command: tuple[str, ...]
    url: str
    env: dict[str, str] = field(default_factory=dict)
    ready_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command must not be empty")
        Server(self.url)  # checks the URL


@dataclass(frozen=True, kw_only=True)
class ServerCommands:
    """The servers with and without speculation, of which only one runs at a time."""

    on: ServerCommand
    off: ServerCommand


def read_commands(path: Path) -> ServerCommands:
    """Return the commands of a TOML file with the tables `on` and `off`. Raises ConfigError."""
    return construct(ServerCommands, read_toml(path), str(path))


@asynccontextmanager
async def started(
    how: ServerCommand, key_env: str, seconds: float, model: str, log: Path, connections: int = 64
) -> AsyncIterator[Endpoint]:
    """Start a server, wait until it answers, and end its process group when the block ends. Its output goes to `log`.

    Raises:
        ConfigError: The program cannot be started.
        MissingAsset: It ended or did not answer in time; the message has the last lines of its log.
    """
    server = Server(how.url, key_env, seconds)
    if await _answers(server):
        raise ConfigError(f"{how.url} answers already; help: stop that server, or use --on URL --off URL")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                how.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **how.env},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"{how.command[0]} cannot be started: {error.strerror}") from None
    try:
        await _until_ready(process, server, how, log)
        async with connected(server, model, connections) as endpoint:
            yield endpoint
    finally:
        await asyncio.shield(_end(process))


async def _until_ready(process: "subprocess.Popen[bytes]", server: Server, how: ServerCommand, log: Path) -> None:
    deadline = time.monotonic() + how.ready_seconds
    while not await _answers(server):
        if process.poll() is not None:
            raise MissingAsset(f"{how.command[0]} ended with code {process.returncode}: {_last_lines(log, server)}")
        if time.monotonic() > deadline:
            raise MissingAsset(f"{how.url} did not answer within {how.ready_seconds:g} s: {_last_lines(log, server)}")
        await asyncio.sleep(POLL_SECONDS)


async def _answers(server: Server) -> bool:
    """Return whether a server lists its models."""
    async with HttpClient(Server(server.root, server.key_env, 5.0)) as client:
        try:
            await client.get("/v1/models")
        except RequestFailed:
            return False
    return True


async def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process group of a server, and of no other process."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        for _ in range(int(END_SECONDS / POLL_SECONDS)):
            if process.poll() is not None:
                break
            await asyncio.sleep(POLL_SECONDS)
        else:
            continue
        break
    try:
        os.killpg(process.pid, signal.SIGKILL)  # children that outlived it
    except ProcessLookupError:
        return


def _last_lines(log: Path, server: Server) -> str:
    lines = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    return " | ".join(server.redacted(line) for line in lines)
