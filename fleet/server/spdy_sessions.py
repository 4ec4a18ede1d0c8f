"""Sessions over SPDY: a stream for each of stdin, stdout, stderr, error and resize.

Source: cri-streaming/pkg/streaming/remotecommand/httpstream.go, createHTTPStreamStreams,
v4ProtocolHandler.
Differs: version 1 does not end its error stream with a reset.
"""

import asyncio
import contextlib
from collections import deque

from fleet.errors import RemoteProtocolError
from fleet.server.byte_streams import ByteStream
from fleet.server.remote_command import Channel, Ended, Wanted
from fleet.server.spdy import Data, GoneAway, Opened, Reset, SpdyServer
from fleet.server.spdy import Ended as StreamEnded

PROTOCOLS = (
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
)
WITH_RESIZE = frozenset(("v4.channel.k8s.io", "v3.channel.k8s.io"))
CREATION_S = 30.0
"""Source: DefaultStreamCreationTimeout."""
TYPES = {
    "stdin": Channel.STDIN,
    "stdout": Channel.STDOUT,
    "stderr": Channel.STDERR,
    "error": Channel.ERROR,
    "resize": Channel.RESIZE,
}


class SpdyClient:
    """The client of a session, over SPDY."""

    def __init__(self, stream: ByteStream, protocol: str) -> None:
        self._stream = stream
        self._spdy = SpdyServer()
        self._has_status = protocol == PROTOCOLS[0]
        self._has_resize = protocol in WITH_RESIZE
        self._numbers: dict[Channel, int] = {}
        self._channels: dict[int, Channel] = {}
        self._inputs: deque[tuple[Channel, bytes]] = deque()
        self._is_over = False

    async def wait_for_streams(self, wanted: Wanted) -> bool:
        """Wait until the client has begun the streams that it asked for; False if it does not."""
        expected = {Channel.ERROR}
        expected |= {Channel.STDIN} if wanted.stdin else set()
        expected |= {Channel.STDOUT} if wanted.stdout else set()
        expected |= {Channel.STDERR} if wanted.stderr else set()
        expected |= {Channel.RESIZE} if wanted.tty and self._has_resize else set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CREATION_S):
                while not expected <= self._numbers.keys() and not self._is_over:
                    await self._read()
        return expected <= self._numbers.keys()

    async def receive(self) -> tuple[Channel, bytes] | None:
        """Return the next input, None at the end."""
        while not self._inputs and not self._is_over:
            await self._read()
        return self._inputs.popleft() if self._inputs else None

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send output; returns once there is room for more."""
        number = self._numbers.get(channel)
        if number is not None:
            self._spdy.send(number, data)
            await self._flush()

    async def finish(self, ended: Ended) -> None:
        """Say how it ended, and close."""
        text = ended.status() if self._has_status else ended.text()
        for channel in (Channel.STDOUT, Channel.STDERR, Channel.ERROR):
            if channel in self._numbers:
                content = text if channel is Channel.ERROR else b""
                self._spdy.send(self._numbers[channel], content, is_last=True)
        self._spdy.go_away()
        await self._flush()
        await self._stream.close()

    async def _read(self) -> None:
        data = await self._stream.read()
        if not data:
            self._is_over = True
            return
        try:
            events = self._spdy.receive(data)
        except RemoteProtocolError:
            self._is_over = True
            await self._stream.close()
            return
        for event in events:
            if isinstance(event, Opened):
                self._open(event)
            elif isinstance(event, Data):
                channel = self._channels.get(event.stream)
                if channel in {Channel.STDIN, Channel.RESIZE}:
                    self._inputs.append((channel, event.data))
            elif isinstance(event, StreamEnded | Reset):
                if self._channels.get(event.stream) is Channel.STDIN:
                    self._inputs.append((Channel.CLOSE, b""))
            elif isinstance(event, GoneAway):
                self._is_over = self._is_over or not self._channels
        await self._flush()

    def _open(self, event: Opened) -> None:
        channel = TYPES.get(event.headers.get("streamtype", ""))
        if channel is None or channel in self._numbers:
            self._spdy.reset(event.stream)
            return
        self._numbers[channel] = event.stream
        self._channels[event.stream] = channel
        self._spdy.accept(event.stream)

    async def _flush(self) -> None:
        if out := self._spdy.take():
            await self._stream.write(out)
