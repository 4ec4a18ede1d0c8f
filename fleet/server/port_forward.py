"""Port forwarding: pairs of streams, data and error, for each connection to a port of a pod.

    streams of SPDY with headers port, streamType, requestID

Source: cri-streaming/pkg/streaming/portforward/httpstream.go.
Differs: a WebSocket is a tunnel for SPDY, as kubectl asks for; its older channels, a pair for each
port, are refused.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import NodeId
from fleet.k8s.pods import Pod
from fleet.k8s.streams import PortOutput, Refusal
from fleet.runtime.ports import PortSession
from fleet.server.byte_streams import ByteStream
from fleet.server.endpoints import ConcurrencyLimit
from fleet.server.host_interface import port_of
from fleet.server.reactor_thread import BugError, NodeGoneError, ReactorThread
from fleet.server.spdy import REFUSED_STREAM, Data, Ended, GoneAway, Opened, Reset, SpdyServer

PROTOCOL = "portforward.k8s.io"
TUNNEL = f"SPDY/3.1+{PROTOCOL}"
CREATION_S = 30.0
CHUNK_BYTES = 32 << 10
PORT_MAX = 65535
INPUT_BYTES_MAX = 256 << 10
"""What may wait for one port before the client is held up, with all that it forwards."""
CONNECTIONS_MAX = 500  # at once through one client
TOO_MANY_FORWARDED = Refusal(503, "too many connections are forwarded")


class Forwarder:
    """Connects to the ports of one pod."""

    def __init__(
        self, reactor_thread: ReactorThread, node: NodeId, pod: Pod, limit: ConcurrencyLimit
    ) -> None:
        self.limit = limit  # for the connections of all clients
        self._reactor_thread = reactor_thread
        self._node = node
        self.pod = pod

    async def open(self, port: int) -> PortSession | Refusal:
        """Connect to a port; the caller is counted in `limit`. Raises NodeGoneError."""
        return await self._reactor_thread.call(
            self._node, lambda kubelet, now_ns: port_of(kubelet, self.pod, port, now_ns)
        )

    async def write(self, session: PortSession, data: bytes) -> int:
        """Hand the port at most `CHUNK_BYTES`; return how many bytes it took."""
        return await self._reactor_thread.call(
            self._node, lambda _kubelet, now_ns: session.write(data[:CHUNK_BYTES], now_ns)
        )

    async def end(self, session: PortSession) -> None:
        """End the input of the port."""
        await self._reactor_thread.call(self._node, lambda _kubelet, now_ns: session.end(now_ns))

    async def advance(self, session: PortSession) -> PortOutput:
        """Return what the port says."""
        return await self._reactor_thread.call(
            self._node, lambda _kubelet, now_ns: session.advance(CHUNK_BYTES, now_ns)
        )


class PortConnection:
    """One connection to a port: what comes for it, and the task that answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.data: int | None = None  # numbers of the streams of SPDY
        self.error: int | None = None
        self.began_s = time.monotonic()
        self.input = bytearray()
        self.has_ended = self.is_given_up = False
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def take(self, data: bytes) -> None:
        """Take what the client sent."""
        if self.is_given_up:
            return
        self.input += data
        self.news.set()
        if len(self.input) > INPUT_BYTES_MAX:
            self.room.clear()

    async def wait_for_room(self) -> None:
        """Wait until the port has taken enough of what came."""
        if len(self.input) > INPUT_BYTES_MAX:
            await self.room.wait()

    def end(self) -> None:
        """Learn that it sends no more."""
        self.has_ended = True
        self.news.set()

    def give_up(self) -> None:
        """Carry nothing more: tasks that wait for it go on, what comes is dropped."""
        self.is_given_up = True
        self.input.clear()
        self.news.set()
        self.room.set()

    async def carry(
        self, forwarder: Forwarder, session: PortSession, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Carry both ways until the port is through or this is given up.

        Piece by piece, in turns: a port that takes nothing has output to give first, so neither way
        waits for the other one.
        """
        is_told = False
        while not self.is_given_up:
            self.news.clear()
            if self.input:
                del self.input[: await forwarder.write(session, bytes(self.input[:CHUNK_BYTES]))]
                if len(self.input) <= INPUT_BYTES_MAX:
                    self.room.set()
            elif self.has_ended and not is_told:
                is_told = True
                await forwarder.end(session)
            output = await forwarder.advance(session)
            if output.data:
                await send(output.data)
            if output.is_over:
                return
            if not (output.more or self.input or self.news.is_set()):
                await self.news.wait()


class SpdyPortForward:
    """All that one client forwards over one connection."""

    def __init__(self, stream: ByteStream, forwarder: Forwarder) -> None:
        self._stream = stream
        self._forwarder = forwarder
        self._spdy = SpdyServer()
        self._pairs: dict[str, PortConnection] = {}  # by requestID, until both streams are there
        self._connections: dict[int, PortConnection] = {}  # by the data stream
        self._carried: set[asyncio.Task[None]] = set()  # of pairs that were whole

    async def run(self) -> None:
        """Serve until the client goes."""
        try:
            while data := await self._stream.read():
                for event in self._spdy.receive(data):
                    self._on_event(event)
                await self._flush()
                for each in list(self._connections.values()):
                    await each.wait_for_room()
        except (RemoteProtocolError, ConnectionError):
            pass
        finally:
            for task in self._carried:
                task.cancel()
            await self._stream.close()

    def _on_event(self, event: Opened | Data | Ended | Reset | GoneAway) -> None:
        if isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, GoneAway):
            pass
        elif (connection := self._connections.get(event.stream)) is None:
            pass  # of an error stream, on which a client says nothing but that it is through
        elif isinstance(event, Data):
            connection.take(event.data)
        elif isinstance(event, Ended):
            connection.end()
        else:
            self._drop(connection)

    def _open(self, event: Opened) -> None:
        """Source: httpStreamReceived, requestID, getStreamPair."""
        text, kind = event.headers.get("port", ""), event.headers.get("streamtype", "")
        port = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
        if not 0 < port <= PORT_MAX or kind not in {"data", "error"}:
            self._spdy.reset(event.stream)
            return
        self._forget_halves()
        first = event.stream if kind == "error" else event.stream - 2
        request = event.headers.get("requestid") or str(first)
        connection = self._pairs.get(request)
        is_new = connection is None
        if connection is None:
            connection = PortConnection(port)
        is_taken = connection.data if kind == "data" else connection.error
        is_full = is_new and len(self._pairs) + len(self._carried) >= CONNECTIONS_MAX
        if is_taken is not None or is_full:
            self._spdy.reset(event.stream, REFUSED_STREAM)
            return
        self._pairs[request] = connection
        self._spdy.accept(event.stream)
        if kind == "data":
            connection.data = event.stream
            self._connections[event.stream] = connection
        else:
            connection.error = event.stream
        if connection.data is not None and connection.error is not None:
            del self._pairs[request]
            connection.task = asyncio.ensure_future(self._forward(connection))
            self._carried.add(connection.task)
            connection.task.add_done_callback(self._carried.discard)

    def _forget_halves(self) -> None:
        """Give up pairs of which one stream never came. Source: monitorStreamPair."""
        now_s = time.monotonic()
        for request, each in list(self._pairs.items()):
            if now_s - each.began_s > CREATION_S:
                del self._pairs[request]
                self._drop(each)

    async def _forward(self, connection: PortConnection) -> None:
        """Carry one connection, to the end of either side."""
        data, forwarder = connection.data, self._forwarder
        assert data is not None
        assert connection.error is not None

        async def send(said: bytes) -> None:
            self._spdy.send(data, said)
            await self._flush()

        try:
            with forwarder.limit.held() as is_admitted:
                session = (
                    await forwarder.open(connection.port) if is_admitted else TOO_MANY_FORWARDED
                )
                if isinstance(session, Refusal):
                    where = f"port {connection.port} to pod {forwarder.pod.uid}"
                    text = f"error forwarding {where}, uid : {session.text}"
                    self._spdy.send(connection.error, text.encode(), is_last=True)
                    self._drop(connection)
                    await self._flush()
                    return
                await connection.carry(forwarder, session, send)
            self._spdy.send(data, b"", is_last=True)
            self._spdy.send(connection.error, b"", is_last=True)
            await self._flush()
        except (ConnectionError, NodeGoneError, BugError):
            self._drop(connection)
        finally:
            connection.give_up()
            self._connections.pop(data, None)

    def _drop(self, connection: PortConnection) -> None:
        """Give both streams up."""
        for number in (connection.data, connection.error):
            if number is not None:
                self._spdy.reset(number)
                self._connections.pop(number, None)
        connection.give_up()

    async def _flush(self) -> None:
        if out := self._spdy.take():
            await self._stream.write(out)
