"""A small real HTTP/2 server over TLS, to test a client against: own frames, the hpack library.

It decodes header blocks with a stateful table, so an index that we got wrong shows at once. A test
gives a handler; without one, the path says what to answer. As a program it serves until killed and
prints its port: `peer.py CERTIFICATE KEY`.
"""

import asyncio
import datetime as dt
import ipaddress
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import hpack
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet.wire import frames


class Certificate(NamedTuple):
    """Files of a self-signed certificate for localhost."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peer")])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(names, critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    paths = Certificate(folder / "peer.crt", folder / "peer.key")
    paths.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


class Received(NamedTuple):
    """A request as the peer saw it."""

    connection: int
    sid: int
    headers: dict[str, str]
    body: bytes


class PeerConnection(asyncio.Protocol):
    def __init__(self, peer: "Peer") -> None:
        self.peer = peer
        self.number = -1
        self.decoder = hpack.Decoder()
        self.encoder = hpack.Encoder()
        self.encoder.header_table_size = 0
        self.buffer = bytearray()
        self.started = False
        self.open: dict[int, tuple[dict[str, str], bytearray]] = {}
        self.block = bytearray()
        self.pings = 0
        self.resets: list[tuple[int, int]] = []
        self.goaways: list[int] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.number = len(self.peer.connections)
        self.peer.connections.append(self)
        settings = b"".join(
            name.to_bytes(2, "big") + value.to_bytes(4, "big")
            for name, value in self.peer.settings.items()
        )
        self.send(frames.SETTINGS, 0, 0, settings)
        if self.peer.settings.get(4, 0) > frames.WINDOW_DEFAULT:
            self.send(frames.WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big"))

    def send(self, kind: int, flags: int, sid: int, payload: bytes = b"") -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frames.frame(kind, flags, sid, payload))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.started:
            if len(self.buffer) < len(frames.PREFACE):
                return
            assert self.buffer.startswith(frames.PREFACE)
            del self.buffer[: len(frames.PREFACE)]
            self.started = True
        while len(self.buffer) >= 9:
            high, low, kind, flags, sid = frames.HEAD.unpack_from(self.buffer)
            stop = 9 + (high << 16 | low)
            if len(self.buffer) < stop:
                return
            payload = bytes(self.buffer[9:stop])
            del self.buffer[:stop]
            self.on_frame(kind, flags, sid, payload)

    def on_frame(self, kind: int, flags: int, sid: int, payload: bytes) -> None:
        if kind in (frames.HEADERS, frames.CONTINUATION):
            self.block += payload
            if flags & frames.END_HEADERS:
                headers = {str(k): str(v) for k, v in self.decoder.decode(bytes(self.block))}
                self.block.clear()
                self.open[sid] = (headers, bytearray())
                self.peer.opened += 1
                if int(headers.get("content-length", "0")) == 0:
                    self.whole(sid)
        elif kind == frames.DATA and sid in self.open:
            self.on_data(flags, sid, payload)
        elif kind == frames.PING:
            self.pings += 1
            if not flags & frames.ACK and self.peer.answers_pings:
                self.send(frames.PING, frames.ACK, 0, payload)
        elif kind == frames.SETTINGS and flags & frames.ACK:
            self.decoder.max_allowed_table_size = self.peer.table_bytes
        elif kind == frames.SETTINGS:
            self.send(frames.SETTINGS, frames.ACK, 0)
        elif kind == frames.RST_STREAM:
            self.resets.append((sid, int.from_bytes(payload, "big")))
        elif kind == frames.GOAWAY:
            self.goaways.append(int.from_bytes(payload[4:8], "big"))

    def on_data(self, flags: int, sid: int, payload: bytes) -> None:
        self.open[sid][1].extend(payload)
        gain = len(payload).to_bytes(4, "big")
        if payload:
            self.send(frames.WINDOW_UPDATE, 0, 0, gain)
            self.send(frames.WINDOW_UPDATE, 0, sid, gain)
        if flags & frames.END_STREAM:
            self.whole(sid)

    def whole(self, sid: int) -> None:
        headers, body = self.open.pop(sid)
        request = Received(self.number, sid, headers, bytes(body))
        self.peer.requests.append(request)
        self.peer.handler(self, request)

    def answer(
        self,
        sid: int,
        status: int = 200,
        body: bytes = b"",
        fields: tuple[tuple[str, str], ...] = (),
        *,
        end: bool = True,
    ) -> None:
        block = self.encoder.encode([(":status", str(status)), *fields])
        flags = frames.END_HEADERS | (frames.END_STREAM if end and not body else 0)
        self.send(frames.HEADERS, flags, sid, block)
        for at in range(0, len(body), 16384):
            last = end and at + 16384 >= len(body)
            piece = body[at : at + 16384]
            self.send(frames.DATA, frames.END_STREAM if last else 0, sid, piece)

    def reset(self, sid: int, code: int) -> None:
        self.send(frames.RST_STREAM, 0, sid, code.to_bytes(4, "big"))

    def go_away(self, last: int, code: int = 0, text: bytes = b"") -> None:
        payload = last.to_bytes(4, "big") + code.to_bytes(4, "big") + text
        self.send(frames.GOAWAY, 0, 0, payload)

    def drop(self) -> None:
        assert self.transport is not None
        self.transport.abort()


Handler = Callable[[PeerConnection, Received], None]


def by_path(connection: PeerConnection, request: Received) -> None:
    """Answer as the path says: /bytes?n=, /watch?n= (stays open), /status?code=, /silent."""
    parts = urlsplit(request.headers[":path"])
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    body = b"x" * int(query.get("n", "0"))
    if parts.path == "/watch":
        connection.answer(request.sid, 200, body, end=False)
    elif parts.path == "/status":
        fields = (("retry-after", query["retry"]),) if "retry" in query else ()
        connection.answer(request.sid, int(query["code"]), b"no", fields)
    elif parts.path != "/silent":
        connection.answer(request.sid, 200, body or b"ok")


class Peer:
    """The server, in a thread with a loop of its own."""

    def __init__(
        self,
        certificate: Certificate,
        handler: Handler = by_path,
        settings: dict[int, int] | None = None,
        *,
        alpn: str = "h2",
    ) -> None:
        self.handler = handler
        self.settings = {3: 100} if settings is None else settings
        self.table_bytes = self.settings.get(1, 4096)
        self.answers_pings = True
        self.connections: list[PeerConnection] = []
        self.requests: list[Received] = []
        self.opened = 0
        self.port = 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate.certificate, certificate.key)
        if alpn:
            self.context.set_alpn_protocols([alpn])
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self.server: asyncio.Server | None = None
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def _listen(self, port: int) -> None:
        self.server = await self.loop.create_server(
            lambda: PeerConnection(self), "127.0.0.1", port, ssl=self.context, backlog=1024
        )
        self.port = self.server.sockets[0].getsockname()[1]

    def listen(self, port: int = 0) -> None:
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(port), self.loop).result(5)

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the peer's thread and wait for it."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)

    async def _end(self) -> None:
        assert self.server is not None
        self.server.close()
        for connection in self.connections:
            connection.drop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


def main() -> None:
    peer = Peer(Certificate(Path(sys.argv[1]), Path(sys.argv[2])))
    peer.listen()
    print(peer.port, flush=True)
    sys.stdin.read()  # until the one who started us is gone


if __name__ == "__main__":
    main()
