"""A TLS connection that never blocks and owns no task, no buffer and no closure.

    CONNECTING --writable--> HANDSHAKE --done, ALPN h2--> UP --> CLOSED
        |by a proxy: CONNECT         ^
        +--> TUNNEL --2xx------------+

`ssl.SSLSocket` on the descriptor, not a memory BIO: OpenSSL then keeps no copy of what it read
(the `ssl` module sets SSL_MODE_RELEASE_BUFFERS), so a large answer leaves nothing behind.
A write that OpenSSL could not finish is repeated with the same bytes first: they stay in `out`,
which only grows at its end (SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, also set by the module).
Sessions are never resumed, as a kubelet's Go client does not resume them.
"""

import enum
import errno
import os
import socket
import ssl
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fleet.wire.http2.http2_codec import Http2Codec
from fleet.wire.http2.messages import Failure
from fleet.wire.sockets.deadlines import NEVER
from fleet.wire.sockets.poller import READ, WRITE
from fleet.wire.sockets.tunnel import END, REPLY_BYTES_MAX, refusal_of

HANDSHAKE_NS_MAX = 10_000_000_000  # Source: client-go/transport/cache.go, TLSHandshakeTimeout
NO_H2 = "the server does not offer HTTP/2 (no ALPN protocol h2)"


class Address(NamedTuple):
    """One result of the look-up."""

    family: int
    sockaddr: tuple[object, ...]


class ConnectionState(enum.Enum):
    """Where a connection stands."""

    CONNECTING = 0
    HANDSHAKE = 1
    UP = 2
    CLOSED = 3
    TUNNEL = 4


class TlsContext(Protocol):
    """What makes a TLS connection of a socket: an `ssl.SSLContext`, or what stands for one."""

    def wrap_socket(
        self, sock: socket.socket, *, do_handshake_on_connect: bool, server_hostname: str
    ) -> ssl.SSLSocket:
        """Begin TLS without a handshake. Raises OSError."""
        ...


class DialError(Exception):
    """The connection cannot be made; the text is for people."""


def prepare_context(context: ssl.SSLContext) -> None:
    """Set what every connection of ours needs: ALPN h2, TLS 1.2 or newer, no compression."""
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["h2"])


@dataclass(slots=True, eq=False)
class Connection:
    """One socket and the HTTP/2 state above it. Of its pool it knows the number."""

    pool: int
    http2: Http2Codec
    state: ConnectionState = ConnectionState.CONNECTING
    sock: socket.socket | ssl.SSLSocket | None = None
    fd: int = -1
    mask: int = 0
    places: tuple[Address, ...] = ()  # that it has still to try, the present one first
    limit_ns: int = 0  # of the state, until UP
    look_s: int = NEVER  # the second in which its owner looks at it
    read_ns: int = 0
    ping_ns: int = 0  # when an unanswered ping was sent
    dirty: bool = False  # waits in the transport's list for the flush
    leaving: bool = False  # its GOAWAY is counted
    stuck: bool = False  # a write waits for the socket
    up_ns: int = 0  # since when it is UP
    full_ns: int = 0  # when more was there last than is read at a time
    reply: bytes = b""  # of a proxy, as far as it has come

    def begin(self, limit_ns: int) -> None:
        """Start to connect to the first of its places. Raises OSError."""
        address = self.places[0]
        sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.sock = sock
        self.fd = sock.fileno()
        self.state = ConnectionState.CONNECTING
        self.limit_ns = limit_ns
        self.mask = WRITE
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = sock.connect_ex(address.sockaddr)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, os.strerror(error))

    def hang(self, limit_ns: int) -> None:
        """Connect to nothing: no packet of the handshake comes back. Raises OSError."""
        address = self.places[0]
        self.sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.fd = self.sock.fileno()
        self.state = ConnectionState.CONNECTING
        self.limit_ns = limit_ns

    def advance(
        self, context: TlsContext, server_name: str, now_ns: int, tunnel: bytes = b""
    ) -> None:
        """Take the next step towards UP; `mask` says what it waits for.

        `tunnel` is the request to a proxy. Raises OSError (also of TLS) and DialError.
        """
        if self.state is ConnectionState.CONNECTING:
            assert self.sock is not None
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            if tunnel:
                if self.sock.send(tunnel) < len(tunnel):
                    raise DialError("the proxy takes no request")
                self.state = ConnectionState.TUNNEL
                self.mask = READ
                self.limit_ns = now_ns + HANDSHAKE_NS_MAX
                return
        if self.state is ConnectionState.TUNNEL and not self._is_through():
            return
        if self.state in (ConnectionState.CONNECTING, ConnectionState.TUNNEL):
            assert self.sock is not None
            self.sock = context.wrap_socket(
                self.sock, do_handshake_on_connect=False, server_hostname=server_name
            )
            self.state = ConnectionState.HANDSHAKE
            self.limit_ns = now_ns + HANDSHAKE_NS_MAX
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.mask = READ
        except ssl.SSLWantWriteError:
            self.mask = WRITE
        else:
            if self.sock.selected_alpn_protocol() != "h2":
                raise DialError(NO_H2)
            self.state = ConnectionState.UP
            self.mask = READ
            self.limit_ns = 0
            self.read_ns = self.up_ns = now_ns

    def _is_through(self) -> bool:
        """Read what a proxy answers; return whether it has opened the tunnel.

        Nothing of the server's can follow yet: it waits for the first message of TLS.
        """
        assert self.sock is not None
        try:
            piece = self.sock.recv(REPLY_BYTES_MAX)
        except BlockingIOError:
            return False
        self.reply += piece
        if END not in self.reply and piece and len(self.reply) < REPLY_BYTES_MAX:
            return False
        reply, self.reply = self.reply, b""
        if END not in reply:
            raise DialError("the proxy closed the connection before it answered CONNECT")
        if why := refusal_of(reply):
            raise DialError(why)
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Read at most one TLS record; return -1 when there is none, 0 at the end.

        The buffer is larger than a record, so OpenSSL keeps nothing that epoll would not know of.
        Raises OSError.
        """
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            return self.sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return -1

    def write_out(self) -> int:
        """Write `out`; return how many bytes left. `stuck` tells that some did not.

        Raises OSError.
        """
        assert isinstance(self.sock, ssl.SSLSocket)
        out = self.http2.outbound.out
        try:
            size = self.sock.send(out)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self.stuck = True
            return 0
        if size == len(out):
            out.clear()
            self.stuck = False
        else:
            del out[:size]
            self.stuck = True
        return size

    def close(self) -> None:
        """Close the descriptor; what waits in `out` is lost."""
        self.state = ConnectionState.CLOSED
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def dial_failure(error: OSError | DialError) -> Failure:
    """Return what kind of failure a dial has met; client-go tells them apart.

    Source: apimachinery/pkg/util/net: IsConnectionRefused, IsConnectionReset, IsProbableEOF,
    IsTimeout.
    """
    if isinstance(error, ConnectionRefusedError):
        return Failure.DIAL
    if isinstance(error, TimeoutError):
        return Failure.UNREACHABLE
    if isinstance(error, (ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return Failure.LOST
    return Failure.UNUSABLE


def explain(error: OSError | DialError) -> str:
    """Say in one line for people why a connection failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if "no application protocol" in reason:
            return NO_H2
        return "TLS: " + reason.removeprefix("[ssl] ").partition(" ( ssl.c")[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)
