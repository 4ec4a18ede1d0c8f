"""Two-way streams of bytes on a connection that was HTTP: hijacked, or inside a WebSocket.

Source: streaming/pkg/httpstream/spdy/upgrade.go, UpgradeResponse;
apiserver/pkg/util/proxy/streamtunnel.go; client-go/tools/portforward/tunneling_connection.go.
"""

import asyncio
import contextlib
from collections import deque
from typing import Protocol

from aiohttp import WSMsgType, web

from fleet.server.http import NodeProtocol

QUEUED_BYTES_MAX = 256 << 10  # what may wait to be read before the client is held up


class ByteStream(Protocol):
    """A connection between a client and a kubelet."""

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the end."""

    async def write(self, data: bytes) -> None:
        """Send bytes; returns once there is room for more. Raises ConnectionError."""

    async def close(self) -> None:
        """End the connection, after what was written."""


class RawStream:
    """A connection that was taken over from HTTP: aiohttp hands it what it reads."""

    def __init__(self, protocol: NodeProtocol) -> None:
        self._protocol = protocol
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_over = False
        self._arrived = asyncio.Event()
        self._is_held = False

    # ---- what aiohttp calls ----

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take what was read."""
        self._pieces.append(bytes(data))
        self._size += len(data)
        transport = self._protocol.transport
        if self._size > QUEUED_BYTES_MAX and not self._is_held and transport is not None:
            self._is_held = True
            transport.pause_reading()
        self._arrived.set()
        return False, b""

    def feed_eof(self) -> None:
        """Learn that nothing more comes."""
        self._is_over = True
        self._arrived.set()

    # ---- the stream ----

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        while not self._pieces and not self._is_over:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._pieces:
            return b""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        transport = self._protocol.transport
        if self._is_held and transport is not None:
            self._is_held = False
            transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; returns once there is room for more."""
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        transport.write(data)
        await self._protocol._drain_helper()  # noqa: SLF001 - what aiohttp's own writers call

    async def close(self) -> None:
        """End the connection, after what was written."""
        if self._protocol.transport is not None:
            self._protocol.transport.close()


class UpgradeResponse(web.StreamResponse):
    """101 Switching Protocols, after which the connection is no longer HTTP's."""

    def __init__(self, protocol: str, headers: dict[str, str]) -> None:
        super().__init__(status=101, headers={"Upgrade": protocol, **headers})

    async def take_over(self, request: web.BaseRequest) -> RawStream:
        """Send the answer, and return the connection."""
        protocol = request.protocol
        assert isinstance(protocol, NodeProtocol)
        self._headers["Connection"] = "Upgrade"
        await self.prepare(request)
        await request.writer.drain()
        stream = RawStream(protocol)
        protocol.keep_alive(False)  # noqa: FBT003 - aiohttp's signature
        protocol.set_parser(stream)  # type: ignore[arg-type]
        return stream

    async def write_eof(self, _data: bytes = b"") -> None:
        """Let the stream say when it ends."""


class TunnelStream:
    """A stream inside of the binary messages of a WebSocket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.BINARY:
                if message.data:
                    return bytes(message.data)
            else:  # text is no tunnel's, and all else ends it
                return b""

    async def write(self, data: bytes) -> None:
        """Send bytes; returns once there is room for more."""
        await self._socket.send_bytes(data)

    async def close(self) -> None:
        """End the connection, after what was written."""
        with contextlib.suppress(ConnectionError):
            await self._socket.close()
