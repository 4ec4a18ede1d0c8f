"""The ports of a pod: which of them are listened on, and the small program that answers there.

What a pod declares is what it listens on; one that declares nothing listens on every port. HTTP is
answered with the pod's name, what was sent, or a file of a container; any other bytes come back.
Source: containerd's internal/cri/server/sandbox_portforward_linux.go for the words of a refusal.
Differs: TLS and HTTP/2 are not spoken.
"""

import posixpath
import re
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from fleet.objects.pods import Pod, PodUid
from fleet.objects.streams import PortOutput

HEAD_MAX = 64 << 10
BODY_MAX = 1 << 20
PENDING_MAX = 1 << 20
"""What waits to be read; then no more is taken."""
_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_METHOD_MAX = 8
_REQUEST_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/(1\.[01])")
HEALTH = frozenset(("/healthz", "/livez", "/readyz", "/health", "/ready"))
ROOTS = ("", "/usr/share/nginx/html", "/var/www/html", "/usr/local/apache2/htdocs")
"""Where web servers look for what they show."""
ReadFile = Callable[[str], str | None]
"""Return the text of a file of the container, None if there is none."""


class PortChange(NamedTuple):
    """A pod listens on ports of an address, or on none any more."""

    node: int
    uid: PodUid
    address: str
    ports: tuple[int, ...]


PortChanges = deque[PortChange]
"""Of all nodes, in order: runtimes append, whoever has the sockets takes."""


def declared_ports(pod: Pod) -> tuple[int, ...]:
    """Return the TCP ports that the containers of a pod declare, each once."""
    found = (
        each.port
        for spec in (*pod.spec.containers, *pod.spec.init_containers)
        for each in spec.ports
        if each.protocol == "TCP"
    )
    return tuple(dict.fromkeys(found))


def listens(pod: Pod, port: int) -> bool:
    """Return whether a pod listens on a TCP port."""
    declared = declared_ports(pod)
    return not declared or port in declared


def container_of_port(pod: Pod, port: int) -> str:
    """Return the container that declares a port, else the first one."""
    for spec in (*pod.spec.containers, *pod.spec.init_containers):
        if any(each.port == port for each in spec.ports):
            return spec.name
    return pod.spec.containers[0].name


def refusal(port: int, uid: str) -> str:
    """Return how containerd says that nobody listens."""
    where = f'inside namespace "{uid}"'
    refused = f"dial tcp4 127.0.0.1:{port}: connect: connection refused"
    no_six = f"dial tcp6 [::1]:{port}: connect: connection refused"
    return f"failed to connect to localhost:{port} {where}, IPv4: {refused} IPv6 {no_six} "


class PortSession:
    """One connection to a port."""

    __slots__ = ("_given", "_is_echo", "_is_over", "_pending", "_pod", "_read")

    def __init__(self, pod: Pod, read: ReadFile) -> None:
        self._pod = pod
        self._read = read
        self._given = bytearray()  # that is no whole request yet
        self._pending = bytearray()
        self._is_echo: bool | None = None  # None: too little came to tell
        self._is_over = False

    def write(self, data: bytes, _now_ns: int) -> int:
        """Take bytes of the client; return how many of them."""
        if self._is_over:
            return len(data)
        room = max(PENDING_MAX - len(self._pending), 0)
        if self._is_echo:
            self._pending += data[:room]
            return min(len(data), room)
        if not room:
            return 0
        self._given += data
        self._handle()
        return len(data)

    def end(self, _now_ns: int) -> None:
        """Learn that the client sends no more."""
        if self._is_echo is None and self._given:
            self._pending += self._given
            self._given.clear()
        self._is_over = True

    def advance(self, limit: int, _now_ns: int) -> PortOutput:
        """Return at most so many bytes of the answer."""
        data = bytes(self._pending[:limit])
        del self._pending[:limit]
        if self._given and self._is_echo is False:
            self._handle()
        more = bool(self._pending)
        return PortOutput(data, more, self._is_over and not more)

    def _handle(self) -> None:
        if self._is_echo is None:
            if _HTTP.match(self._given):
                self._is_echo = False
            elif len(self._given) >= _METHOD_MAX or b"\n" in self._given:
                self._is_echo = True
                self._pending += self._given
                self._given.clear()
        while (
            self._is_echo is False
            and not self._is_over
            and len(self._pending) < PENDING_MAX  # the next one when there is room for its answer
            and self._take_request()
        ):
            pass

    def _take_request(self) -> bool:
        """Answer the next request if it is complete."""
        head, separator, rest = bytes(self._given).partition(b"\r\n\r\n")
        if not separator:
            if len(head) > HEAD_MAX:
                self._answer(431, "", b"", is_last=True)
            return False
        line, *lines = head.decode("latin-1").split("\r\n")
        match = _REQUEST_LINE.fullmatch(line)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (each.partition(":") for each in lines)
        }
        if match is None:
            self._answer(400, "", b"", is_last=True)
            return False
        length = _body_length(headers)
        if length is None:
            self._answer(413 if "chunked" not in headers.get("transfer-encoding", "") else 411, "")
            self._is_over = True
            return False
        if len(rest) < length:
            if headers.get("expect") == "100-continue" and not rest:
                self._pending += b"HTTP/1.1 100 Continue\r\n\r\n"
            return False
        del self._given[: len(head) + 4 + length]
        wants_end = headers.get("connection", "").lower() == "close" or match[3] == "1.0"
        code, kind, body = self._reply(match[1], match[2], rest[:length], headers)
        self._answer(code, kind, body, is_head=match[1] == "HEAD", is_last=wants_end)
        return True

    def _reply(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        if method in {"POST", "PUT", "PATCH"}:
            return 200, headers.get("content-type", "application/octet-stream"), body
        url = urlsplit(target)
        path = posixpath.normpath(unquote(url.path) or "/")
        if path in HEALTH:
            return 200, "text/plain", b"ok"
        if path == "/echo":
            return 200, "text/plain", parse_qs(url.query).get("msg", [""])[0].encode()
        text = self._file(path)
        if text is not None:
            kind = "text/html" if path.endswith((".html", "/")) else "text/plain"
            return 200, kind, text.encode("utf-8", "surrogateescape")
        if path in {"/", "/hostname"}:
            return 200, "text/plain", self._pod.name.encode()
        return 404, "text/plain", b"404 page not found\n"

    def _file(self, path: str) -> str | None:
        name = "/index.html" if path == "/" else path
        for root in ROOTS[1:] if path == "/" else ROOTS:
            text = self._read(root + name)
            if text not in {None, "/"}:
                return text
        return None

    def _answer(
        self,
        code: int,
        kind: str,
        body: bytes = b"",
        *,
        is_head: bool = False,
        is_last: bool = False,
    ) -> None:
        lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", f"Content-Length: {len(body)}"]
        if kind:
            lines.append(f"Content-Type: {kind}; charset=utf-8")
        if is_last:
            lines.append("Connection: close")
            self._is_over = True
        self._pending += "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
        if not is_head:
            self._pending += body


def _body_length(headers: Mapping[str, str]) -> int | None:
    """Return how long the body of a request is, None if it is too long or not said."""
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > len(str(BODY_MAX)) or int(length) > BODY_MAX:
        return None
    return int(length)
