"""A proxy that notes the headers of requests, which no audit log has.

    node --TLS--> HeaderTap --TLS, the node's certificate--> API server

It passes the bytes on as they are and reads along: HTTP/2 frames of type HEADERS, on both ways. The
answer names the request in the audit log by its Audit-Id. HTTP/1.1, which fleet speaks for itself
beside its nodes, is passed on unread.
"""

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hpack import Decoder

from fleet.controlplane.directory import Pair
from fleet.controlplane.pki import Authority

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
DATA, HEADERS, RST_STREAM, CONTINUATION = 0, 1, 3, 9
END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
CHUNK = 1 << 16
TABLE_MAX = 1 << 16
START_S = 60.0
HANDSHAKE_S = 0.05  # a connection that was accepted just now is closed with the others

Headers = dict[str, str]


class Noted(NamedTuple):
    """The headers of one request and of its answer, and which connection it took."""

    request: Headers
    response: Headers
    connection: int


class HeaderReader:
    """One way of a connection: what HEADERS frames say, by stream."""

    def __init__(self, on_headers: Callable[[int, Headers], None], *, preface: bytes = b"") -> None:
        self._on_headers = on_headers
        self._preface = len(preface)
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = TABLE_MAX
        self._bytes = bytearray()
        self._block = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        self._bytes += data
        if self._preface:
            if len(self._bytes) < self._preface:
                return
            del self._bytes[: self._preface]
            self._preface = 0
        while len(self._bytes) >= FRAME_HEADER:
            end = FRAME_HEADER + int.from_bytes(self._bytes[:3])
            if len(self._bytes) < end:
                return
            kind, flags = self._bytes[3], self._bytes[4]
            stream = int.from_bytes(self._bytes[5:9]) & 0x7FFFFFFF
            payload = bytes(self._bytes[FRAME_HEADER:end])
            del self._bytes[:end]
            if kind == HEADERS:
                self._block = fragment(payload, flags)
            elif kind == CONTINUATION:
                self._block += payload
            if kind in (HEADERS, CONTINUATION) and flags & END_HEADERS:
                self._on_headers(stream, text(self._decoder.decode(self._block, raw=True)))


class Holder:
    """What the watches of pods tell, passed on a while later, in its order; all else at once.

    HEADERS must keep their order on a connection, so that what is held of a stream goes before
    its trailers, sooner than it would.
    """

    def __init__(self, writer: asyncio.StreamWriter, hold_s: float) -> None:
        self._writer = writer
        self._hold_s = hold_s
        self._bytes = bytearray()
        self._held: dict[int, deque[bytes]] = {}

    def on_asked(self, stream: int, headers: Headers) -> None:
        """Hold the answer if the request is a watch of pods."""
        path, _, query = headers.get(":path", "").partition("?")
        if self._hold_s and path == "/api/v1/pods" and "watch=true" in query:
            self._held[stream] = deque()

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the API server, cut anywhere."""
        self._bytes += data
        for kind, flags, stream, frame in self._frames():
            held = self._held.get(stream)
            if held is None:
                self._writer.write(frame)
            elif kind == DATA:
                held.append(frame)
                asyncio.get_running_loop().call_later(self._hold_s, self._release, held, 1)
            else:
                if kind == RST_STREAM or flags & END_STREAM:
                    self._release(held, len(held))
                    del self._held[stream]
                self._writer.write(frame)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._bytes) >= FRAME_HEADER:
            end = FRAME_HEADER + int.from_bytes(self._bytes[:3])
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[:end])
            del self._bytes[:end]
            yield frame[3], frame[4], int.from_bytes(frame[5:9]) & 0x7FFFFFFF, frame

    def _release(self, held: deque[bytes], count: int) -> None:
        for _ in range(min(count, len(held))):
            frame = held.popleft()
            if not self._writer.is_closing():
                self._writer.write(frame)


def fragment(payload: bytes, flags: int) -> bytes:
    """Return the header block of a HEADERS frame."""
    if flags & PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if flags & PRIORITY else payload


def text(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    return {bytes(name).decode(): bytes(value).decode() for name, value in pairs}


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of the proxy: who it is for the node, and who it is for the API server."""

    port: int
    """The API server's."""
    authority: Pair
    client: Pair
    """Whose certificate it shows to the API server."""


