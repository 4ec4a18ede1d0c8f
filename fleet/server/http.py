"""HTTP/1.1 as Go's server speaks it where that shows: broken requests, plain texts, hijacking.

Source: net/http server.go, badRequestError, statusError; pkg/kubelet/server/server.go, WriteError.
Differs: no HTTP/2; a header of more than 64 KiB is too large, where Go allows 1 MiB in all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from fleet.objects.effects import NodeId
from fleet.server.authorization import User

LINE_BYTES_MAX = 1 << 20
FIELD_BYTES_MAX = 64 << 10
FIELDS_MAX = 128
IDLE_S = 90.0
"""Source: ListenAndServeKubeletServer, IdleTimeout."""
TEXT = "text/plain; charset=utf-8"


class Role(Enum):
    """What a port is for."""

    SECURE = 10250
    READ_ONLY = 10255
    HEALTHZ = 10248


class NodeProtocol(RequestHandler):
    """A connection to one node."""

    __slots__ = ("node", "node_name", "role", "user")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn whose this is."""
        self.user: User | None = None  # of the client certificate, once asked
        self.node: NodeId | None = None
        self.node_name = ""
        self.role = Role.SECURE
        super().connection_made(transport)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - of the base class
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request of HTTP, and end the connection."""
        shown = f"{status} Bad Request"
        if isinstance(exc, LineTooLong):
            status, shown = 431, "431 Request Header Fields Too Large"
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

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(
            handler,
            request_factory=self._new_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_S,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            auto_decompress=False,
            lingering_time=0,
        )

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


def text(code: int, content: str | bytes, content_type: str = TEXT) -> web.Response:
    """Return an answer in plain text."""
    body = content.encode() if isinstance(content, str) else content
    return web.Response(status=code, body=body, headers={"Content-Type": content_type})


def json(body: bytes) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=body, headers={"Content-Type": "application/json"})
