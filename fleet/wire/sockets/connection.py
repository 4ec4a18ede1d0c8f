"""A TLS connection that never blocks and owns no task, no buffer and no closure.

    CONNECTING --writable--> HANDSHAKE --done, ALPN h2--> UP --> CLOSED
        |by a proxy: CONNECT         ^
        +--> TUNNEL --2xx------------+

    socket --recv--> INCOMING --SSL_read--> codec; `out` --SSL_write--> OUTGOING --send--> socket

OpenSSL works on memory, and one recv takes all records that have come: on a descriptor it makes two
system calls for each record. All connections share the two memory BIOs, since each call leaves them
empty: of an unfinished record OpenSSL keeps the beginning. It keeps nothing of a finished one (the
`ssl` module sets SSL_MODE_RELEASE_BUFFERS), so a large answer leaves nothing behind.
Sessions are never resumed, as a kubelet's Go client does not resume them.
"""

import contextlib
import enum
import errno
import heapq
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.k8s.addresses import host_port
from fleet.wire.http2.hpack import HeaderPlan
from fleet.wire.http2.http2_codec import Http2Codec, Message, Stream
from fleet.wire.http2.messages import Failure
from fleet.wire.sockets.poller import READ, WRITE, Poller

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


UP = ConnectionState.UP  # read for each event: a member of an Enum costs 50 ns on 3.11


class TlsContext(Protocol):
    """What makes a TLS connection: an `ssl.SSLContext`, or what stands for one."""

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_hostname: str
    ) -> ssl.SSLObject:
        """Begin TLS without a handshake. Raises OSError."""
        ...


class DialError(Exception):
    """The connection cannot be made; the text is for people."""


def prepare_context(context: ssl.SSLContext) -> None:
    """Set what every connection of ours needs: ALPN h2, TLS 1.2 or newer, no compression."""
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["h2"])


NEVER = -1
CIPHER_BYTES = 65_536  # read at a time
RECORD_BYTES = 16_384  # the most that a TLS record carries: an SSL_read returns one
INCOMING, OUTGOING = ssl.MemoryBIO(), ssl.MemoryBIO()
"""These are used from the thread of the reactor's loop only."""

REPLY_BYTES_MAX = 16_384
END = b"\r\n\r\n"


class Proxy(NamedTuple):
    """A proxy that speaks HTTP/1.1 without TLS. `authorization` is the value of its header."""

    host: str
    port: int
    authorization: bytes = b""

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    def connect(self, authority: bytes) -> bytes:
        """Return the request for a tunnel to a server, by its host and port."""
        head = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (authority, authority)
        if self.authorization:
            head += b"Proxy-Authorization: %b\r\n" % self.authorization
        return head + b"\r\n"


def refusal_of(reply: bytes) -> str:
    """Return why a proxy gave no tunnel, "" if it gave one; the reply is whole."""
    line = reply.partition(b"\r\n")[0][:200].decode("latin-1")
    version, _, status = line.partition(" ")
    if version.startswith("HTTP/1.") and status[:1] == "2":
        return ""
    shown = status if version.startswith("HTTP/") else "what is not HTTP"
    return f"the proxy answered {shown.strip()} to CONNECT"


