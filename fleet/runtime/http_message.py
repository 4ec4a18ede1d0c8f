"""What pods of the simulated world ask one another over HTTP, and what becomes of it."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

NO_HEADERS: Mapping[str, str] = {}
PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"
PORT_DIGITS_MAX = 5


class HttpRequest(NamedTuple):
    """One request. The names of headers are in lower case."""

    method: str = "GET"
    target: str = "/"  # path and query
    body: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS
    client: str = ""  # its address
    is_tls: bool = False
    hops: int = 0  # how many servers passed it on

    @property
    def path(self) -> str:
        """Return the path without its query."""
        return self._split()[0] or "/"

    def value(self, *names: str) -> str:
        """Return a value of the query, the first one that is not empty."""
        found = parse_qs(self._split()[1])
        return next((found[name][0] for name in names if name in found), "")

    def _split(self) -> tuple[str, str]:
        """Return path and query. `urlsplit` would refuse some, such as `//[`."""
        path, _, query = self.target.partition("#")[0].partition("?")
        return path, query


class HttpReply(NamedTuple):
    """An answer."""

    code: int = 200
    body: bytes = b""
    kind: str = PLAIN
    location: str = ""  # of a redirect
    wait_s: int = 0  # how long whoever asks waits for it


class Unreachable(NamedTuple):
    """Why nobody answers, as a client of Go says it, and what a shell's programs tell apart."""

    is_refused: bool = False  # else the address is of nobody, and a client waits in vain
    is_unknown: bool = False  # a name that nobody resolves


class Network(Protocol):
    """Whom a container reaches; the instants count from the start of what runs in it."""

    def resolve(self, name: str) -> str:
        """Return the address of a name, "" if nobody knows it."""

    def request(
        self, host: str, port: int, request: HttpRequest, after_ns: int
    ) -> HttpReply | Unreachable:
        """Ask a server."""

    def connect(self, host: str, port: int, after_ns: int) -> Unreachable | None:
        """Open a connection, and close it; None if somebody listens."""

    def stream(self, host: str, port: int, text: str, after_ns: int) -> str | Unreachable:
        """Connect, send some text and hear what comes."""

    def datagram(self, host: str, port: int, text: str, after_ns: int) -> str | None:
        """Send a datagram; return the answer, None if there is none."""


class World(Protocol):
    """All pods that can be reached."""

    def seen_from(self, address: str, hostname: str, namespace: str, now_ns: int) -> Network:
        """Return whom a container reaches that something runs in since an instant."""


class Nowhere:
    """A world without pods."""

    __slots__ = ()

    def seen_from(self, _address: str, _hostname: str, _namespace: str, _now_ns: int) -> Network:
        """Return that nobody is reached."""
        return self

    def resolve(self, _name: str) -> str:
        """Return nothing."""
        return ""

    def request(
        self, _host: str, _port: int, _request: HttpRequest, _after_ns: int
    ) -> HttpReply | Unreachable:
        """Say that nobody answers."""
        return Unreachable()

    def connect(self, _host: str, _port: int, _after_ns: int) -> Unreachable | None:
        """Say that nobody answers."""
        return Unreachable()

    def stream(self, _host: str, _port: int, _text: str, _after_ns: int) -> str | Unreachable:
        """Say that nobody answers."""
        return Unreachable()

    def datagram(self, _host: str, _port: int, _text: str, _after_ns: int) -> str | None:
        """Say nothing."""
        return None


NOWHERE = Nowhere()
