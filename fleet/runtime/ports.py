"""A connection to a port of a pod, as `kubectl port-forward` makes it.

A container listens on every port: what it declares is information. A request over HTTP is answered
as a PodBehavior or the container's program says, else with 200: what was sent, or the pod's name.
Any other bytes come back.
Differs: neither HTTP/2 nor TLS is spoken, and a connection has one request.
"""

import re
from collections.abc import Callable
from http import HTTPStatus

from fleet.k8s.pods import Pod
from fleet.k8s.streams import PortOutput
from fleet.runtime.program import HttpReply

HEAD_MAX = 64 << 10
BODY_MAX = 1 << 20
PENDING_MAX = 1 << 20  # what waits to be read; then no more is taken
_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_METHOD_MAX = 8
_REQUEST_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/1\.[01]")
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
    if method in {"POST", "PUT", "PATCH"}:
        return HttpReply(200, body, "application/octet-stream")
    return HttpReply(200, pod.name.encode())


class PortSession:
    """One connection to a port: an echo, or one request, whose answer ends it."""

    def __init__(self, answer: Answer) -> None:
        self._answer_to = answer
        self._given = bytearray()  # that is no whole request yet
        self._pending = bytearray()
        self._is_echo = False
        self._is_over = False

    def write(self, data: bytes, now_ns: int) -> int:
        """Take bytes of the client; return how many of them."""
        if self._is_over:
            return len(data)
        if self._is_echo:
            room = max(PENDING_MAX - len(self._pending), 0)
            self._pending += data[:room]
            return min(len(data), room)
        self._given += data
        if _HTTP.match(self._given):
            self._take_request(now_ns)
        elif len(self._given) >= _METHOD_MAX or b"\n" in self._given:
            self._echo()
        return len(data)

    def _echo(self) -> None:
        self._is_echo = True
        self._pending += self._given
        self._given.clear()

    def end(self, _now_ns: int) -> None:
        """Learn that the client sends no more."""
        if self._given and not _HTTP.match(self._given):
            self._echo()
        self._is_over = True

    def advance(self, limit: int, _now_ns: int) -> PortOutput:
        """Return at most so many bytes of the answer."""
        data = bytes(self._pending[:limit])
        del self._pending[:limit]
        more = bool(self._pending)
        return PortOutput(data, more, self._is_over and not more)

    def _take_request(self, now_ns: int) -> None:
        """Answer the request if it is complete."""
        head, separator, body = bytes(self._given).partition(b"\r\n\r\n")
        if not separator:
            if len(head) > HEAD_MAX:
                self._answer(HttpReply(431))
            return
        line, *lines = head.decode("latin-1").split("\r\n")
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            self._answer(HttpReply(400))
            return
        pairs = (each.partition(":") for each in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers:
            self._answer(HttpReply(411))
        elif not size.isdecimal() or len(size) > len(str(BODY_MAX)) or int(size) > BODY_MAX:
            self._answer(HttpReply(413))
        elif len(body) >= int(size):
            path = match[2].partition("#")[0].partition("?")[0] or "/"
            reply = self._answer_to(match[1], path, body[: int(size)], now_ns)
            self._answer(reply, is_head=match[1] == "HEAD")
        elif headers.get("expect") == "100-continue" and not body:
            self._pending += b"HTTP/1.1 100 Continue\r\n\r\n"

    def _answer(self, reply: HttpReply, *, is_head: bool = False) -> None:
        line = f"HTTP/1.1 {reply.code} {phrase_of(reply.code)}"
        head = (
            f"{line}\r\nContent-Length: {len(reply.body)}\r\nContent-Type: {reply.kind}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._pending += head.encode("latin-1", "replace") + (b"" if is_head else reply.body)
        self._given.clear()
        self._is_over = True


def phrase_of(code: int) -> str:
    """Return the words of a status code, as Go's net/http says them."""
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return f"status code {code}"
