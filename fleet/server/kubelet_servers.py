"""The servers of all kubelets of a process: their sockets, their thread, and how a request goes.

    open (sockets, before any Node says where) -> start (thread, loop) -> stop

They run on a loop of their own next to the reactor's: TLS, HTTP and streaming never stand in its
way, and what is asked of a kubelet costs a turn at most `reactor_thread.BUDGET_S`.
Source: pkg/kubelet/server/server.go, ListenAndServeKubeletServer; pkg/kubelet/kubelet.go,
ListenAndServe.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import uvloop
from aiohttp import web

from fleet.background import Background
from fleet.cluster.api_client import Cluster
from fleet.host.node_certificates import CertificateStore
from fleet.host.node_host import NodeHost
from fleet.k8s.effects import NodeId
from fleet.k8s.objects import CertificateKind
from fleet.profile.addresses import NOWHERE, Serving
from fleet.profile.node_model import DEFAULT_ADDRESS_POOL, NodeModel
from fleet.profile.settings import ServeMode, Settings
from fleet.reactor.reactor import Reactor
from fleet.server.auth import AccessControl
from fleet.server.endpoints import Answers, Asked, Endpoints
from fleet.server.http import NodeHttp, NodeProtocol, text
from fleet.server.listener import Listener, open_address, open_loopback
from fleet.server.reactor_thread import BugError, NodeGoneError, ReactorThread
from fleet.server.routes import Answer, route
from fleet.server.serving_tls import Chain, ClientAuthorities, ServingContext
from fleet.server.streaming import Streaming

STOP_S = 5.0


class KubeletServers:
    """Made and stopped in the reactor's thread."""

    def __init__(self, settings: Settings, *, is_local: bool, address_shift: int = 0) -> None:
        self._settings = settings
        mode = settings.serve
        if mode is ServeMode.AUTO:
            mode = ServeMode.LOOPBACK if is_local else ServeMode.OFF
        self.mode = mode
        self._sockets: list[socket.socket] = []
        self._ports: dict[int, int] = {}  # by the port that a profile wants, the one that it got
        self._first = settings.node_index(0)
        self._shift = address_shift
        self._of_all = Serving(*settings.serve_address, self._first, address_shift)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._node_host: NodeHost | None = None
        self._store: CertificateStore | None = None
        self._reactor_thread: ReactorThread  # these three are set in the servers' thread
        self._access: AccessControl
        self._answers: Answers

    # ---- where ----

    def open(self, models: Iterable[NodeModel]) -> None:
        """Listen for the nodes of these profiles, so that their Nodes can say where.

        Raises SetupError.
        """
        models = tuple(models)
        if self.mode is ServeMode.LOOPBACK:
            for port in dict.fromkeys(each.kubelet_port for each in filter(self._serves, models)):
                self._ports[port] = self._listen(port)
        elif self.mode is ServeMode.PORTS:
            address, first = self._settings.serve_address
            for port in range(first, first + self._settings.most):
                self._sockets.append(open_address(address, port))

    def _listen(self, port: int) -> int:
        """Listen on the addresses of all nodes; return the port, another one if it is taken.

        One socket on `lo` alone does, else one on the address of each node. Raises SetupError.
        """
        whole = open_loopback(port)
        if whole is not None:
            self._sockets.append(whole)
            return int(whole.getsockname()[1])
        for number, index in enumerate(range(self._first, self._first + self._settings.most)):
            found = open_address(self._of_all.address_of(index), port, is_exact=number > 0)
            self._sockets.append(found)
            port = found.getsockname()[1]
        return port

    def serving(self, model: NodeModel) -> Serving:
        """Return where the nodes of a profile answer."""
        if not self._serves(model):
            return NOWHERE
        if self.mode is ServeMode.PORTS:
            return self._of_all
        return Serving(port=self._ports[model.kubelet_port], shift=self._shift)

    def _serves(self, model: NodeModel) -> bool:
        """Return whether the nodes of a profile have a server: their address must be ours."""
        if self.mode is ServeMode.OFF or not model.kubelet.enable_server:
            return False
        return self.mode is not ServeMode.LOOPBACK or model.address_pools[0] == DEFAULT_ADDRESS_POOL

    # ---- the thread ----

    async def start(
        self,
        node_host: NodeHost,
        cluster: Cluster,
        background: Background,
        store: CertificateStore | None = None,
    ) -> None:
        """Begin to answer; nodes with certificates of their own have them in `store`.

        Raises SetupError.
        """
        if not self._sockets:
            return
        self._node_host = node_host
        self._store = store
        reactor_thread = ReactorThread(node_host.reactor, asyncio.get_running_loop())
        context = ServingContext.make("", self._chain_of)
        authorities = ClientAuthorities(cluster.api("serving"), context.use_client_ca)
        await authorities.read()
        background.keep("the client CA of the kubelets", authorities.follow)
        began = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(reactor_thread, context, began.set),
            name="kubelet-servers",
            daemon=True,
        )
        self._thread.start()
        began.wait()

    def stop(self) -> None:
        """Close every connection and end the thread. May be called again."""
        loop, stopping = self._loop, self._stopping
        if self._thread is not None and loop is not None and stopping is not None:
            loop.call_soon_threadsafe(stopping.set)
            self._thread.join(STOP_S)
            self._thread = None
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _run(
        self, reactor_thread: ReactorThread, context: ServingContext, on_begun: Callable[[], object]
    ) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(reactor_thread, context, on_begun))
        except Exception as error:  # noqa: BLE001 - marks the run, as a bug in the reactor does
            reactor_thread.on_bug(error)
        finally:
            on_begun()
            context.close()

    async def _serve(
        self, reactor_thread: ReactorThread, context: ServingContext, on_begun: Callable[[], object]
    ) -> None:
        loop = self._loop = reactor_thread.servers = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        reactor = self._reactor
        self._reactor_thread = reactor_thread
        self._access = access = AccessControl(reactor, reactor_thread)
        endpoints = Endpoints(reactor_thread, reactor.entries)
        self._answers = endpoints.answers | Streaming(reactor_thread).answers
        http = NodeHttp(self.handle)
        listener = Listener(
            loop, self.named, http, lambda: len(http.connections), reactor_thread.hit_limit
        )
        for each in self._sockets:
            listener.add(each, context)
        tasks = [loop.create_task(access.sweep()), loop.create_task(http.sweep())]
        on_begun()
        try:
            await self._stopping.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            listener.close()
            await http.shutdown(0.1)

    # ---- who ----

    @property
    def _reactor(self) -> Reactor:
        assert self._node_host is not None
        return self._node_host.reactor

    def named(self, address: str, port: int) -> tuple[NodeId, str] | None:
        """Return the node that answers there, None if none does."""
        assert self._node_host is not None
        return self._node_host.node_at(self._of_all.index_of(address, port))

    def _chain_of(self, node_name: str) -> Chain | None:
        """Return the certificate of a node as its profile says; None to be signed by itself.

        One that the cluster has not issued yet is a file that is not there: the handshake fails.
        """
        node = self._reactor.kubelets.by_name[node_name]
        kubelet = self._reactor.entries[node].caller.template.model.kubelet
        if kubelet.tls_cert_file and kubelet.tls_private_key_file:
            return Path(kubelet.tls_cert_file), Path(kubelet.tls_private_key_file)
        if self._store is not None and kubelet.server_tls_bootstrap:
            return self._store.path(node_name, CertificateKind.SERVING), None
        return None

    # ---- one request ----

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        protocol = request.protocol
        assert isinstance(protocol, NodeProtocol)
        node = self._node_of(protocol)
        if node is None:
            return _hung_up(request)
        try:
            model = self._reactor.entries[node].caller.template.model
            return await self._answer(request, protocol, node, model)
        except NodeGoneError:
            return _hung_up(request)
        except BugError as error:
            return text(500, f"Internal Error: {error}")

    async def _answer(
        self, request: web.BaseRequest, protocol: NodeProtocol, node: NodeId, model: NodeModel
    ) -> web.StreamResponse:
        configuration = model.kubelet
        has_debugging = configuration.enable_debugging_handlers
        found = route(request.method, request.path, has_debugging=has_debugging)
        if isinstance(found, Answer) and found.is_public:
            return _routed(found)
        refused = await self._access.refusal(request, protocol, configuration)
        if refused is not None:
            return refused
        if isinstance(found, Answer):
            return _routed(found)
        asked = Asked(request, node, configuration, found.parameters)
        return await self._answers[found.endpoint](asked)

    def _node_of(self, protocol: NodeProtocol) -> NodeId | None:
        """Return the node that a connection is to, None if it does not run any more."""
        if protocol.node is None:
            sockname = protocol.sockname
            assert isinstance(sockname, tuple), sockname
            found = self.named(sockname[0], sockname[1])
            if found is None:
                return None
            protocol.node, protocol.node_name = found
        return protocol.node if self._reactor_thread.is_alive(protocol.node) else None


def _routed(answer: Answer) -> web.Response:
    response = text(answer.code, answer.text)
    response.headers.update(answer.headers)
    return response


def _hung_up(request: web.BaseRequest) -> web.Response:
    """Reset a connection: there is no machine at its other end any more."""
    if request.transport is not None:  # None: the client has gone
        request.transport.abort()
    return web.Response(status=503)
