"""The ports of a pod: which of them are listened on, and the small program that answers there.

What is known to serve (known_servers.py) listens where it says, and answers as it does. Any other
container listens on every port: what it declares is information. HTTP is answered there with the
pod's name, what was sent, or a file of a container; any other bytes come back.
Source: containerd's internal/cri/server/sandbox_portforward_linux.go for the words of a refusal.
Differs: neither HTTP/2 nor TLS is spoken.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from urllib.parse import unquote

from fleet.k8s.pods import ContainerSpec, Pod
from fleet.k8s.streams import PortOutput
from fleet.runtime.http_message import PLAIN, HttpReply, HttpRequest
from fleet.runtime.known_servers import known_server_of

HEAD_MAX = 64 << 10
BODY_MAX = 1 << 20
PENDING_MAX = 1 << 20
"""What waits to be read; then no more is taken."""
_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_METHOD_MAX = 8
_REQUEST_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/(1\.[01])")
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\n\r\n400 Bad Request"
)
"""Source: Go's net/http/server.go, serve."""
HEALTH = frozenset(("/healthz", "/livez", "/readyz", "/health", "/ready"))
ROOTS = ("", "/usr/share/nginx/html", "/var/www/html", "/usr/local/apache2/htdocs")
"""Where web servers look for what they show."""
ReadFile = Callable[[str], str | None]
"""Return the text of a file of the container, None if there is none."""
Answer = Callable[[HttpRequest, int], HttpReply]
"""Answer a request at an instant."""


def known_ports(pod: Pod) -> tuple[int, ...]:
    """Return the TCP ports on which a pod is known to listen, or says so, each once."""
    return tuple(dict.fromkeys(port for port, _ in _listening(pod)))


def _listening(pod: Pod) -> Iterator[tuple[int, ContainerSpec]]:
    for spec in (*pod.spec.containers, *pod.spec.init_containers):
        server = known_server_of(spec)
        if server is not None:
            for port in server.tcp:
                yield port, spec
            continue
        for each in spec.ports:
            if each.protocol == "TCP":
                yield each.port, spec


def listens(pod: Pod, port: int) -> bool:
    """Return whether a pod listens on a TCP port, declared or not."""
    return not is_known(pod) or port in known_ports(pod)


def is_known(pod: Pod) -> bool:
    """Return whether of each container is known what listens: then nothing else does."""
    return all(known_server_of(spec) is not None for spec in pod.spec.containers)


def container_of_port(pod: Pod, port: int) -> str:
    """Return the container that listens on a port, else the first one of which nothing is known."""
    for known, spec in _listening(pod):
        if known == port:
            return spec.name
    unknown = (spec for spec in pod.spec.containers if known_server_of(spec) is None)
    return next(unknown, pod.spec.containers[0]).name


def refusal(port: int, uid: str) -> str:
    """Return how containerd says that nobody listens."""
    where = f'inside namespace "{uid}"'
    refused = f"dial tcp4 127.0.0.1:{port}: connect: connection refused"
    no_six = f"dial tcp6 [::1]:{port}: connect: connection refused"
    return f"failed to connect to localhost:{port} {where}, IPv4: {refused} IPv6 {no_six} "


