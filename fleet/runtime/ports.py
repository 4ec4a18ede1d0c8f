"""A connection to a port of a pod, as `kubectl port-forward` makes it.

A container listens on every port: what it declares is information. A request over HTTP is answered
as a PodBehavior or the container's program says, else with 200 and the pod's name. Any other bytes
come back.
Differs: neither HTTP/2 nor TLS is spoken; a connection has one request, whose body is not read.
"""

import re
from collections.abc import Callable
from http import HTTPStatus

from fleet.k8s.pods import Pod
from fleet.k8s.streams import PortOutput
from fleet.runtime.program import HttpReply

HEAD_MAX = 64 << 10
PENDING_MAX = 1 << 20  # what waits to be read; then no more is taken
_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_METHOD_MAX = 8
_REQUEST = re.compile(r"(?P<method>[A-Z]+) (?P<path>[^\s?#]+)(?:[?#]\S*)? HTTP/1\.[01]\r\n")
Answer = Callable[[str, int], HttpReply]
"""Answer a request by its path, at an instant."""


def container_of_port(pod: Pod, port: int) -> str:
    """Return the container that declares a port, else the first one."""
    for spec in (*pod.spec.containers, *pod.spec.init_containers):
        if any(each.port == port and each.protocol == "TCP" for each in spec.ports):
            return spec.name
    return pod.spec.containers[0].name


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
        """Answer the request if its head is complete."""
        found = _REQUEST.match(self._given.decode("latin-1"))
        if found is not None and b"\r\n\r\n" in self._given:
            self._answer(self._answer_to(found["path"], now_ns), is_head=found["method"] == "HEAD")
        elif len(self._given) > HEAD_MAX or (found is None and b"\r\n" in self._given):
            self._answer(HttpReply(400))

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