@dataclass(slots=True, eq=False)
class Connection:
    """One socket and the HTTP/2 state above it. Of its pool it knows the number."""

    pool: int
    http2: Http2Codec
    state: ConnectionState = ConnectionState.CONNECTING
    sock: socket.socket | None = None
    tls: ssl.SSLObject | None = None
    fd: int = -1
    mask: int = 0
    places: tuple[Address, ...] = ()  # that it has still to try, the present one first
    limit_ns: int = 0  # of the state, until UP
    look_s: int = NEVER  # the second in which its owner looks at it
    read_ns: int = 0
    ping_ns: int = 0  # when an unanswered ping was sent
    dirty: bool = False  # waits in the transport's list for the flush
    leaving: bool = False  # its GOAWAY is counted
    unsent: bytes | bytearray = b""  # encrypted, and waits for the socket
    early: bytes = b""  # came together with the end of the handshake
    up_ns: int = 0  # since when it is UP
    full_ns: int = 0  # when more was there last than is read at a time
    reply: bytes = b""  # of a proxy, as far as it has come

    def begin(self, limit_ns: int, *, hangs: bool) -> None:
        """Start to connect to the first of its places. Raises OSError.

        If it hangs no packet of the handshake comes back.
        """
        address = self.places[0]
        sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.sock = sock
        self.fd = sock.fileno()
        self.state = ConnectionState.CONNECTING
        self.limit_ns = limit_ns
        if hangs:
            return
        self.mask = WRITE
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = sock.connect_ex(address.sockaddr)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, os.strerror(error))

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
        if self.state is ConnectionState.HANDSHAKE:
            if self._receive() == 0:
                raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "unexpected eof while reading")
        else:
            self.tls = context.wrap_bio(INCOMING, OUTGOING, server_hostname=server_name)
            self.state = ConnectionState.HANDSHAKE
            self.limit_ns = now_ns + HANDSHAKE_NS_MAX
        assert self.tls is not None
        is_done = True
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            is_done = False
        except ssl.SSLError:
            self._break_off()
            raise
        self.early = INCOMING.read()  # of the server's next messages, which `read` takes
        self._send_encrypted()
        self.mask = READ | WRITE if self.unsent else READ
        if is_done:
            if self.tls.selected_alpn_protocol() != "h2":
                raise DialError(NO_H2)
            self.state = UP
            self.limit_ns = 0
            self.read_ns = self.up_ns = now_ns

    def _receive(self) -> int:
        """Take what has come to INCOMING; return its size, -1 for nothing yet, 0 at the end."""
        assert self.sock is not None
        try:
            data = self.sock.recv(CIPHER_BYTES)
        except BlockingIOError:
            return -1
        return INCOMING.write(data)

    def _break_off(self) -> None:
        """Leave both memory BIOs empty after an error, of which the server gets the alert."""
        INCOMING.read()
        with contextlib.suppress(OSError):
            self._send_encrypted()

    def _send_encrypted(self) -> None:
        """Send what is encrypted, as far as the socket takes it at once. Raises OSError."""
        assert self.sock is not None
        if self.unsent:
            self.unsent += OUTGOING.read()
            waiting = self.unsent
        else:
            waiting = OUTGOING.read()
        if waiting:
            try:
                size = self.sock.send(waiting)
            except BlockingIOError:
                size = 0
            if size == len(waiting):
                self.unsent = b""
            else:
                if isinstance(waiting, bytes):
                    waiting = bytearray(waiting)  # what is sent goes off its front
                del waiting[:size]
                self.unsent = waiting

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

    def read(self) -> bytes | None:
        """Return what has come, decrypted: None for nothing, b"" for the end. Raises OSError."""
        if self.early:
            INCOMING.write(self.early)
            self.early = b""
        elif (size := self._receive()) <= 0:
            return None if size else b""
        assert self.tls is not None
        data, read = b"", self.tls.read
        try:
            while True:
                record = read(RECORD_BYTES)
                if not record:  # the server has said that this is the end
                    INCOMING.read()
                    return data
                data += record
                if not INCOMING.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._break_off()
            raise
        if OUTGOING.pending:  # new keys
            self._send_encrypted()
        return data or None

    def write_out(self) -> int:
        """Write `out`; return how many bytes were encrypted. `unsent` is what the socket refused.

        Raises OSError.
        """
        assert self.tls is not None
        out = self.http2.outbound.out
        size = len(out)
        if size:
            self.tls.write(out)
            out.clear()
        self._send_encrypted()
        return size

    def close(self) -> None:
        """Close the descriptor; what waits in `out` is lost."""
        self.state = ConnectionState.CLOSED
        if self.sock is not None:
            with contextlib.suppress(OSError):  # something else in the process closed it
                self.sock.close()
            self.sock = self.tls = None


