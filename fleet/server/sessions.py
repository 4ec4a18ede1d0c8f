"""exec and attach: a session in a container, and its client over a WebSocket or SPDY.

    input task:   client -> stdin                  output loop: advance -> stdout, stderr -> status

A session is asked for `CHUNK_BYTES` at a time and only once the client took the last ones, so a
client that does not read holds one chunk and its socket's buffers, and disturbs nobody.

    WebSocket: numbered channels in one message each
        v5.channel.k8s.io          binary; channel 255 closes another one
        v4.channel.k8s.io          binary; the status is JSON
        channel.k8s.io, no name    binary; the status is plain text
    SPDY: a stream for each of stdin, stdout, stderr, error and resize

Source: cri-streaming/pkg/streaming/remotecommand/{exec,attach,httpstream,websocket}.go;
streaming/pkg/httpstream/wsstream/conn.go; apiserver/pkg/util/proxy/{streamtranslator,websocket}.go.
Differs: the size of a terminal is dropped; SPDY has version 4 alone; the WebSocket protocols in
base64 are refused.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import compress
from typing import NamedTuple, Protocol, TypeVar

import orjson
from aiohttp import WSMsgType, web

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import NodeId
from fleet.k8s.streams import Output
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.server.byte_streams import ByteStream
from fleet.server.host_interface import Session
from fleet.server.reactor_thread import BugError, NodeGoneError, ReactorThread
from fleet.server.spdy import Data, GoneAway, Opened, Reset, SpdyServer
from fleet.server.spdy import Ended as StreamEnded

CHUNK_BYTES = 32 << 10
STUCK_S = 0.02  # how soon input is offered again to a session that had no room for all of it
T = TypeVar("T")
KUBELETS_WORDS = "command terminated with exit code"
"""How an exit code reads over version 5, which the kubelet itself ends, and not the runtime."""


class Channel(IntEnum):
    """The numbers of streams. Source: remotecommand/constants.go."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class Wanted(NamedTuple):
    """Which streams a client wants. Source: remotecommand/httpstream.go, Options."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class Ended(NamedTuple):
    """How a command ended."""

    exit_code: int
    error: str = ""

    def status(self, words: str) -> bytes:
        """Return it as a v1.Status, as protocols from version 4 on carry it."""
        return orjson.dumps(self._status(words))

    def text(self, words: str) -> bytes:
        """Return it as protocols before version 4 do: nothing, or why."""
        return str(self._status(words).get("message", "")).encode()

    def _status(self, words: str) -> dict[str, object]:
        if self.error:
            message = f"Internal error occurred: error executing command in container: {self.error}"
            return {
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "InternalError",
                "details": {"causes": [{"message": message.partition(": ")[2]}]},
                "code": 500,
            }
        if not self.exit_code:
            return {"metadata": {}, "status": "Success"}
        return {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: {words} {self.exit_code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(self.exit_code)}]},
        }


class Client(Protocol):
    """The other end of a session."""

    async def receive(self) -> bytes | None:
        """Return the next input, b"" once stdin has ended, None once the client has."""

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send output; returns once there is room for more. Raises ConnectionError."""

    async def finish(self, ended: Ended) -> None:
        """Say how it ended, and end the connection."""


def wanted_streams(query: Mapping[str, Sequence[str]]) -> Wanted | None:
    """Read what a client wants; None if it wants nothing. Source: NewOptions."""

    def is_set(name: str) -> bool:
        return query.get(name, [""])[0] == "1"

    tty = is_set("tty")
    wanted = Wanted(is_set("input"), is_set("output"), is_set("error") and not tty, tty)
    return wanted if wanted.stdin or wanted.stdout or wanted.stderr else None


