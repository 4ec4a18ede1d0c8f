"""From a request that waits to a connection that is up.

    dial -> look-up (if none is fresh) -> connect -> handshake -> up

A dial tries the host's addresses in turn; after the last one it has failed, and what waited is
answered. Once it is up, the connection is its pool's, and no more of this file.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

from fleet.background import give_up
from fleet.k8s.addresses import host_port
from fleet.wire.http2.http2_codec import STREAMS_DEFAULT, Http2Codec, Inbox
from fleet.wire.http2.messages import Cut, Failure
from fleet.wire.sockets.connection import (
    Address,
    Connection,
    ConnectionState,
    Descriptors,
    DialError,
    HeaderPlans,
    Pool,
    Proxy,
    dial_failure,
    explain,
)

STEPS = {ConnectionState.CONNECTING: "connect", ConnectionState.TUNNEL: "CONNECT of the proxy"}
"""What a dial waits for."""


TTL_NS = 30_000_000_000
"""What getaddrinfo finds carries no time to live; names of load balancers have 60 s or less."""
LOOK_UPS_NS_MIN = 1_000_000_000  # between two after failed dials
LOOK_UP_S_MAX = 30.0  # Source: net/http DefaultTransport: Dialer.Timeout includes it
CONNECT_NS_MAX = 30_000_000_000  # Source: the same, for all addresses together
CONNECT_NS_MIN = 2_000_000_000  # Source: net/dial.go, partialDeadline

LookUp = Callable[["Endpoint"], Coroutine[Any, Any, tuple[Address, ...]]]
"""Find the addresses of a host. Raises OSError."""


class Endpoint(NamedTuple):
    """The API server. `server_name` is what its certificate must be for; the host, if empty."""

    host: str
    port: int
    server_name: str = ""
    proxy: Proxy | None = None  # that leads there; it is then what is dialed

    @property
    def dialed(self) -> "Endpoint":
        """Return what connections are made to."""
        return self if self.proxy is None else Endpoint(self.proxy.host, self.proxy.port)

    def tunnel(self) -> bytes:
        """Return the request for the way through the proxy, empty without one."""
        return b"" if self.proxy is None else self.proxy.connect(self.authority())

    def authority(self) -> bytes:
        """Return the value of `:authority`."""
        return host_port(self.host, self.port).encode("ascii")


class Resolver:
    """Calls `resolved("")` once addresses are there, or with why they are not."""

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        resolved: Callable[[str], None],
        look_up: LookUp | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._now_ns = now_ns
        self._resolved = resolved
        self._look_up = look_up or ask_the_system
        self._task: asyncio.Task[None] | None = None
        self._looked_ns = 0
        self._is_distrusted = False  # a dial has failed at all of them
        self._suspects: dict[Address, int] = {}  # what has failed, and until when that counts
        self._turn = 0
        self._addresses = _numbers(endpoint)
        self._is_number = bool(self._addresses)

    def is_fresh(self) -> bool:
        """Return whether a dial may begin at once, or must `ask` first."""
        age_ns = self._now_ns() - self._looked_ns
        limit_ns = LOOK_UPS_NS_MIN if self._is_distrusted else TTL_NS
        return self._is_number or (bool(self._addresses) and age_ns < limit_ns)

    def places(self) -> tuple[Address, ...]:
        """Return what one dial tries, in its order."""
        assert self._addresses, self._endpoint
        good, bad = self._addresses, []
        if self._suspects:
            now_ns, suspects = self._now_ns(), self._suspects
            bad = [place for place in good if suspects.get(place, 0) > now_ns]
            good = tuple(place for place in good if place not in bad)
        first = self._turn % len(good) if good else 0
        self._turn += 1
        return (*good[first:], *good[:first], *bad)

    def connect_ns(self) -> int:
        """Return how long one address may take."""
        return max(CONNECT_NS_MAX // len(self._addresses), CONNECT_NS_MIN)

    def failed(self, place: Address, *, is_last: bool) -> None:
        """Note that a connection could not be made; `is_last` if none to any other either."""
        self._suspects[place] = self._now_ns() + TTL_NS
        self._is_distrusted = self._is_distrusted or is_last

    def worked(self, place: Address) -> None:
        """Note that there is a connection."""
        self._suspects.pop(place, None)

    def ask(self) -> None:
        """Begin a look-up, unless one runs."""
        if self._task is None:
            self._task = self._loop.create_task(self._ask())

    async def close(self) -> None:
        """Give a running look-up up."""
        if self._task is not None:
            await give_up(self._task)

    async def _ask(self) -> None:
        error = ""
        try:
            async with asyncio.timeout(LOOK_UP_S_MAX):
                self._addresses = await self._look_up(self._endpoint)
            self._is_distrusted = False
            self._suspects = {
                place: until_ns
                for place, until_ns in self._suspects.items()
                if place in self._addresses
            }
        except (OSError, UnicodeError) as reason:  # a label that no name may have is the latter
            why = getattr(reason, "strerror", None) or str(reason) or "no answer in time"
            error = f"host not found: {why}"
        finally:
            self._task = None
            self._looked_ns = self._now_ns()
        self._resolved("" if self._addresses else error)


async def ask_the_system(endpoint: Endpoint) -> tuple[Address, ...]:
    """Look a name up as other programs here do, in a thread. Raises OSError and UnicodeError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(Address(family, place) for family, _, _, _, place in found))


