"""From a request that waits to a connection that is up.

    dial -> look-up (if none is fresh) -> connect -> handshake -> up

A dial tries the host's addresses in turn; after the last one it has failed, and what waited is
answered. Once it is up, the connection is its pool's, and no more of this file.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fleet.wire.http2.frames import STREAMS_DEFAULT
from fleet.wire.http2.http2_codec import Http2Codec
from fleet.wire.http2.messages import Cut, Failure
from fleet.wire.http2.streams import Inbox
from fleet.wire.sockets.connection import (
    Connection,
    ConnectionState,
    DialError,
    dial_failure,
    explain,
)
from fleet.wire.sockets.descriptors import Descriptors
from fleet.wire.sockets.header_plans import HeaderPlans
from fleet.wire.sockets.pool import Pool
from fleet.wire.sockets.resolver import Endpoint, LookUp, Resolver
from fleet.wire.sockets.transport_reports import (
    ConnectionDown,
    ConnectionUp,
    TransportStats,
    own_limit,
)

STEPS = {ConnectionState.CONNECTING: "connect", ConnectionState.TUNNEL: "CONNECT of the proxy"}
"""What a dial waits for."""


class DialBackoff(NamedTuple):
    """Waits between failed dials of one pool, doubling. Without it each request dials."""

    initial_ns: int
    max_ns: int


class Dials:
    """Held by `Links`, whose pools, descriptors and cuts these are; failures go to the inbox."""

    __slots__ = (
        "_backoff",
        "_cuts",
        "_delayed",
        "_descriptors",
        "_endpoint",
        "_inbox",
        "_now_ns",
        "_on_ready",
        "_plans",
        "_pools",
        "_resolver",
        "_stats",
        "_tunnel",
        "streams_hint",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        plans: HeaderPlans,
        now_ns: Callable[[], int],
        inbox: Inbox,
        on_ready: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        backoff: DialBackoff | None,
        look_up: LookUp | None,
        descriptors: Descriptors,
        pools: dict[int, Pool],
        cuts: dict[int, Cut],
        stats: TransportStats,
    ) -> None:
        self._endpoint = endpoint
        self._plans = plans
        self._now_ns = now_ns
        self._inbox = inbox
        self._on_ready = on_ready
        self._backoff = backoff
        self._descriptors = descriptors
        self._pools = pools
        self._cuts = cuts
        self._stats = stats
        self._delayed: list[Pool] = []
        self._tunnel = endpoint.tunnel()
        self._resolver = Resolver(endpoint.dialed, loop, now_ns, self._resolved, look_up)
        self.streams_hint = STREAMS_DEFAULT  # what the server allowed on other connections

    def dial(self, pool: Pool) -> None:
        """Begin a connection for a pool, unless one is being made, or it must wait or has all."""
        if pool.dialing is not None or self.is_full(pool):
            return
        now_ns = self._now_ns()
        if now_ns < pool.retry_ns:
            if pool not in self._delayed:
                self._delayed.append(pool)
            return
        # The hint serves until this one has its SETTINGS.
        http2 = Http2Codec(self._plans.of(pool.number), pool.user, self.streams_hint)
        connection = Connection(pool.number, http2)
        pool.dialing = connection
        self._stats.dials += 1
        if self._resolver.is_fresh():
            connection.places = self._resolver.places()
            self._begin(connection, now_ns)
        else:
            self._resolver.ask()

    def is_full(self, pool: Pool) -> bool:
        """Return whether a pool has all connections that it may have."""
        most = pool.limits.connections
        if self.streams_hint < STREAMS_DEFAULT:  # then the same streams need more of them
            most = most * STREAMS_DEFAULT // self.streams_hint
        return len(pool.connections) >= most

    def dial_delayed(self) -> None:
        """Dial for the pools that had to wait; those that must still are delayed again."""
        delayed, self._delayed = self._delayed, []
        for pool in delayed:
            if pool.waiting and self._pools.get(pool.number) is pool:
                self.dial(pool)

    def give_up(self, pool: Pool) -> None:
        """End the dial of a pool, if there is one."""
        if pool.dialing is not None:
            self._descriptors.discard(pool.dialing)
            pool.dialing = None

    def advance(self, connection: Connection) -> bool:
        """Take the next step of a dial; return whether the connection is up, and its pool's."""
        mask, limit_ns, now_ns = connection.mask, connection.limit_ns, self._now_ns()
        server_name = self._endpoint.server_name or self._endpoint.host
        pool = self._pools[connection.pool]
        try:
            connection.advance(pool.context, server_name, now_ns, self._tunnel)
        except (OSError, DialError) as error:
            self._next_address(connection, error)
            return False
        if connection.mask != mask:
            self._descriptors.poller.modify(connection.fd, connection.mask)
        if connection.state is not ConnectionState.UP:
            if connection.limit_ns != limit_ns:
                self._descriptors.look_at(connection, connection.limit_ns)
            return False
        self._resolver.worked(connection.places[0])
        connection.places = ()
        pool.dialing = None
        pool.failures = 0
        pool.connections = (*pool.connections, connection)
        self._stats.connections += 1
        self._inbox.append((pool.number, ConnectionUp(now_ns)))
        return True

    def look(self, connection: Connection, now_ns: int) -> None:
        """End a step that took too long; else look again when it should be over."""
        if now_ns <= connection.limit_ns:
            self._descriptors.look_at(connection, connection.limit_ns)
        elif connection.pool in self._cuts:
            self._descriptors.discard(connection)  # no fault of the address
            self._failed(connection, "connect timed out", Failure.UNREACHABLE)
        else:
            what = STEPS.get(connection.state, "TLS handshake")
            # Of its next address, if there is one, the deadline is set.
            self._next_address(connection, TimeoutError(f"{what} timed out"))

    async def close(self) -> None:
        """Give a running look-up up."""
        await self._resolver.close()

    def _resolved(self, error: str) -> None:
        """Dial whoever waits for the look-up."""
        now_ns = self._now_ns()
        for pool in list(self._pools.values()):
            connection = pool.dialing
            if connection is None or connection.fd >= 0:  # that has an address already
                continue
            if error:
                self._failed(connection, error, Failure.UNUSABLE)
            else:
                connection.places = self._resolver.places()
                self._begin(connection, now_ns)
        if self._inbox:
            self._on_ready()

    def _begin(self, connection: Connection, now_ns: int) -> None:
        cut = self._cuts.get(connection.pool) if self._cuts else None
        if cut is Cut.RESET:
            self._failed(connection, "connection refused", Failure.DIAL)
            return
        try:
            if cut is not None:  # a handshake needs both directions
                connection.hang(now_ns + self._resolver.connect_ns())
            else:
                connection.begin(now_ns + self._resolver.connect_ns())
                self._descriptors.poller.register(connection.fd, connection.mask)
        except OSError as error:
            self._next_address(connection, error)
        else:
            self._descriptors.add(connection)

    def _next_address(self, connection: Connection, error: OSError | DialError) -> None:
        """Try the host's next address; after the last one the dial has failed."""
        self._descriptors.discard(connection)
        failed, *others = connection.places
        self._resolver.failed(failed, is_last=not others)
        connection.places = tuple(others)
        if others:
            self._begin(connection, self._now_ns())
        elif limit := own_limit(error, failed.family):
            self._stats.own_limits[limit] += 1
            self._failed(connection, explain(error), Failure.OWN_LIMIT)
        else:
            self._failed(connection, explain(error), dial_failure(error))

    def _failed(self, connection: Connection, detail: str, failure: Failure) -> None:
        pool = self._pools[connection.pool]
        pool.dialing = None
        pool.failures += 1
        self._stats.dial_failures += 1
        now_ns = self._now_ns()
        if self._backoff is not None:
            wait_ns = self._backoff.initial_ns << min(pool.failures - 1, 30)
            pool.retry_ns = now_ns + min(wait_ns, self._backoff.max_ns)
        by = "" if self._endpoint.proxy is None else f" by the proxy {self._endpoint.proxy}"
        detail = f"{self._endpoint.host}:{self._endpoint.port}{by}: {detail}"
        self._inbox.append((pool.number, ConnectionDown(now_ns, failure, detail)))
        self._inbox += pool.fail_waiting(failure, detail, now_ns)
