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

from fleet.wire.http2.messages import Cut, Failure, Request
from fleet.wire.http2.streams import Inbox, Stream
from fleet.wire.sockets.connection import TlsContext, prepare_context
from fleet.wire.sockets.connection_health import ConnectionHealth
from fleet.wire.sockets.dials import DialBackoff
from fleet.wire.sockets.header_plans import HeaderPlans, UserAgent
from fleet.wire.sockets.links import Links
from fleet.wire.sockets.pool import DEFAULT_LIMITS, Pool, PoolLimits
from fleet.wire.sockets.resolver import Endpoint, LookUp
from fleet.wire.sockets.transport_reports import ConnectionDown, ConnectionUp, TransportStats

__all__ = [
    "ConnectionDown",
    "ConnectionUp",
    "DialBackoff",
    "Endpoint",
    "Transport",
    "TransportStats",
    "UserAgent",
]


class Transport:
    """See the top of this file. One per process and endpoint; used from the loop's thread."""

    __slots__ = ("_context", "_fifos", "_inbox", "_links", "_now_ns", "_plans", "stats")

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
        self._now_ns = now_ns
        self._inbox = inbox
        self._plans = HeaderPlans(
            endpoint.authority(), user_agent, authorization, accept, impersonate_group
        )
        self._links = Links(
            endpoint, self._plans, now_ns, inbox, on_ready, loop, dial_backoff, health, look_up
        )
        self.stats = self._links.stats
        self._fifos: dict[int, deque[Stream]] = {}  # one per time-out value

    def open_pool(
        self,
        pool: int,
        user: bytes = b"",
        ssl_context: TlsContext | None = None,
        limits: PoolLimits = DEFAULT_LIMITS,
    ) -> None:
        """Add an identity. It dials at its first request, or by `connect`."""
        assert pool not in self._links.pools, pool
        if isinstance(ssl_context, ssl.SSLContext):
            prepare_context(ssl_context)
        self._links.pools[pool] = Pool(pool, user, ssl_context or self._context, limits)

    def connect(self, pool: int) -> None:
        """Dial now, if the pool has no connection."""
        self._links.connect(pool)

    def drop_connections(self, pool: int, detail: str) -> None:
        """Close an identity's connections under what is on them; new ones are dialed as needed."""
        self._links.drop(pool, detail)

    def close_pool(self, pool: int) -> None:
        """Remove an identity; what it still waits for is answered with CANCELLED."""
        self._links.close_pool(pool)

    def flush(self) -> None:
        """Write once per connection that has something to say."""
        self._links.flush()

    def on_edge(self, *, rests: bool) -> None:
        """Take what has come, if it was left until now; with `rests`, leave what comes again."""
        self._links.on_edge(rests=rests)

    def send(self, pool: int, request: Request, token: object) -> None:
        """Queue a request; its bytes leave at `flush`."""
        entry = self._links.pools[pool]
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
            self._links.wait(entry, stream)
            return
        self._links.open(connection, stream)

    def cancel(self, pool: int, token: object) -> None:
        """Give a request up. Nothing of it is delivered any more."""
        entry = self._links.pools[pool]
        stream = entry.find(token)
        if stream is not None:
            self._links.abandon(stream)
            stream.done = True

    def abandon(self, is_unwanted: Callable[[object], bool]) -> None:
        """Give up every request whose token says so."""
        for entry in self._links.pools.values():
            for stream in entry.requests():
                if not stream.done and is_unwanted(stream.token):
                    self._links.abandon(stream)
                    stream.done = True

    def hang_up(self, pool: int) -> None:
        """Close the connections of a pool; its next request dials. Its requests are CANCELLED."""
        entry = self._links.pools[pool]
        self.close_pool(pool)
        self.open_pool(pool, entry.user, entry.context, entry.limits)

    def cut(self, pool: int, cut: Cut | None) -> None:
        """Cut an identity off from the server, or None: let its packets through again."""
        self._links.cut(pool, cut)

    def sweep(self, now_ns: int) -> None:
        """Do what time asks for; called about once a second."""
        # First what is there: an answer in time must not time out because we were late.
        self._links.read_all()
        self._expire(now_ns)
        self._links.sweep(now_ns)
        self._links.flush()
        self._links.notify()

    def set_authorization(self, value: bytes | None, group: bytes | None = None) -> None:
        """Let new requests carry a rotated token, and impersonate another group if one is given."""
        self._plans.rotate(value, group)
        self._links.use_plans()

    @property
    def has_token(self) -> bool:
        """Return whether requests carry a bearer token."""
        return self._plans.authorization is not None

    def expire_token(self, pool: int, *, is_over: bool) -> None:
        """Let new requests of an identity carry a token that is over, or again the good one.

        What is open goes on: a server looks at a token when a request comes.
        """
        self._plans.expire(pool, is_over=is_over)
        self._links.use_plan_of(pool)

    async def close(self) -> None:
        """Close everything; what waits is answered with CANCELLED."""
        await self._links.close()

    def _expire(self, now_ns: int) -> None:
        """Answer what took too long: one FIFO per time-out value, so its head is the oldest."""
        for fifo in self._fifos.values():
            while fifo:
                stream = fifo[0]
                is_open_watch = stream.watch and stream.code == 200
                if not stream.done and not is_open_watch:
                    if stream.deadline_ns > now_ns:
                        break
                    self._links.abandon(stream)
                    failure = Failure.OWN_LIMIT if stream.is_held else Failure.TIMEOUT
                    failed = stream.fail(failure, "no answer in time", now_ns)
                    self._inbox.append(failed)
                fifo.popleft()