def _numbers(endpoint: Endpoint) -> tuple[Address, ...]:
    """Return the address that a host says itself, nothing for a name. Asks nobody."""
    flags = socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=flags
        )
    except (OSError, UnicodeError):
        return ()
    return tuple(Address(family, place) for family, _, _, _, place in found)


STREAMS = "streams to the API server"
QUEUE = "requests that wait for a connection"
OPEN_FILES = "open files"
LOCAL_PORTS = "local ports"
SOCKET_MEMORY = "memory for sockets"
_LIMITS = {
    errno.EMFILE: OPEN_FILES,
    errno.ENFILE: OPEN_FILES,
    errno.EADDRNOTAVAIL: LOCAL_PORTS,
    errno.ENOBUFS: SOCKET_MEMORY,
    errno.ENOMEM: SOCKET_MEMORY,
}


def own_limit(error: BaseException | None, family: int = socket.AF_INET) -> str:
    """Return which limit of this machine an error is, "" if it is none.

    Of IPv6, "cannot assign requested address" may also mean that the machine has no such address.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None or (number == errno.EADDRNOTAVAIL and family != socket.AF_INET):
        return ""
    return _LIMITS.get(number, "")


@dataclass(slots=True)
class TransportStats:
    """What the transport did: plain counters."""

    connections: int = 0  # open now
    dials: int = 0
    dial_failures: int = 0
    goaways: int = 0
    resets: int = 0  # streams that the server reset
    retries: int = 0  # requests sent again, unseen by the server
    requests: int = 0
    pings_lost: int = 0
    breaches: int = 0  # connections that we closed because the server broke HTTP/2
    closed_slow: int = 0  # watches that the server ended early, much unread, our reading late
    bytes_in: int = 0
    bytes_out: int = 0
    own_limits: Counter[str] = field(default_factory=Counter)
    """How often a limit of fleet or of its machine was hit: the server had no part in it."""


@dataclass(eq=False, repr=False)
class Dials:
    """Held by `Transport`, whose pools and descriptors these are; failures go to its inbox."""

    _endpoint: Endpoint
    _plans: HeaderPlans
    _now_ns: Callable[[], int]
    _inbox: Inbox
    _on_ready: Callable[[], None]
    loop: InitVar[asyncio.AbstractEventLoop]
    look_up: InitVar[LookUp | None]
    _descriptors: Descriptors
    _pools: dict[int, Pool]
    _cuts: dict[int, Cut]
    _stats: TransportStats
    streams_hint: int = STREAMS_DEFAULT  # what the server allowed on other connections

    def __post_init__(self, loop: asyncio.AbstractEventLoop, look_up: LookUp | None) -> None:
        dialed, now_ns = self._endpoint.dialed, self._now_ns
        self._tunnel = self._endpoint.tunnel()
        self._resolver = Resolver(dialed, loop, now_ns, self._resolved, look_up)

    def dial(self, pool: Pool) -> None:
        """Begin a connection for a pool, unless one is being made, or it has all."""
        if pool.dialing is not None or self.is_full(pool):
            return
        now_ns = self._now_ns()
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
        pool.connections = (*pool.connections, connection)
        self._stats.connections += 1
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
        """Dial for all that wait for the look-up."""
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
        hangs = cut is not None  # a handshake needs both directions
        try:
            connection.begin(now_ns + self._resolver.connect_ns(), hangs=hangs)
            if not hangs:
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
        self._stats.dial_failures += 1
        by = "" if self._endpoint.proxy is None else f" by the proxy {self._endpoint.proxy}"
        detail = f"{self._endpoint.host}:{self._endpoint.port}{by}: {detail}"
        self._inbox += pool.fail_waiting(failure, detail, self._now_ns())
