"""/exec, /attach and /portForward: from the request to the stream.

Source: pkg/kubelet/server/server.go, getExec, getAttach, getPortForward;
streaming/pkg/httpstream/httpstream.go, Handshake; cri-streaming/pkg/streaming/errors.go.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from aiohttp import web

from fleet.k8s.streams import Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.server import endpoints, sessions
from fleet.server.byte_streams import TunnelStream, UpgradeResponse
from fleet.server.host_interface import Session, attach_to, exec_in
from fleet.server.http import text
from fleet.server.port_forward import PROTOCOL, TUNNEL, Forwarder, SpdyPortForward
from fleet.server.reactor_thread import ReactorThread
from fleet.server.routes import Endpoint

SPDY = "SPDY/3.1"
VERSION = "X-Stream-Protocol-Version"
UPGRADE_REQUIRED = "Upgrade request required"
NOTHING_WANTED = "you must specify at least 1 of stdin, stdout, stderr"
STREAMS = "exec, attach and port-forward streams"
FORWARDED = "forwarded connections"


class Streaming:
    """Answers for all nodes of a process."""

    def __init__(self, reactor_thread: ReactorThread) -> None:
        self._reactor_thread = reactor_thread
        self.sessions = endpoints.ConcurrencyLimit(
            endpoints.SESSIONS_MAX, partial(reactor_thread.hit_limit, STREAMS)
        )
        self.forwarded = endpoints.ConcurrencyLimit(
            endpoints.FORWARDED_MAX, partial(reactor_thread.hit_limit, FORWARDED)
        )
        self.answers: endpoints.Answers = {
            Endpoint.EXEC: partial(self._within_limit, self._exec),
            Endpoint.ATTACH: partial(self._within_limit, self._attach),
            Endpoint.PORT_FORWARD: partial(self._within_limit, self._port_forward),
        }

    async def _within_limit(
        self,
        answer: Callable[[endpoints.Asked], Awaitable[web.StreamResponse]],
        asked: endpoints.Asked,
    ) -> web.StreamResponse:
        """Begin a session unless too many are open. Source: ErrorTooManyInFlight."""
        with self.sessions.held() as is_admitted:
            return await answer(asked) if is_admitted else text(429, "too many streams\n")

    # ---- exec, attach ----

    async def _exec(self, asked: endpoints.Asked) -> web.StreamResponse:
        command = tuple(asked.request.query.getall("command", []))
        return await self._converse(asked, partial(exec_in, command=command))

    async def _attach(self, asked: endpoints.Asked) -> web.StreamResponse:
        attach = partial(attach_to, uid=asked.parameters.get("uid", ""))
        return await self._converse(asked, attach)

    async def _converse(
        self, asked: endpoints.Asked, begin: Callable[..., Session | Refusal]
    ) -> web.StreamResponse:
        request = asked.request
        query = {key: request.query.getall(key) for key in request.query}
        wanted = sessions.wanted_streams(query)
        if wanted is None:
            return text(400, NOTHING_WANTED)
        session = await self._begin(asked, partial(begin, stdin=wanted.stdin, tty=wanted.tty))
        if isinstance(session, Refusal):
            return text(*session)
        if sessions.is_web_socket(request):
            return await self._over_web_socket(asked, session, wanted)
        return await self._over_spdy(asked, session, wanted)

    async def _begin(
        self, asked: endpoints.Asked, begin: Callable[..., Session | Refusal]
    ) -> Session | Refusal:
        container = asked.parameters["containerName"]

        def act(kubelet: VirtualKubelet, now_ns: int) -> Session | Refusal:
            pod = endpoints.found_pod(kubelet, asked.parameters)
            if isinstance(pod, Refusal):
                return pod
            session = begin(kubelet, pod, container, now_ns=now_ns)
            if not isinstance(session, Refusal) and session.out:
                self._reactor_thread.perform(session.out)
                session.out.clear()
            return session

        return await self._reactor_thread.call(asked.node, act)

    async def _over_web_socket(
        self, asked: endpoints.Asked, session: Session, wanted: sessions.Wanted
    ) -> web.StreamResponse:
        request = asked.request
        socket = await _accept(request, sessions.WEB_SOCKET_PROTOCOLS)
        if socket is None:
            return text(403, "")
        client = sessions.WebSocketClient(socket, _words(request))
        first = sessions.Channel.STDOUT if wanted.stdout else sessions.Channel.ERROR
        if wanted.stderr and not wanted.stdout:
            first = sessions.Channel.STDERR
        await client.send(first, b"")  # so that the client knows that it is connected
        await sessions.Conversation(self._reactor_thread, asked.node, session, client, wanted).run()
        return socket

    async def _over_spdy(
        self, asked: endpoints.Asked, session: Session, wanted: sessions.Wanted
    ) -> web.StreamResponse:
        request = asked.request
        chosen = _handshake(request, sessions.SPDY_PROTOCOLS)
        if isinstance(chosen, web.Response):
            return chosen
        response = UpgradeResponse(SPDY, {VERSION: chosen})
        stream = await response.take_over(request)
        client = sessions.SpdyClient(stream, _words(request))
        try:
            if await client.wait_for_streams(wanted):
                await sessions.Conversation(
                    self._reactor_thread, asked.node, session, client, wanted
                ).run()
        except ConnectionError:
            pass
        finally:
            await stream.close()
        return response

    # ---- ports ----

    async def _port_forward(self, asked: endpoints.Asked) -> web.StreamResponse:
        request = asked.request
        find = partial(endpoints.forwarded_pod, asked)
        pod = await self._reactor_thread.call(asked.node, find)
        if isinstance(pod, Refusal):
            return text(*pod)
        forwarder = Forwarder(self._reactor_thread, asked.node, pod, self.forwarded)
        if not sessions.is_web_socket(request):
            return await self._forward_over_spdy(request, forwarder)
        socket = await _accept(request, (TUNNEL,)) if sessions.offered(request) else None
        if socket is None:
            return text(400, "unable to upgrade: no tunneling spdy protocols provided\n")
        await SpdyPortForward(TunnelStream(socket), forwarder).run()
        return socket

    async def _forward_over_spdy(
        self, request: web.BaseRequest, forwarder: Forwarder
    ) -> web.StreamResponse:
        chosen = _handshake(request, (PROTOCOL,))
        if isinstance(chosen, web.Response):
            return chosen
        response = UpgradeResponse(SPDY, {VERSION: chosen})
        await SpdyPortForward(await response.take_over(request), forwarder).run()
        return response


def _words(request: web.BaseRequest) -> str:
    """Return containerd's words before an exit code. Source: its streamRuntime.Exec."""
    return f"error executing command [{' '.join(request.query.getall('command', []))}], exit code"


