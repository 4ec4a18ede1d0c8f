"""The host's addresses: looked up once, off the loop, when the first connection needs them."""

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple

from fleet.wire.connection import Address


class Endpoint(NamedTuple):
    """The API server. `server_name` is what its certificate must be for; the host, if empty."""

    host: str
    port: int
    server_name: str = ""

    def authority(self) -> bytes:
        """Return the value of `:authority`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


class Resolver:
    """Calls `resolved("")` once `addresses` is there, or with why it is not."""

    __slots__ = ("_endpoint", "_loop", "_resolved", "_task", "addresses")

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        resolved: Callable[[str], None],
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._resolved = resolved
        self._task: asyncio.Task[None] | None = None
        self.addresses: tuple[Address, ...] = ()
        try:
            found = socket.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:
            return  # a name: looked up when asked
        self.addresses = tuple(Address(family, place) for family, _, _, _, place in found)

    def ask(self) -> None:
        """Begin the look-up, unless it runs."""
        if self._task is None:
            self._task = self._loop.create_task(self._look_up())

    async def close(self) -> None:
        """Give a running look-up up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_up(self) -> None:
        endpoint, error = self._endpoint, ""
        try:
            found = await self._loop.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM
            )
            self.addresses = tuple(Address(family, place) for family, _, _, _, place in found)
        except OSError as reason:
            error = f"host not found: {reason.strerror or reason}"
        self._task = None
        self._resolved(error)