@dataclass(eq=False)
class Conversation:
    """One session and its client, to the end of either."""

    _reactor_thread: ReactorThread
    _node: NodeId
    _session: Session
    _client: Client
    _wanted: Wanted
    _news: asyncio.Event = field(default_factory=asyncio.Event)  # input came: there may be output
    _is_gone: bool = False

    async def run(self) -> None:
        """Carry input and output until the command ends or the client goes."""
        taking = asyncio.ensure_future(self._take_input())
        try:
            ended = await self._give_output()
            if ended is not None:
                await self._client.finish(ended)
        except BugError as error:
            await self._client.finish(Ended(0, str(error)))
        except (ConnectionError, NodeGoneError):
            pass
        finally:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await taking
            with contextlib.suppress(NodeGoneError, BugError):
                await asyncio.shield(self._ask(self._session.close))

    async def _give_output(self) -> Ended | None:
        while not self._is_gone:
            self._news.clear()
            output = await self._ask(partial(self._session.advance, CHUNK_BYTES))
            # The errors first: `kubectl cp` ends with the archive, and what comes later is lost.
            if output.stderr and self._wanted.stderr:
                await self._client.send(Channel.STDERR, output.stderr)
            if output.stdout and self._wanted.stdout:
                await self._client.send(Channel.STDOUT, output.stdout)
            if output.more:
                continue
            if output.exit_code is not None or output.error:
                return Ended(output.exit_code or 0, output.error)
            await self._wait(output)
        return None

    async def _wait(self, output: Output) -> None:
        """Wait for input, or until the command goes on by itself."""
        limit_s = None
        if output.wake_ns is not None:
            limit_s = max(output.wake_ns - time.monotonic_ns(), 0) / 1e9
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._news.wait()

    async def _take_input(self) -> None:
        try:
            while (data := await self._client.receive()) is not None:
                if data and self._wanted.stdin:
                    await self._write(data)
                elif self._wanted.stdin:
                    await self._ask(self._session.close_stdin)
                self._news.set()
        except (NodeGoneError, BugError):
            pass
        self._is_gone = True
        self._news.set()

    async def _write(self, data: bytes) -> None:
        while data:
            taken = await self._ask(partial(self._session.write, data[:CHUNK_BYTES]))
            data = data[taken:]
            self._news.set()
            if data and not taken:
                await asyncio.sleep(STUCK_S)

    async def _ask(self, act: Callable[[int], T]) -> T:
        """Do something with the session in the reactor's thread, and what follows for the pod."""

        def in_reactor(_kubelet: VirtualKubelet, now_ns: int) -> T:
            result = act(now_ns)
            out = self._session.out
            if out:
                self._reactor_thread.perform(out)
                out.clear()
            return result

        return await self._reactor_thread.call(self._node, in_reactor)


V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
WEB_SOCKET_PROTOCOLS, SPDY_PROTOCOLS = (V5, V4, "channel.k8s.io"), (V4,)
_STDIN, _CLOSE = bytes((Channel.STDIN,)), bytes((Channel.CLOSE,))
MESSAGE_BYTES_MAX = 1 << 20
WRITE_BYTES_MAX = 64 << 10  # what may wait for a slow client before `send` waits


def is_web_socket(request: web.BaseRequest) -> bool:
    """Source: wsstream.IsWebSocketRequest."""
    upgrade = request.headers.get("Upgrade", "").lower()
    return upgrade == "websocket" and "upgrade" in request.headers.get("Connection", "").lower()


def offered(request: web.BaseRequest) -> list[str]:
    """Return the protocols that a client offers inside of a WebSocket."""
    lines = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [each.strip() for line in lines for each in line.split(",") if each.strip()]


class WebSocketClient:
    """The client of a session, over a WebSocket."""

    def __init__(self, socket: web.WebSocketResponse, words: str) -> None:
        self._socket = socket
        protocol = socket.ws_protocol or ""
        self._words = KUBELETS_WORDS if protocol == V5 else words
        self._has_close = protocol == V5
        self._has_status = protocol in {V5, V4}

    async def receive(self) -> bytes | None:
        """Return the next input. What is none is ignored, as upstream does."""
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.BINARY:
                channel, data = bytes(message.data[:1]), bytes(message.data[1:])
                if channel == _STDIN and data:
                    return data
                if channel == _CLOSE and self._has_close and data[:1] == _STDIN:
                    return b""
            elif message.type is not WSMsgType.TEXT:
                return None

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send output; returns once there is room for more."""
        await self._socket.send_bytes(bytes((channel,)) + data)

    async def finish(self, ended: Ended) -> None:
        """Say how it ended, and close."""
        text = (ended.status if self._has_status else ended.text)(self._words)
        if text:
            await self.send(Channel.ERROR, text)
        with contextlib.suppress(ConnectionError):
            await self._socket.close()


CREATION_S = 30.0  # Source: DefaultStreamCreationTimeout
TYPES = {each.name.lower(): each for each in Channel if each is not Channel.CLOSE}


class SpdyClient:
    """The client of a session, over SPDY."""

    def __init__(self, stream: ByteStream, words: str) -> None:
        self._stream = stream
        self._words = words
        self._spdy = SpdyServer()
        self._numbers: dict[Channel, int] = {}
        self._channels: dict[int, Channel] = {}
        self._inputs: deque[bytes] = deque()
        self._is_over = False

    async def wait_for_streams(self, wanted: Wanted) -> bool:
        """Wait until the client has begun the streams that it asked for; False if it does not."""
        optional = (Channel.STDIN, Channel.STDOUT, Channel.STDERR, Channel.RESIZE)
        expected = {Channel.ERROR, *compress(optional, wanted)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CREATION_S):
                while not expected <= self._numbers.keys() and not self._is_over:
                    await self._read()
        return expected <= self._numbers.keys()

    async def receive(self) -> bytes | None:
        """Return the next input."""
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
        for channel in (Channel.STDOUT, Channel.STDERR, Channel.ERROR):
            if channel in self._numbers:
                content = ended.status(self._words) if channel is Channel.ERROR else b""
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
                if self._channels.get(event.stream) is Channel.STDIN:
                    self._inputs.append(event.data)
            elif isinstance(event, StreamEnded | Reset):
                if self._channels.get(event.stream) is Channel.STDIN:
                    self._inputs.append(b"")
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
