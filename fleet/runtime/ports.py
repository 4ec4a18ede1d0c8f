"""A connection to a port of a pod, as `kubectl port-forward` makes it.

A container listens on every port: what it declares is information. A request over HTTP is answered
as a PodBehavior or the container's program says, else with 200: what was sent, or the pod's name.
Any other bytes come back.
Differs: neither HTTP/2 nor TLS is spoken.
"""

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus

from fleet.k8s.pods import Pod
from fleet.k8s.streams import PortOutput
from fleet.runtime.program import HttpReply

HEAD_MAX = 64 << 10
BODY_MAX = 1 << 20
PENDING_MAX = 1 << 20
"""What waits to be read; then no more is taken."""
_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_METHOD_MAX = 8
_REQUEST_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/(1\.[01])")
Answer = Callable[[str, str, bytes, int], HttpReply]
"""Answer a request by its method, path and body at an instant."""


def container_of_port(pod: Pod, port: int) -> str:
    """Return the container that declares a port, else the first one."""
    for spec in (*pod.spec.containers, *pod.spec.init_containers):
        if any(each.port == port and each.protocol == "TCP" for each in spec.ports):
            return spec.name
    return pod.spec.containers[0].name


def usual_answer(pod: Pod, method: str, body: bytes) -> HttpReply:
    """Return what a container answers of which nobody says it."""
    is_sent = method in {"POST", "PUT", "PATCH"}
    return (
        HttpReply(200, body, "application/octet-stream")
        if is_sent
        else HttpReply(200, pod.name.encode())
    )


class PortSession:
    """One connection to a port."""

    __slots__ = ("_answer_to", "_given", "_is_echo", "_is_over", "_pending")

    def __init__(self, answer: Answer) -> None:
        self._answer_to = answer
        self._given = bytearray()  # that is no whole request yet
        self._pending = bytearray()
        self._is_echo: bool | None = None  # None: too little came to tell
        self._is_over = False

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
                self._pending += self._given
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
        path = match[2].partition("#")[0].partition("?")[0]
        reply = self._answer_to(match[1], path or "/", rest[:length], now_ns)
        is_head = match[1] == "HEAD"
        self._answer(reply.code, reply.kind, reply.body, is_head=is_head, is_last=wants_end)
        return True

    def _answer(
        self,
        code: int,
        kind: str,
        body: bytes = b"",
        *,
        is_head: bool = False,
        is_last: bool = False,
    ) -> None:
        lines = [f"HTTP/1.1 {code} {phrase_of(code)}", f"Content-Length: {len(body)}"]
        if kind:
            lines.append(f"Content-Type: {kind}")
        if is_last:
            lines.append("Connection: close")
            self._is_over = True
        self._pending += "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
        if not is_head:
            self._pending += body


def phrase_of(code: int) -> str:
    """Return the words of a status code, as Go's net/http says them."""
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return f"status code {code}"


def _body_length(headers: Mapping[str, str]) -> int | None:
    """Return how long the body of a request is, None if it is too long or not said."""
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > len(str(BODY_MAX)) or int(length) > BODY_MAX:
        return None
    return int(length)
