"""The transport: pools of connections for thousands of identities, and one flush a turn.

    send -> a stream on a connection with room, or the pool's queue and a dial
    flush -> one write per connection that has something to say
    poller -> read, decode, inbox; then `on_ready` once per batch
    sweep -> time-outs, pings, dials that are due: once a second, no timer per connection

Every `send` is answered by exactly one Response, whatever happens, unless it is cancelled.
Source: golang.org/x/net/http2/transport.go and client-go/transport for limits and retries.
Differs: accept-encoding is not announced (Go's client sends gzip; an API server compresses only
answers above 128 KB).
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from fleet.wire.http2.frames import ErrorCode
from fleet.wire.http2.hpack import HeaderPlan
from fleet.wire.http2.messages import Failure, Request
from fleet.wire.http2.streams import Inbox, Stream
from fleet.wire.sockets.connection import Connection, ConnectionState, TlsContext, prepare_context
from fleet.wire.sockets.connection_health import ConnectionHealth
from fleet.wire.sockets.links import (
    ConnectionDown,
    ConnectionUp,
    DialBackoff,
    Links,
    TransportStats,
)
from fleet.wire.sockets.pool import Pool
from fleet.wire.sockets.resolver import Endpoint, LookUp

__all__ = [
    "ConnectionDown",
    "ConnectionUp",
    "DialBackoff",
    "Endpoint",
    "Transport",
    "TransportStats",
]

NEVER_NS = 1 << 62
UserAgent = bytes | Callable[[int], bytes]
"""Of all pools, or of each by its number."""


class Transport(Links):
    """See the top of this file. One per process and endpoint; used from the loop's thread."""

    __slots__ = (
        "_authorization",
        "_context",
        "_fifos",
        "_idle_ns",
        "_ping_ns",
        "_plan_parts",
        "_plans",
        "_user_agent",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        ssl_context: ssl.SSLContext,
        *,
        user_agent: UserAgent,
        authorization: bytes | None,
        accept: bytes,
        now_ns: Callable[[], int],
        inbox: Inbox,
        on_ready: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        dial_backoff: DialBackoff | None = None,
        impersonate_group: bytes = b"",
        health: ConnectionHealth = ConnectionHealth(),  # noqa: B008 - immutable
        look_up: LookUp | None = None,
    ) -> None:
        prepare_context(ssl_context)
        self._context = ssl_context
        self._authorization = authorization
        self._user_agent = user_agent
        self._plan_parts = (endpoint.authority(), accept, impersonate_group)
        self._plans: dict[bytes, HeaderPlan] = {}  # by user agent
        super().__init__(
            endpoint, self._make_plan, now_ns, inbox, on_ready, loop, dial_backoff, look_up
        )
        self._fifos: dict[int, deque[Stream]] = {}  # one per time-out value
        self._idle_ns = health.idle_ns or NEVER_NS
        self._ping_ns = health.ping_ns

    def _make_plan(self, pool: int) -> HeaderPlan:
        """Return what the requests of a pool repeat: one plan for all with its user agent."""
        agent = self._user_agent if isinstance(self._user_agent, bytes) else self._user_agent(pool)
        plan = self._plans.get(agent)
        if plan is None:
            authority, accept, group = self._plan_parts
            plan = HeaderPlan(authority, self._authorization, agent, accept, group)
            self._plans[agent] = plan
        return plan

    def open_pool(
        self, pool: int, user: bytes = b"", ssl_context: TlsContext | None = None
    ) -> None:
        """Add an identity. It dials at its first request, or by `connect`."""
        assert pool not in self._pools, pool
        if isinstance(ssl_context, ssl.SSLContext):
            prepare_context(ssl_context)
        self._pools[pool] = Pool(pool, user, ssl_context or self._context)

    def connect(self, pool: int) -> None:
        """Dial now, if the pool has no connection."""
        entry = self._pools[pool]
        if entry.with_room() is None:
            self._dial(entry)
            self._notify()

    def drop_connections(self, pool: int, detail: str) -> None:
        """Close an identity's connections under what is on them; new ones are dialed as needed.

        Source: client-go/util/connrotation/connrotation.go, CloseAll.
        """
        for connection in self._pools[pool].connections:
            self._lose(connection, detail)
        self._notify()

    def close_pool(self, pool: int) -> None:
        """Remove an identity; what it still waits for is answered with CANCELLED."""
        entry = self._pools.pop(pool)
        now_ns = self._now_ns()
        if entry.dialing is not None:
            self._discard(entry.dialing)
            entry.dialing = None
        connections, entry.connections = entry.connections, ()
        for connection in connections:
            self._part(connection, ErrorCode.NO_ERROR)
            self._discard(connection)
            self.stats.connections -= 1
            for stream in connection.http2.streams.values():
                failed = stream.fail(Failure.CANCELLED, "the pool was closed", now_ns)
                self._inbox.append(failed)
        self._fail_waiting(entry, Failure.CANCELLED, "the pool was closed")
        self._notify()

    def send(self, pool: int, request: Request, token: object) -> None:
        """Queue a request; its bytes leave at `flush`."""
        entry = self._pools[pool]
        stream = Stream(token, request)
        if request.timeout_ns:
            stream.deadline_ns = self._now_ns() + request.timeout_ns
            fifo = self._fifos.get(request.timeout_ns)
            if fifo is None:
                fifo = self._fifos[request.timeout_ns] = deque()
            fifo.append(stream)
        self.stats.requests += 1
        connection = None if entry.waiting else entry.with_room()
        if connection is None:
            self._wait(entry, stream)
            return
        self._open(connection, stream)

    def cancel(self, pool: int, token: object) -> None:
        """Give a request up. Nothing of it is delivered any more."""
        entry = self._pools[pool]
        stream = entry.find(token)
        if stream is not None:
            self._abandon(stream)
            stream.done = True

    def abandon(self, is_unwanted: Callable[[object], bool]) -> None:
        """Give up every request whose token says so."""
        for entry in self._pools.values():
            for stream in entry.requests():
                if not stream.done and is_unwanted(stream.token):
                    self._abandon(stream)
                    stream.done = True

    def hang_up(self, pool: int) -> None:
        """Close the connections of a pool; its next request dials. Its requests are CANCELLED."""
        entry = self._pools[pool]
        self.close_pool(pool)
        self.open_pool(pool, entry.user, entry.context)

    def sweep(self, now_ns: int) -> None:
        """Do what time asks for; called about once a second."""
        self._poller.drain()  # an answer that came in time must not time out because we were late
        self._expire(now_ns)
        streams = 0
        idle_ns = now_ns - self._idle_ns
        for connection in list(self._by_fd.values()):
            if connection.state is ConnectionState.UP:
                http2 = connection.http2
                streams += len(http2.streams)
                if connection.read_ns < idle_ns or connection.ping_ns or http2.news is not None:
                    self._check_alive(connection, now_ns)
            elif now_ns > connection.limit_ns:
                what = (
                    "connect" if connection.state is ConnectionState.CONNECTING else "TLS handshake"
                )
                self._next_address(connection, TimeoutError(f"{what} timed out"))
        delayed, self._delayed = self._delayed, []
        for pool in delayed:
            if pool.waiting and self._pools.get(pool.number) is pool:
                self._dial(pool)
        stats = self.stats
        stats.streams = streams
        stats.waiting = waiting = sum(len(pool.waiting) for pool in self._pools.values())
        stats.streams_high = max(stats.streams_high, streams)
        stats.waiting_high = max(stats.waiting_high, waiting)
        self.flush()
        self._notify()

    def set_authorization(self, value: bytes | None, group: bytes | None = None) -> None:
        """Let new requests carry a rotated token, and impersonate another group if one is given."""
        if group is not None:
            self._plan_parts = (*self._plan_parts[:2], group)
        self._authorization = value
        self._plans.clear()
        for connection in self._by_fd.values():
            connection.http2.outbound.use_plan(self._make_plan(connection.pool))

    async def close(self) -> None:
        """Close everything; what waits is answered with CANCELLED."""
        for pool in list(self._pools):
            self.close_pool(pool)
        for connection in list(self._by_fd.values()):
            self._discard(connection)
        self._poller.close()
        await self._resolver.close()

    def _check_alive(self, connection: Connection, now_ns: int) -> None:
        """Ping what was silent for long; close what did not answer, or has drained."""
        if connection.http2.news is not None:  # a request given up may have been the last one
            self._attend(connection, now_ns)
            if connection.state is not ConnectionState.UP:
                return
        if connection.read_ns > connection.ping_ns:
            connection.ping_ns = 0
        if connection.ping_ns:
            if now_ns - connection.ping_ns > self._ping_ns:
                self.stats.pings_lost += 1
                self._lose(connection, "the server did not answer a ping", Failure.SILENT)
        elif now_ns - connection.read_ns > self._idle_ns:
            connection.http2.outbound.ping()
            connection.ping_ns = now_ns
            self._mark(connection)

    def _expire(self, now_ns: int) -> None:
        """Answer what took too long: one FIFO per time-out value, so its head is the oldest."""
        for fifo in self._fifos.values():
            while fifo:
                stream = fifo[0]
                is_open_watch = stream.watch and stream.code == 200
                if not stream.done and not is_open_watch:
                    if stream.deadline_ns > now_ns:
                        break
                    self._abandon(stream)
                    self.stats.timeouts += 1
                    failed = stream.fail(Failure.TIMEOUT, "no answer in time", now_ns)
                    self._inbox.append(failed)
                fifo.popleft()

    def _abandon(self, stream: Stream) -> None:
        """Take a stream off its connection; its bytes are told to the server at the next flush."""
        if stream.sid == 0:
            return  # it waits: whoever takes it from the queue sees that it is done
        connection = self._by_fd[stream.fd]
        connection.http2.cancel(stream)
        self._mark(connection)
