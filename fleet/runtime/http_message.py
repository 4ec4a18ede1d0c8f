"""A request over HTTP to a server in a container, and its answer."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

NO_HEADERS: Mapping[str, str] = {}
PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"


class HttpRequest(NamedTuple):
    """One request. The names of headers are in lower case."""

    method: str = "GET"
    target: str = "/"  # path and query
    body: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS
    client: str = ""  # its address

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