async def _accept(
    request: web.BaseRequest, protocols: Sequence[str]
) -> web.WebSocketResponse | None:
    """Accept a WebSocket with the first protocol that both know; None if there is none."""
    given = sessions.offered(request)
    if given and not set(given) & set(protocols):
        return None
    socket = web.WebSocketResponse(
        protocols=protocols,
        compress=False,
        max_msg_size=sessions.MESSAGE_BYTES_MAX,
        writer_limit=sessions.WRITE_BYTES_MAX,
        timeout=1.0,
    )
    await socket.prepare(request)
    return socket


def _handshake(request: web.BaseRequest, protocols: Sequence[str]) -> str | web.Response:
    """Choose the protocol inside of SPDY, or refuse: the client names none, or none is known.

    Source: httpstream.Handshake, negotiateProtocol; proxy/upgradeaware.go, upgradeRequired.
    """
    headers = request.headers
    if "upgrade" not in headers.get("Connection", "").lower():
        return text(500, f"{UPGRADE_REQUIRED}\n")
    given = [
        each.strip()
        for line in headers.getall(VERSION, [])
        for each in line.split(",")
        if each.strip()
    ]
    if not given:
        count = len({each.lower() for each in headers} - {"host"})
        missing = f"header {VERSION} does not exist in request with {count} headers"
        return text(400, f"unable to upgrade: {missing}\n")
    chosen = next((each for each in given if each in protocols), "")
    if not chosen:
        shown = " ".join(f'"{each}"' for each in given)
        known = " ".join(f'"{each}"' for each in protocols)
        refused = text(
            403,
            f"unable to upgrade: unable to negotiate protocol: client supports [{shown}], server "
            f"accepts [{known}]\n",
        )
        for each in protocols:
            refused.headers.add("X-Accepted-Stream-Protocol-Versions", each)
        return refused
    if SPDY.lower() not in headers.get("Upgrade", "").lower():
        return text(400, "unable to upgrade: missing upgrade headers in request\n")
    return chosen
