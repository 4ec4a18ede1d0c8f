"""The host's addresses: which of them a dial tries, in which order, and when they are looked up.

    FRESH --TTL_NS, or a dial that failed everywhere--> STALE --asked: a look-up--> FRESH

Dials begin with one address after the other, so that all servers behind a name get their share;
what has just failed is tried last. A look-up runs off the loop, one at a time for all dials.
Source: net/dial.go: each address has its part of the time (partialDeadline).
Differs: Go's dialer looks the name up at each dial, which for the nodes of one process would be
thousands at once: here they share what at most TTL_NS is old, as behind a caching resolver. A name
server that is away does no harm to addresses that are known. Go races the two families (RFC 8305).
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fleet.background import give_up
from fleet.wire.sockets.connection import Address
from fleet.wire.sockets.tunnel import Proxy

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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


class Resolver:
    """Calls `resolved("")` once addresses are there, or with why they are not."""

    __slots__ = (
        "_addresses",
        "_endpoint",
        "_is_distrusted",
        "_is_number",
        "_look_up",
        "_looked_ns",
        "_loop",
        "_now_ns",
        "_resolved",
        "_suspects",
        "_task",
        "_turn",
    )

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
