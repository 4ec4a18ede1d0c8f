"""HTTP/1.1 as Go's server speaks it where that shows: broken requests, plain texts, hijacking.

    connected -> head -> request, its body, the answer -> idle -> head ...
      |            |over HEAD_BYTES_MAX: 431              |
      +------------+---- no whole head in HEAD_S: closed  +-- IDLE_S: closed

Anybody who reaches a port may send a head, so what all heads take together is bounded, too.
Source: net/http server.go, badRequestError, statusError, readRequest, initialReadLimitSize;
pkg/kubelet/server/server.go, ListenAndServeKubeletServer, WriteError.
Differs: no HTTP/2; a kubelet waits four hours for a head (its ReadTimeout, as it sets no
ReadHeaderTimeout); Go counts no fields.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from fleet.k8s.effects import NodeId

HEAD_BYTES_MAX = (1 << 20) + 4096
"""Of one request, its line and fields. Source: MaxHeaderBytes, initialReadLimitSize."""
HEADS_BYTES_MAX = 64 << 20
"""Of all requests of a process whose heads are not whole yet."""
FIELDS_MAX = 4_096
HEAD_S = 10.0
"""From the connection, or the first byte of a further request, to the end of its head."""
SWEEP_S = 1.0
"""How often it is looked for heads that are late: no timer for each connection."""
RESET_AVOIDANCE_S = 0.5
"""Source: rstAvoidanceDelay."""
IDLE_S = 90.0
"""Source: ListenAndServeKubeletServer, IdleTimeout."""
TEXT = "text/plain; charset=utf-8"
TOO_LARGE = "431 Request Header Fields Too Large"
HEADS = "unfinished requests to kubelets"
TOO_BUSY = "503 Service Unavailable"
TOO_MANY_FIELDS = "Too many headers"  # in aiohttp's words
REFUSAL = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%b"


class User(NamedTuple):
    """Who asks. Source: apiserver/pkg/authentication/user, Info."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Role(Enum):
    """What a port is for."""

    SECURE = 10250
    READ_ONLY = 10255
    HEALTHZ = 10248


class NodeProtocol(RequestHandler):
    """A connection to one node."""

    __slots__ = (
        "_body",
        "_head_bytes",
        "head_due_s",
        "node",
        "node_name",
        "role",
        "user",
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn whose this is."""
        self._body: StreamReader | None = None  # of the request that came last
        self._head_bytes = 0  # of a head that is not whole
        self.head_due_s = self._loop.time() + HEAD_S  # 0 while no head is waited for
        self.user: User | None = None  # of the client certificate, once asked
        self.node: NodeId | None = None
        self.node_name = ""
        self.role = Role.SECURE
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count its head no more."""
        self._count_head(-self._head_bytes)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse a head that is too large before more of it is kept."""
        if self._close or self._upgraded or self._payload_parser is not None:
            super().data_received(data)
            return
        requests, in_body = self._request_count, self._body is not None and not self._body.is_eof()
        super().data_received(data)
        if self._request_count > requests:
            self._on_head(len(data))
        elif data and not in_body:
            self._on_part(len(data))

    def _on_part(self, size: int) -> None:
        """Count a part of a head."""
        if not self.head_due_s:
            self.head_due_s = self._loop.time() + HEAD_S
        heads = self._count_head(size)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(TOO_LARGE)
        elif heads > HEADS_BYTES_MAX:
            if isinstance(self._manager, NodeHttp):
                self._manager.hit_limit(HEADS)
            self._refuse(TOO_BUSY)

    def _on_head(self, size: int) -> None:
        """Take a whole head, of which the last part came with other bytes perhaps."""
        total = self._head_bytes + size
        self._count_head(-self._head_bytes)
        self.head_due_s = 0.0
        if self._messages:
            message, self._body = self._messages[-1]
            if total > HEAD_BYTES_MAX and head_size(message) > HEAD_BYTES_MAX:
                self._refuse(TOO_LARGE)

    def _count_head(self, more: int) -> int:
        """Count bytes of a head that is not whole; return those of all connections."""
        self._head_bytes += more
        http = self._manager
        if not isinstance(http, NodeHttp):
            return 0  # it is closed
        http.head_bytes += more
        return http.head_bytes

    def _refuse(self, status: str) -> None:
        """Answer what is no request yet, and end the connection a little later.

        Source: conn.serve, closeWriteAndWait: a reset would overtake the answer.
        """
        self._messages.clear()
        if self.transport is None or self._request_in_progress:
            self.force_close()
            return
        self.transport.write(REFUSAL % (status.encode(), status.encode()))
        self._close = True  # what comes from now on is dropped
        if self._task_handler is not None:
            self._task_handler.cancel()  # it may have been woken for what is no request
        self._loop.call_later(RESET_AVOIDANCE_S, self.force_close)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - of the base class
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request of HTTP, and end the connection."""
        shown = f"{status} Bad Request"
        if isinstance(exc, LineTooLong) or (exc is not None and TOO_MANY_FIELDS in str(exc)):
            status, shown = 431, TOO_LARGE
        elif status != 400:
            shown = message or "500 Internal Server Error"
        response = text(status, shown)
        response.force_close()
        return response


class NodeRequest(web.BaseRequest):
    """A request to a kubelet, whose server does not say what it is made with."""

    async def _prepare_hook(self, resp: web.StreamResponse) -> None:
        resp.headers.popall("Server", None)


class NodeHttp(web.Server):
    """Makes the protocols of all connections; a handler is cancelled when its client goes."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        hit_limit: Callable[[str], None] = lambda _what: None,
    ) -> None:
        self.hit_limit = hit_limit
        self.head_bytes = 0  # of all heads that are not whole
        self.late = 0  # connections that were closed for a late head
        super().__init__(
            handler,
            request_factory=self._new_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_S,
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            auto_decompress=False,
            lingering_time=0,
        )

    async def sweep(self) -> None:
        """Close connections whose heads are late, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = self._loop.time()
            for each in self.connections:
                if isinstance(each, NodeProtocol) and 0 < each.head_due_s <= now_s:
                    self.late += 1
                    each.force_close()  # Go's server says nothing, either

    def _new_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> NodeRequest:
        return NodeRequest(message, payload, protocol, writer, task, self._loop)

    def __call__(self) -> RequestHandler:
        """Make the protocol of one connection."""
        return NodeProtocol(self, loop=self._loop, **self._kwargs)


def head_size(message: object) -> int:
    """Return how many bytes the head of a request takes, about."""
    if not isinstance(message, RawRequestMessage):
        return HEAD_BYTES_MAX + 1  # an error: that of a head that is too large
    fields = sum(len(key) + len(value) + 4 for key, value in message.raw_headers)
    return len(message.method) + len(message.path) + len(" HTTP/1.1  \r\n") + fields


def text(code: int, content: str | bytes, content_type: str = TEXT) -> web.Response:
    """Return an answer in plain text."""
    body = content.encode() if isinstance(content, str) else content
    return web.Response(status=code, body=body, headers={"Content-Type": content_type})


def json(body: bytes) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=body, headers={"Content-Type": "application/json"})