class HeaderTap:
    """A proxy for one node, in a thread of its own."""

    def __init__(self, ends: Ends, directory: Path, *, hold_s: float = 0) -> None:
        """Make a proxy; `hold_s` is by how much later watches of pods tell the node anything."""
        self.noted: dict[str, Noted] = {}
        """By Audit-Id."""
        self._ends = ends
        self._hold_s = hold_s
        pair = Pair(directory / "tap.crt", directory / "tap.key")
        Authority.load(ends.authority).server(pair, "kube-apiserver", (HOST,))
        self._inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inward.load_cert_chain(pair.certificate, pair.key)
        self._inward.set_alpn_protocols(["h2", "http/1.1"])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="header-tap")
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._count = 0
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where the node finds its API server."""
        return f"https://{HOST}:{self._port}"

    def start(self) -> None:
        self._thread.start()
        self.resume()

    def stop(self) -> None:
        """Close everything and end the thread."""
        self.pause()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    def pause(self) -> None:
        """Refuse connections, as a host does whose API server is down."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(START_S)

    def resume(self) -> None:
        """Listen, on the same port as before."""
        done: Future[None] = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        done.result(START_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, HOST, self._port, ssl=self._inward, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.sleep(HANDSHAKE_S)
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin with a connection; no coroutine, which might be cancelled before it begins."""
        if self._server is None:  # it came while the tap was closed
            writer.transport.abort()
            return
        task = self._loop.create_task(self._pass_on(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task).transport.abort()
        if not task.cancelled() and not isinstance(error := task.exception(), OSError) and error:
            raise error

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to the API server with the protocol that the node chose, and copy both ways."""
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol() or "http/1.1"
        outward = ssl.create_default_context(cafile=self._ends.authority.certificate)
        outward.load_cert_chain(self._ends.client.certificate, self._ends.client.key)
        outward.set_alpn_protocols([protocol])
        server, to_server = await asyncio.open_connection(HOST, self._ends.port, ssl=outward)
        if protocol == "h2":
            holder = Holder(writer, self._hold_s)
            up, down = self._readers(holder.on_asked)
            both = (copy(reader, to_server, up), copy_holding(server, writer, down, holder))
        else:
            both = (copy(reader, to_server), copy(server, writer))
        await until_one_ends(*both, to_server=to_server)

    def _readers(
        self, on_asked: Callable[[int, Headers], None]
    ) -> tuple[HeaderReader, HeaderReader]:
        """Return readers for both ways of a new connection."""
        self._count += 1
        number, asked = self._count, dict[int, Headers]()

        def asks(stream: int, headers: Headers) -> None:
            asked[stream] = headers
            on_asked(stream, headers)

        def answered(stream: int, headers: Headers) -> None:
            request = asked.pop(stream, None)
            if request is not None and "audit-id" in headers:  # else it has trailers
                self.noted[headers["audit-id"]] = Noted(request, headers, number)

        return HeaderReader(asks, preface=PREFACE), HeaderReader(answered)


async def until_one_ends(
    *ways: Coroutine[None, None, None], to_server: asyncio.StreamWriter
) -> None:
    """Copy both ways until one of them ends, then end the other and the connection."""
    tasks = [asyncio.ensure_future(each) for each in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        to_server.transport.abort()


async def copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    noting: HeaderReader | None = None,
) -> None:
    """Pass bytes on until there are none."""
    while data := await reader.read(CHUNK):
        if noting is not None:
            noting.feed(data)
        writer.write(data)
        await writer.drain()


async def copy_holding(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    noting: HeaderReader,
    holder: Holder,
) -> None:
    """Pass on what the API server says, some of it later."""
    while data := await reader.read(CHUNK):
        noting.feed(data)
        holder.feed(data)
        await writer.drain()
