"""A proxy that notes the headers of requests, which no audit log has.

    node --TLS--> HeaderTap --TLS, the node's certificate--> API server

It passes the bytes on as they are and reads along: HTTP/2 frames of type HEADERS, on both ways. The
answer names the request in the audit log by its Audit-Id. HTTP/1.1, which fleet speaks for itself
beside its nodes, is passed on unread.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hpack import Decoder

from fleet.controlplane.certificates import Authority, Pair

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
HEADERS, CONTINUATION = 1, 9
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
CHUNK = 1 << 16
TABLE_MAX = 1 << 16
START_S = 60.0

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

    def __init__(self, ends: Ends, directory: Path) -> None:
        self.noted: dict[str, Noted] = {}
        """By Audit-Id."""
        self._ends = ends
        pair = Pair(directory / "tap.crt", directory / "tap.key")
        Authority(ends.authority).server(pair, "kube-apiserver", (HOST,))
        self._inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inward.load_cert_chain(pair.certificate, pair.key)
        self._inward.set_alpn_protocols(["h2", "http/1.1"])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="header-tap")
        self._connections: set[asyncio.Task[None]] = set()
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
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to the API server with the protocol that the node chose, and copy both ways."""
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol() or "http/1.1"
        outward = ssl.create_default_context(cafile=self._ends.authority.certificate)
        outward.load_cert_chain(self._ends.client.certificate, self._ends.client.key)
        outward.set_alpn_protocols([protocol])
        server, to_server = await asyncio.open_connection(HOST, self._ends.port, ssl=outward)
        up, down = self._readers() if protocol == "h2" else (None, None)
        both = (copy(reader, to_server, up), copy(server, writer, down))
        tasks = [asyncio.ensure_future(each) for each in both]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            to_server.transport.abort()

    def _readers(self) -> tuple[HeaderReader, HeaderReader]:
        """Return readers for both ways of a new connection."""
        self._count += 1
        number, asked = self._count, dict[int, Headers]()

        def answered(stream: int, headers: Headers) -> None:
            request = asked.pop(stream, None)
            if request is not None and "audit-id" in headers:  # else it has trailers
                self.noted[headers["audit-id"]] = Noted(request, headers, number)

        return HeaderReader(asked.__setitem__, preface=PREFACE), HeaderReader(answered)


async def copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, noting: HeaderReader | None
) -> None:
    """Pass bytes on until there are none."""
    while data := await reader.read(CHUNK):
        if noting is not None:
            noting.feed(data)
        writer.write(data)
        await writer.drain()
