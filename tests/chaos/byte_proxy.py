"""A link that stands between a client and a server, and that can go wrong: bytes only, no protocol.

Each direction of a connection is a `Pipe`. What is wrong with the link is in its slots, and each
pipe looks there with every piece that it passes on, so that a fault hits connections that are open
as well as new ones.
"""

import asyncio
import contextlib
import math
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

HELD_MAX = 1 << 20
"""Bytes of a connection that wait in the link; then its sender has to wait, too."""


class Link:
    """All connections by way of one listener."""

    def __init__(self, server: tuple[str, int] | Path) -> None:
        self._server = server
        self._pipes: set[Pipe] = set()
        self._listener: asyncio.Server | None = None
        self.passed = 0
        self.delay_s = 0.0
        self.bytes_per_s = 0.0
        """The bandwidth of all connections together; 0 is no limit."""
        self.cut_after = 0
        """Bytes of the next piece after which a connection is reset; 0 is never."""
        self.is_dark = False
        """Nothing gets through, and nobody learns of it."""
        self._free_s = 0.0

    async def listen(self, path: Path | None = None) -> int:
        """Accept connections; return the port of a link that has one."""
        loop = asyncio.get_running_loop()
        if path is not None:
            self._listener = await loop.create_unix_server(lambda: Pipe(self), str(path))
            return 0
        self._listener = await loop.create_server(lambda: Pipe(self), "127.0.0.1", 0, backlog=4096)
        return int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Reset every connection."""
        for pipe in list(self._pipes):
            pipe.abort()

    @contextlib.contextmanager
    def dark(self) -> Iterator[None]:
        self.is_dark = True
        try:
            yield
        finally:
            self.is_dark = False
            for pipe in list(self._pipes):
                pipe.go_on()

    def widen(self) -> None:
        """Take the limit of the bandwidth away; what it holds up is through at once."""
        self.bytes_per_s = self._free_s = 0.0
        for pipe in list(self._pipes):
            pipe.pass_late(math.inf)

    async def connect(self, pipe: "Pipe") -> None:
        """Connect to the server for a client that has connected."""
        loop = asyncio.get_running_loop()
        other = Pipe(self, pipe)
        try:
            if isinstance(self._server, Path):
                await loop.create_unix_connection(lambda: other, str(self._server))
            else:
                await loop.create_connection(lambda: other, *self._server)
        except OSError:
            pipe.abort()
            return
        pipe.peer = other
        pipe.go_on()

    def due_s(self, size: int, now_s: float) -> float:
        """Return when a piece that comes now is through."""
        due_s = now_s + self.delay_s
        if self.bytes_per_s:
            self._free_s = max(self._free_s, now_s) + size / self.bytes_per_s
            due_s = max(due_s, self._free_s)
        return due_s

    def add(self, pipe: "Pipe") -> None:
        self._pipes.add(pipe)

    def remove(self, pipe: "Pipe") -> None:
        self._pipes.discard(pipe)


class Pipe(asyncio.Protocol):
    """What comes from one end of a connection goes to the other, in order."""

    def __init__(self, link: Link, peer: "Pipe | None" = None) -> None:
        self.peer = peer
        self._link = link
        self._is_client = peer is None
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._late: deque[tuple[float, bytes]] = deque()
        """Pieces that are on their way, and when they are through."""
        self._has_ended = False
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HELD_MAX)
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.add(self)
        if self._is_client:
            self._connecting = asyncio.ensure_future(self._link.connect(self))

    def data_received(self, data: bytes) -> None:
        link = self._link
        link.passed += len(data)
        if link.cut_after and len(data) > link.cut_after and self.peer is not None:
            self.peer.write(data[: link.cut_after])
            self.peer.end()
            self.end()
        elif link.is_dark or self.peer is None or self._held:
            self._hold(data)
        elif link.delay_s or link.bytes_per_s or self._late:
            self._pass_later(data)
        else:
            self.peer.write(data)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_MAX and self._transport is not None:
            self._transport.pause_reading()

    def _pass_later(self, data: bytes) -> None:
        """Pass a piece on when it is due, and not before the one that came before it."""
        loop = asyncio.get_running_loop()
        due_s = self._link.due_s(len(data), loop.time())
        if self._late:
            due_s = max(due_s, self._late[-1][0])
        self._late.append((due_s, data))
        loop.call_at(due_s, self.pass_late, due_s)

    def pass_late(self, until_s: float) -> None:
        """Pass on what is through by then."""
        while self._late and self._late[0][0] <= until_s:
            data = self._late.popleft()[1]
            if self._link.is_dark or self._held:
                self._hold(data)
            elif self.peer is not None:
                self.peer.write(data)

    def go_on(self) -> None:
        """Pass on what waited."""
        if self.peer is None or self._link.is_dark:
            return
        for data in self._held:
            self.peer.write(data)
        self._held.clear()
        self._held_bytes = 0
        if self._has_ended:
            self.peer.end()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer._transport is not None:
            self.peer._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer._transport is not None:
            self.peer._transport.resume_reading()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Reset both ends, whatever is still on its way."""
        for each in (self, self.peer):
            if each is not None and each._transport is not None:
                connection = each._transport.get_extra_info("socket")
                with contextlib.suppress(OSError):  # closed: RST instead of FIN
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                each._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._link.remove(self)
        self._has_ended = True
        if self.peer is not None and not self._held:
            self.peer.end()
