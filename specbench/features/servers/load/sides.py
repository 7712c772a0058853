"""The two servers of a measurement: both connected, or started in turn."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specbench.features.servers.endpoint import SPARE, Endpoint
from specbench.features.servers.load.managed import started
from specbench.features.servers.load.server_run import ServerRunRequest
from specbench.observer import Observer


@dataclass(frozen=True)
class Connected:
    """Two servers that both run."""

    endpoints: Mapping[str, Endpoint]
    restarts: ClassVar[bool] = False

    async def use(self, side: str) -> Endpoint:
        """Return the endpoint of a side."""
        return self.endpoints[side]


class Started:
    """Two servers, one running at a time. Using one stops the other."""

    restarts: ClassVar[bool] = True

    def __init__(self, request: ServerRunRequest, out: Path, observer: Observer) -> None:
        self._request, self._out, self._observer = request, out, observer
        self._stack, self._side = AsyncExitStack(), ""
        self._endpoint: Endpoint | None = None

    async def use(self, side: str) -> Endpoint:
        """Return the endpoint of a side, after starting it if it does not run. Raises as `started` does."""
        if side != self._side or self._endpoint is None:
            await self.stop()
            request = self._request
            assert request.commands is not None
            how = request.commands.on if side == "on" else request.commands.off
            server = request.on if side == "on" else request.off
            log, connections = self._out / f"server-{side}.log", max(request.concurrencies) + SPARE
            self._observer.message(f"start the server {side}")
            self._endpoint = await self._stack.enter_async_context(
                started(how, server, request.model, log, self._observer, connections)
            )
            self._side = side
        return self._endpoint

    async def stop(self) -> None:
        """End the server that runs."""
        self._side, self._endpoint = "", None
        await self._stack.aclose()
