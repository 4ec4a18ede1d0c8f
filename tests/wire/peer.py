"""A real HTTP/2 server over TLS, to test a client against: `h2`, which knows nothing of fleet.

It is strict: a frame, a header block or a window that we got wrong shows at once, as a connection
that it closes. A test gives a handler; without one, the path says what to answer. What h2 refuses
to send (breaches, a GOAWAY before which streams end) goes as a frame of `hyperframe`. As a program
it serves until killed and prints its port: `peer.py CERTIFICATE KEY`.
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

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from hyperframe.frame import Frame, GoAwayFrame

FRAME_BYTES = 16384
"""What fleet takes, and h2 sends at most."""


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
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.open: dict[int, tuple[dict[str, str], bytearray]] = {}
        self.waiting: dict[int, tuple[bytes, bool]] = {}  # bodies that wait for a window
        self.pings = 0
        self.resets: list[tuple[int, int]] = []
        self.goaways: list[int] = []
        self.breach: ProtocolError | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.number = len(self.peer.connections)
        self.peer.connections.append(self)
        self.h2.initiate_connection()
        self.h2.update_settings(self.peer.settings)  # in force once they are acknowledged
        if self.peer.settings.get(4, 0) > 65535:
            self.h2.increment_flow_control_window(2**30)
        self.flush()

    def flush(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(self.h2.data_to_send())

    def raw(self, frame: Frame) -> None:
        """Send a frame that h2 would not."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame.serialize())

    def data_received(self, data: bytes) -> None:
        try:
            found = self.h2.receive_data(data)
        except ProtocolError as error:
            self.breach = error
            self.flush()
            self.drop()
            return
        for event in found:
            self.on_event(event)
        self.flush()

    def on_event(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived(stream_id=int(sid), headers=list(headers)):
                self.open[sid] = ({str(name): str(value) for name, value in headers}, bytearray())
                self.peer.opened += 1
            case events.DataReceived(stream_id=int(sid), data=bytes(data)):
                if sid in self.open:
                    self.open[sid][1].extend(data)
                self.h2.acknowledge_received_data(event.flow_controlled_length or 0, sid)
            case events.StreamEnded(stream_id=int(sid)):
                fields, received = self.open.pop(sid)
                request = Received(self.number, sid, fields, bytes(received))
                self.peer.requests.append(request)
                self.peer.handler(self, request)
            case events.StreamReset(stream_id=int(sid), error_code=code, remote_reset=True):
                self.resets.append((sid, int(code or 0)))
            case events.PingReceived() | events.PingAckReceived():
                self.pings += 1
                if not self.peer.answers_pings:
                    self.h2.clear_outbound_data_buffer()
            case events.ConnectionTerminated(error_code=code):
                self.goaways.append(int(code or 0))
            case events.WindowUpdated():
                for each, (rest, end) in list(self.waiting.items()):
                    self.more(each, rest, end=end)

    def answer(
        self,
        sid: int,
        status: int = 200,
        body: bytes = b"",
        fields: tuple[tuple[str, str], ...] = (),
        *,
        end: bool = True,
    ) -> None:
        self.h2.send_headers(sid, [(":status", str(status)), *fields], end and not body)
        if body:
            self.more(sid, body, end=end)
        self.flush()

    def more(self, sid: int, body: bytes = b"", *, end: bool = False) -> None:
        """Go on with an answer as far as the windows allow, and later with the rest."""
        while len(body) > (size := min(self.h2.local_flow_control_window(sid), FRAME_BYTES)):
            if not size:
                self.waiting[sid] = (body, end)
                break
            self.h2.send_data(sid, body[:size])
            body = body[size:]
        else:
            self.waiting.pop(sid, None)
            self.h2.send_data(sid, body, end_stream=end)
        self.flush()

    def reset(self, sid: int, code: int) -> None:
        self.h2.reset_stream(sid, code)
        self.flush()

    def go_away(self, last: int, code: int = 0, text: bytes = b"") -> None:
        """Say that nothing new is taken; streams that are open go on."""
        self.raw(GoAwayFrame(0, last_stream_id=last, error_code=code, additional_data=text))

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
