"""Servers that specbench starts itself, one at a time: their commands, logs and ends."""

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.construct import construct
from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.load import supervisor
from specbench.features.servers.readiness import NotReady, Patience
from specbench.files import read_toml
from specbench.http_client import FailureKind, HttpClient, RequestFailed, Server
from specbench.observer import Observer

POLL_SECONDS = 0.1
ENDING_SECONDS = 3.0  # in which the server of a command that was killed has ended
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
        Server(self.url, key_env="")  # checks the URL, without a key


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
    how: ServerCommand, server: Server, model: str, log: Path, observer: Observer, connections: int = 64
) -> AsyncIterator[Endpoint]:
    """Start a server, wait until it is ready, and end it with all its descendants when the block or this process ends.

    Args:
        how: Its command.
        server: Its address, key and longest duration of a request.
        model: The model's name, if it serves several.
        log: The file to which its output is appended.
        observer: Receives that it is loading.
        connections: The largest number of requests in flight.

    Raises:
        ConfigError: The program cannot be started, or the address is in use.
        MissingAsset: It ended or was not ready in time; the message has the last lines of its log.
    """
    await _require_free(server, how)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        begin = out.tell()
        process = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None

    def check() -> None:
        if process.poll() is not None:
            lines = _last_lines(log, begin, server)
            raise MissingAsset(f"{how.command[0]} ended with code {process.returncode}: {lines}")

    patience = Patience(seconds=how.ready_seconds, is_starting=True, check=check, observer=observer)
    try:
        with contextlib.suppress(OSError):  # its own start failed, which its log shows
            process.stdin.write(json.dumps({"command": how.command, "env": how.env}).encode() + b"\n")
            process.stdin.flush()
        if (line := await _first_line(process, how.ready_seconds)) != b"started":
            reason = line.decode(errors="replace") or _last_lines(log, begin, server)
            raise ConfigError(f"{how.command[0]} cannot be started: {reason}")
        try:
            async with connected(server, model, connections, patience) as endpoint:
                yield endpoint
        except NotReady as error:
            raise MissingAsset(f"{error}: {_last_lines(log, begin, server)}") from None
    finally:
        await asyncio.shield(_end(process))


async def _require_free(server: Server, how: ServerCommand) -> None:
    """Raise ConfigError if something answers at the address, and goes on after the time in which a killed command's ends."""
    until = time.monotonic() + ENDING_SECONDS
    async with HttpClient(Server(server.root, server.key_env, ENDING_SECONDS)) as client:
        while True:
            try:
                await client.get("/v1/models")
            except RequestFailed as error:
                if error.kind is FailureKind.connection:
                    return
            if time.monotonic() > until:
                raise ConfigError(f"{how.url} answers already; help: stop that server, or use --on URL --off URL")
            await asyncio.sleep(POLL_SECONDS)


async def _first_line(process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
    """Return the first line of the supervisor's output; empty if it ended without one.

    Raises MissingAsset if there is none within `seconds`. A wait in a thread would outlast Ctrl-C, so the pipe is polled.
    """
    assert process.stdout is not None
    pipe, line, until = process.stdout.fileno(), b"", time.monotonic() + seconds
    while not line.endswith(b"\n"):
        if select.select([pipe], [], [], 0.0)[0]:
            if not (read := os.read(pipe, 4096)):
                break
            line += read
        elif time.monotonic() > until:
            raise MissingAsset(f"the process that starts the server did not answer within {seconds:g} s")
        else:
            await asyncio.sleep(POLL_SECONDS / 10)
    return line.strip()


async def _end(process: "subprocess.Popen[bytes]") -> None:
    """Have the supervisor end its server, and wait for it."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.write(b"end\n")
        process.stdin.flush()
    while process.poll() is None:
        await asyncio.sleep(POLL_SECONDS)
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.stdout.close()


def _last_lines(log: Path, begin: int, server: Server) -> str:
    """Return the last lines of a log after `begin`."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()[-SHOWN_LINES:]
    return " | ".join(server.redacted(line) for line in lines)