class PortSession:
    """One connection to a port."""

    __slots__ = (
        *("_answer_to", "_given", "_is_echo", "_is_over", "_only_http", "_pending", "_wait_s"),
    )

    def __init__(
        self,
        answer: Answer,
        greeting: bytes | None = None,
        *,
        only_http: bool = False,
    ) -> None:
        """Take what answers requests; a greeting is all that a client hears.

        `only_http`: what is no HTTP is not sent back, but said to be bad.
        """
        self._wait_s = 0  # before what is pending is sent
        self._only_http = only_http
        self._answer_to = answer
        self._given = bytearray()  # that is no whole request yet
        self._pending = bytearray()
        self._is_echo: bool | None = None  # None: too little came to tell
        self._is_over = greeting is not None
        self._pending += greeting or b""

    def write(self, data: bytes, now_ns: int) -> int:
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
        self._handle(now_ns)
        return len(data)

    def end(self, _now_ns: int) -> None:
        """Learn that the client sends no more."""
        if self._is_echo is None and self._given:
            self._pending += self._given
            self._given.clear()
        self._is_over = True

    def advance(self, limit: int, now_ns: int) -> PortOutput:
        """Return at most so many bytes of the answer."""
        wait_s, self._wait_s = self._wait_s, 0
        if wait_s:
            return PortOutput(more=True, wait_s=wait_s)
        data = bytes(self._pending[:limit])
        del self._pending[:limit]
        if self._given and self._is_echo is False:
            self._handle(now_ns)
        more = bool(self._pending)
        return PortOutput(data, more, self._is_over and not more)

    def _handle(self, now_ns: int) -> None:
        if self._is_echo is None:
            if _HTTP.match(self._given):
                self._is_echo = False
            elif len(self._given) >= _METHOD_MAX or b"\n" in self._given:
                self._is_echo = True
                self._pending += _BAD_REQUEST if self._only_http else self._given
                self._is_over = self._only_http
                self._given.clear()
        while (
            self._is_echo is False
            and not self._is_over
            and len(self._pending) < PENDING_MAX  # the next one when there is room for its answer
            and self._take_request(now_ns)
        ):
            pass

    def _take_request(self, now_ns: int) -> bool:
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
        asked = HttpRequest(match[1], match[2], rest[:length], headers, _client_of(headers))
        reply = self._answer_to(asked, now_ns)
        self._wait_s = max(self._wait_s, reply.wait_s)
        self._answer(
            reply.code,
            reply.kind,
            reply.body,
            is_head=match[1] == "HEAD",
            is_last=wants_end,
            location=reply.location,
        )
        return True

    def _answer(
        self,
        code: int,
        kind: str,
        body: bytes = b"",
        *,
        is_head: bool = False,
        is_last: bool = False,
        location: str = "",
    ) -> None:
        lines = [f"HTTP/1.1 {code} {phrase_of(code)}", f"Content-Length: {len(body)}"]
        if kind:
            lines.append(f"Content-Type: {kind}")
        if location:
            lines.append(f"Location: {location}")
        if is_last:
            lines.append("Connection: close")
            self._is_over = True
        self._pending += "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
        if not is_head:
            self._pending += body


def answer_of_anything(pod: Pod, read: ReadFile, request: HttpRequest) -> HttpReply:
    """Return what a container answers of which nothing is known."""
    if request.method in {"POST", "PUT", "PATCH"}:
        kind = request.headers.get("content-type", "application/octet-stream")
        return HttpReply(200, request.body, kind)
    path = posixpath.normpath(unquote(request.path))
    if path in HEALTH:
        return HttpReply(200, b"ok")
    if path == "/echo":
        return HttpReply(200, request.value("msg").encode())
    text = _file(path, read)
    if text is not None:
        kind = "text/html; charset=utf-8" if path.endswith((".html", "/")) else PLAIN
        return HttpReply(200, text.encode("utf-8", "surrogateescape"), kind)
    if path in {"/", "/hostname"}:
        return HttpReply(200, pod.name.encode())
    return HttpReply(404, b"404 page not found\n")


def _file(path: str, read: ReadFile) -> str | None:
    name = "/index.html" if path == "/" else path
    for root in ROOTS[1:] if path == "/" else ROOTS:
        text = read(root + name)
        if text not in {None, "/"}:
            return text
    return None


def phrase_of(code: int) -> str:
    """Return the words of a status code, as Go's net/http says them."""
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return f"status code {code}"


def _client_of(headers: Mapping[str, str]) -> str:
    """Return whom a proxy says that it asks for."""
    return headers.get("x-forwarded-for", "").rpartition(",")[2].strip()


def _body_length(headers: Mapping[str, str]) -> int | None:
    """Return how long the body of a request is, None if it is too long or not said."""
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > len(str(BODY_MAX)) or int(length) > BODY_MAX:
        return None
    return int(length)