def dial_failure(error: OSError | DialError) -> Failure:
    """Return what kind of failure a dial has met; client-go distinguishes them.

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
        # Only an error that OpenSSL made has a reason.
        reason = (getattr(error, "reason", "") or str(error)).lower().replace("_", " ")
        if "no application protocol" in reason:
            return NO_H2
        return "TLS: " + reason.removeprefix("[ssl] ").partition(" ( ssl.c")[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


EXPIRED = b"Bearer expired"  # what no server takes: it answers 401, as to a token that is over
UserAgent = bytes | Callable[[int], bytes]  # of all pools, or of each by its number


@dataclass(eq=False, repr=False)
class HeaderPlans:
    """Makes the plan of a pool, and makes all again once the token has rotated."""

    _authority: bytes
    _user_agent: UserAgent
    authorization: bytes | None
    _accept: bytes
    _group: bytes
    _plans: dict[tuple[bytes, bool], HeaderPlan] = field(default_factory=dict)
    """By user agent, and whether it has a bad token."""
    _over: set[int] = field(default_factory=set)  # pools whose token is over

    def of(self, pool: int) -> HeaderPlan:
        """Return the plan of a pool."""
        agent = self._user_agent if isinstance(self._user_agent, bytes) else self._user_agent(pool)
        key = (agent, pool in self._over)
        plan = self._plans.get(key)
        if plan is None:
            authorization = EXPIRED if key[1] else self.authorization
            plan = HeaderPlan(self._authority, authorization, agent, self._accept, self._group)
            self._plans[key] = plan
        return plan

    def rotate(self, authorization: bytes | None, group: bytes | None) -> None:
        """Let plans that are made from now on carry another token, and another group if given."""
        if group is not None:
            self._group = group
        self.authorization = authorization
        self._plans.clear()

    def expire(self, pool: int, *, is_over: bool) -> None:
        """Let the plan of a pool carry a token that is over, or again the one of all."""
        if is_over:
            self._over.add(pool)
        else:
            self._over.discard(pool)


IDLE_VARIABLE = "HTTP2_READ_IDLE_TIMEOUT_SECONDS"
PING_VARIABLE = "HTTP2_PING_TIMEOUT_SECONDS"
SECONDS_MAX = 24 * 3600


class ConnectionHealth(NamedTuple):
    """How long a connection may be silent until it is pinged, and then until it is closed."""

    idle_ns: int = 30 * NS_PER_S  # 0: it is never pinged
    ping_ns: int = 15 * NS_PER_S


def connection_health(environ: Mapping[str, str]) -> ConnectionHealth:
    """Read the variables. Raises UsageError."""
    default = ConnectionHealth()
    idle_ns = _seconds_ns(environ, IDLE_VARIABLE, default.idle_ns)
    # Go's transport takes 0 for its own default, which is the same.
    ping_ns = _seconds_ns(environ, PING_VARIABLE, default.ping_ns) or default.ping_ns
    return ConnectionHealth(idle_ns, ping_ns)


def _seconds_ns(environ: Mapping[str, str], name: str, default_ns: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default_ns
    if not (text.isascii() and text.isdigit() and int(text) <= SECONDS_MAX):
        raise UsageError(f"{name}: {text!r} is not a number of seconds up to {SECONDS_MAX}")
    return int(text) * NS_PER_S


class Descriptors:
    """Those of all connections of a transport, also of those that are being made.

    Each waits in the bucket of the second in which it is looked at: nobody visits them all.
    """

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.by_fd: dict[int, Connection] = {}
        self._buckets: dict[int, list[int]] = {}
        self._seconds: list[int] = []  # heap of the buckets there are

    def add(self, connection: Connection) -> None:
        """Take a connection whose dial has begun; it is looked at when that should be over."""
        self.by_fd[connection.fd] = connection
        self.look_at(connection, connection.limit_ns)

    def look_at(self, connection: Connection, due_ns: int) -> None:
        """Look at a connection in the second of `due_ns`, and not when it was due before."""
        second = connection.look_s = due_ns // NS_PER_S
        if second not in self._buckets:
            self._buckets[second] = []
            heapq.heappush(self._seconds, second)
        self._buckets[second].append(connection.fd)

    def due(self, now_ns: int) -> Iterator[Connection]:
        """Yield those that are to be looked at, up to a second early: who looks decides.

        The buckets are taken first: who finds that it is early sets a connection into the same
        second again, which comes next time.
        """
        found = []
        while self._seconds and self._seconds[0] <= now_ns // NS_PER_S:
            second = heapq.heappop(self._seconds)
            found.append((second, self._buckets.pop(second)))
        for second, fds in found:
            for fd in fds:
                connection = self.by_fd.get(fd)
                if connection is not None and connection.look_s == second:
                    yield connection

    def discard(self, connection: Connection) -> None:
        """Close a descriptor; epoll forgets it with that."""
        self.by_fd.pop(connection.fd, None)
        self.poller.forget(connection.fd)
        connection.close()


class PoolLimits(NamedTuple):
    """How much one pool may have; a pool that many nodes share gets more."""

    connections: int = 64
    """Of `STREAMS_DEFAULT` streams each, more of fewer; beyond it requests wait."""
    waiting: int = 10_000  # requests that have no connection yet; beyond it they fail


DEFAULT_LIMITS = PoolLimits()


@dataclass(slots=True, eq=False)
class Pool:
    """Like Go's client: a further connection only when the others are full or going away."""

    number: int
    user: bytes
    context: TlsContext
    limits: PoolLimits = DEFAULT_LIMITS
    connections: tuple[Connection, ...] = ()  # those that are up, also draining ones
    dialing: Connection | None = None
    waiting: deque[Stream] | tuple[()] = ()
    delayed: tuple[tuple[int, Stream], ...] = ()  # and when each is to be sent again

    def with_room(self) -> Connection | None:
        """Return a connection that takes one more stream."""
        for connection in self.connections:
            if connection.http2.has_room():
                return connection
        return None

    def wait(self, stream: Stream) -> bool:
        """Queue a request; False if too many wait."""
        if not self.waiting:
            self.waiting = deque((stream,))
            return True
        if len(self.waiting) >= self.limits.waiting:
            return False
        self.waiting.append(stream)
        return True

    def next_waiting(self) -> Stream | None:
        """Take the oldest request that is still wanted."""
        while self.waiting:
            stream = self.waiting.popleft()
            if not stream.done:
                return stream
        self.waiting = ()
        return None

    def take_delayed(self, now_ns: int) -> list[Stream]:
        """Take what is to be sent again by now and still wanted."""
        due = [stream for at_ns, stream in self.delayed if at_ns <= now_ns and not stream.done]
        self.delayed = tuple(each for each in self.delayed if each[0] > now_ns and not each[1].done)
        return due

    def fail_waiting(self, failure: Failure, detail: str, now_ns: int) -> list[Message]:
        """Give up what waits; return the answers to it."""
        answers = []
        while (stream := self.next_waiting()) is not None:
            answers.append(stream.fail(failure, detail, now_ns))
        return answers

    def find(self, token: object) -> Stream | None:
        """Return the open or waiting request of a token."""
        for stream in self.requests():
            if stream.token == token and not stream.done:
                return stream
        return None

    def requests(self) -> list[Stream]:
        """Return what is open, what waits, and what is to be sent again."""
        found = [*self.waiting, *(stream for _, stream in self.delayed)]
        for connection in self.connections:
            found += connection.http2.streams.values()
        return found
