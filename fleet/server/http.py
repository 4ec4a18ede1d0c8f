"""HTTP/1.1 as Go's server speaks it where that shows: broken requests, plain texts, hijacking.

    connected --HEAD_S without a whole head--> closed
    request -> its body -> the answer -> the next request, or IDLE_S later closed

Source: net/http server.go, badRequestError, statusError, readRequest;
pkg/kubelet/server/server.go, ListenAndServeKubeletServer, WriteError.
Differs: no HTTP/2; a kubelet waits four hours for a head (its ReadTimeout, as it sets no
ReadHeaderTimeout); Go limits a head as a whole, aiohttp its line, each field and their number.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from fleet.k8s.effects import NodeId

LINE_BYTES_MAX = 256 << 10  # of the line of a request, which has the command of an exec
FIELD_BYTES_MAX = 16 << 10
FIELDS_MAX = 64
"""With `FIELD_BYTES_MAX` and the line 1.25 MiB a head; Go's server takes 1 MiB. aiohttp keeps each
field twice until the head is whole, and anybody who reaches a port may send one without an end."""
HEAD_S = 10.0  # from the connection to the end of its first head; a later one is bound by IDLE_S
SWEEP_S = 1.0  # how often it is looked for heads that are late: no timer for each connection
IDLE_S = 90.0  # Source: ListenAndServeKubeletServer, IdleTimeout
TEXT = "text/plain; charset=utf-8"
TOO_LARGE = "431 Request Header Fields Too Large"
TOO_MANY_FIELDS = "Too many headers"  # in aiohttp's words


class User(NamedTuple):
    """Who asks. Source: apiserver/pkg/authentication/user, Info."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class NodeProtocol(RequestHandler):
    """A connection to one node."""

    __slots__ = ("made_s", "node", "node_name", "user")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn whose this is."""
        self.made_s = self._loop.time()
        self.user: User | None = None  # of the client certificate, once asked
        self.node: NodeId | None = None
        self.node_name = ""
        super().connection_made(transport)

    @property
    def has_asked(self) -> bool:
        """Return whether a whole head has come."""
        return self._request_count > 0

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
    """A request whose answer does not name aiohttp: a kubelet sends no `Server` header."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


class NodeHttp(web.Server):
    """Makes the protocols of all connections; a handler is cancelled when its client goes."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(
            handler,
            request_factory=partial(NodeRequest, loop=asyncio.get_running_loop()),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_S,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            auto_decompress=False,
            lingering_time=0,
        )

    async def sweep(self) -> None:
        """Close connections whose heads are late, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            late_s = self._loop.time() - HEAD_S
            for each in self.connections:
                assert isinstance(each, NodeProtocol), each
                if each.made_s <= late_s and not each.has_asked:
                    each.force_close()  # Go's server says nothing, either

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
