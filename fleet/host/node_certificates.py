"""The certificates of the nodes of one process: requested, stored, presented, renewed.

    add -> a stored certificate, or: bootstrap connection, request, certificate -> `on_ready`
    70-90 % of its life -> request, certificate, on a connection for that -> old connection closed

Carries out what each node's `CertificateManager` asks for. A request goes over a connection with
the bootstrap credentials, or, once the node has a certificate, over one with that; it is closed
when the request is done. Keys are made here, 12 us each, and a request takes 75.
Source: cmd/kubelet/app/server.go, buildKubeletClientConfig, buildClientCertificateManager;
pkg/kubelet/certificate/transport.go, addCertRotation.
Differs: a kubelet starts without waiting, as system:anonymous, and is refused until its
certificate is there; a refused POST is repeated after the manager's back-off only.
"""

import enum
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from fleet.clock import NS_PER_S, Draws
from fleet.host.certificate_store import CertificateContext, CertificateStore
from fleet.k8s.effects import NodeId, Timer
from fleet.k8s.objects import CertificateKind, Validity
from fleet.kubelet.node.certificate_manager import (
    CertificateManager,
    CertificateTurn,
    ListRequest,
    NewRequest,
    UseCertificate,
    WakeAt,
    WatchRequest,
)
from fleet.profile.node_model import NodeModel
from fleet.reactor.client_tally import NO_DURATION
from fleet.reactor.reactor import Reactor
from fleet.reactor.tokens import Errand
from fleet.wire.api.decode_json import decode_status
from fleet.wire.api.requests import (
    create_signing_request,
    decode_signing_event,
    decode_signing_request,
    list_signing_request,
    watch_signing_request,
)
from fleet.wire.http2.messages import Failure, Request, Response, StreamOpened
from fleet.wire.sockets.connection import prepare_context
from fleet.wire.sockets.transport import Transport

CHECK_NS = 10 * NS_PER_S
"""How often a kubelet looks for a new certificate. Source: transport.go, UpdateTransport."""
SERVING_NS = 1 * NS_PER_S
WARN_NS = 1 * NS_PER_S  # a server that refuses one node refuses thousands
"""When the serving certificate is first asked for: the template is looked at once a second."""
WATCH_S = (300, 600)  # of a reflector
RESOURCE = "certificatesigningrequests"
PRESENT, SERVE = "present", "serve"
_STREAM = 0xCE57

log = logging.getLogger(__name__)


class Step(enum.Enum):
    """What was asked."""

    CREATE = "POST"
    LIST = "LIST"
    WATCH = "WATCH"


class CertificateErrand(Errand):
    """One request about a certificate; only the answer to the newest one counts."""

    __slots__ = ("certificate", "step")

    def __init__(self, certificate: "NodeCertificate", step: Step) -> None:
        self.certificate = certificate
        self.step = step

    def on_message(self, message: object, now_ns: int) -> None:
        """Take what the transport brought."""
        self.certificate.owner.on_message(self, message, now_ns)


@dataclass(slots=True, eq=False)
class NodeCertificate:
    """One certificate of a node, and the request that is under way for it."""

    owner: "NodeCertificates"
    manager: CertificateManager
    name: str
    context: CertificateContext  # of the client certificate
    addresses: tuple[tuple[str, str], ...] = ()  # of a serving certificate
    begun_ns: int = 0
    errand: CertificateErrand | None = None
    wire: Transport | None = None  # while a request is under way
    key: bytes = b""
    partial: bytes = b""

    @property
    def pool(self) -> int:
        """The number of its connection."""
        return self.manager.node * len(CertificateKind) + self.manager.kind

    def send(self, step: Step, request: Request) -> None:
        """Send a request; what still comes of an earlier one is ignored."""
        assert self.wire is not None, self.name
        self.errand = CertificateErrand(self, step)
        self.wire.send(self.pool, request, self.errand)

    def close(self) -> None:
        """Close the connection of a request, and give up what is on it."""
        self.errand = None
        if self.wire is not None:
            self.wire.close_pool(self.pool)
            self.wire = None


class NodeCertificates:
    """See the top of this file. `bootstrap` and `renewal` are transports of its own."""

    def __init__(
        self,
        reactor: Reactor,
        draws: Draws,
        store: CertificateStore,
        context: ssl.SSLContext,
        bootstrap: Transport,
        renewal: Transport,
        *,
        on_ready: Callable[[NodeId, CertificateContext], None],
        on_renewed: Callable[[NodeId], None],
        approve: Callable[[bytes], None] | None,
    ) -> None:
        self._reactor = reactor
        self._clock = reactor.clock
        self._draws = draws
        self._store = store
        prepare_context(context)
        self._context = context  # of all nodes
        self._bootstrap = bootstrap
        self._renewal = renewal
        self._on_ready = on_ready
        self._on_renewed = on_renewed
        self._approve = approve
        self._warned_ns = -WARN_NS
        self._nodes: dict[NodeId, list[NodeCertificate]] = {}
        reactor.on_certificate_timer = self.on_timer
        reactor.wires.all += [bootstrap, renewal]

    def add(
        self,
        node: NodeId,
        name: str,
        addresses: tuple[tuple[str, str], ...],
        model: NodeModel,
    ) -> None:
        """Get a node its certificates; `on_ready` is called as soon as it can speak for itself.

        Its server's certificate, where the profile asks for one, is for these (type, address)es.
        """
        rotates = model.kubelet.rotate_certificates
        manager = CertificateManager(node, CertificateKind.CLIENT, rotates=rotates)
        client = NodeCertificate(self, manager, name, self._context_of(name))
        self._nodes[node] = [client]
        if model.kubelet.server_tls_bootstrap:
            manager = CertificateManager(node, CertificateKind.SERVING)
            self._nodes[node].append(
                NodeCertificate(self, manager, name, client.context, addresses)
            )
        held = self._store.current(name, CertificateKind.CLIENT, self._clock.wall_ns() / NS_PER_S)
        now_ns = self._clock.now_ns()
        self._start(client, held, now_ns)
        if held is not None:
            self._begin(node, client, now_ns)

    def forget(self, node: NodeId) -> bool:
        """Drop a node that is gone; return whether it spoke for itself already."""
        certificates = self._nodes.pop(node)
        for certificate in certificates:
            certificate.close()
        return certificates[0].begun_ns > 0

    def expire(self, node: NodeId) -> None:
        """Let the life of a node's client certificate be over: it must bootstrap once more.

        The server refuses what it still sends (401), and the manager finds no certificate that it
        could renew with. Source: certificate_manager.go, Current; cmd/kubelet/app/server.go,
        buildClientCertificateManager, newClientsetFn.
        Differs: a kubelet that gets no certificate for 5 minutes ends; ours goes on asking.
        """
        if node not in self._nodes or not self._nodes[node][0].begun_ns:
            return  # it has none yet
        client = self._nodes[node][0]
        try:
            self._store.expire(client.name, self._clock.wall_ns() / NS_PER_S)
        except OSError as error:
            log.warning("%s: the certificate cannot be replaced: %s", client.name, error)
            return
        self._on_renewed(node)  # what is open was let in with the one before
        self._start(client, None, self._clock.now_ns())

    def waiting(self) -> list[NodeId]:
        """Return the nodes whose kubelets have not begun, for want of a certificate."""
        return [node for node, (client, *_) in self._nodes.items() if not client.begun_ns]

    def has_begun(self, node: NodeId) -> bool:
        """Return whether the kubelet of a node has started."""
        return self._nodes[node][0].begun_ns > 0

    async def close(self) -> None:
        """Close every connection."""
        await self._bootstrap.close()
        await self._renewal.close()

    def on_timer(self, node: NodeId, key: str, now_ns: int) -> None:
        """Take a timer of a node: of one of its managers, or to present a new certificate."""
        if self._reactor.entries[node].kubelet is None:
            return  # powered off, or quarantined
        for certificate in self._nodes.get(node, ()):
            kind = certificate.manager.kind
            if key == PRESENT and kind is CertificateKind.CLIENT:
                self._on_renewed(node)
            elif key == SERVE and kind is CertificateKind.SERVING:
                wall_s = self._clock.wall_ns() / NS_PER_S
                self._start(
                    certificate, self._store.current(certificate.name, kind, wall_s), now_ns
                )
            elif key == str(int(kind)):
                turn = self._turn(now_ns)
                certificate.manager.on_timer(turn)
                self._execute(certificate, turn)

    def _turn(self, now_ns: int) -> CertificateTurn:
        return CertificateTurn(self._draws, now_ns, self._clock.wall_ns(), [])

    def _warn(self, name: str, why: str, now_ns: int) -> None:
        if now_ns - self._warned_ns >= WARN_NS:
            self._warned_ns = now_ns
            log.warning("%s: no signing request: %s", name, why)

    def on_message(self, errand: CertificateErrand, message: object, now_ns: int) -> None:
        """Take what came for a request."""
        certificate = errand.certificate
        if certificate.errand is not errand:
            return  # given up
        if isinstance(message, Response | StreamOpened):
            self._count(errand, message)
        turn = self._turn(now_ns)
        manager = certificate.manager
        if isinstance(message, Response):
            if errand.step is Step.CREATE:
                view = decode_signing_request(message.body) if message.code == 201 else None
                if view is None:
                    self._warn(certificate.name, _why(message), now_ns)
                elif self._approve is not None:
                    self._approve(message.body)
                manager.on_created(view, turn)
            elif errand.step is Step.LIST:
                manager.on_listed(ok=message.code == 200, turn=turn)
            else:
                manager.on_watch_ended(turn)
        elif isinstance(message, bytes):
            self._on_events(certificate, message, turn)
        self._execute(certificate, turn)

    def _on_events(self, certificate: NodeCertificate, data: bytes, turn: CertificateTurn) -> None:
        *lines, certificate.partial = (certificate.partial + data).split(b"\n")
        for line in lines:
            kind, view = decode_signing_event(line)
            if view is not None and view.refusal:
                log.warning("%s: %s was refused: %s", certificate.name, view.name, view.refusal)
            if kind == "DELETED" or view is not None:
                seen = None if kind == "DELETED" else view
                certificate.manager.on_seen(seen, turn)

    def _start(self, certificate: NodeCertificate, held: Validity | None, now_ns: int) -> None:
        turn = self._turn(now_ns)
        certificate.manager.start(held, turn)
        self._execute(certificate, turn)

    def _execute(self, certificate: NodeCertificate, turn: CertificateTurn) -> None:
        """Do what a manager asked for, also what follows from that."""
        for action in turn.out:
            match action:
                case WakeAt(due_ns):
                    manager = certificate.manager
                    key = str(int(manager.kind))
                    self._reactor.set_timer(NodeId(manager.node), due_ns, Timer.CERTIFICATE, key)
                case NewRequest():
                    from fleet.controlplane.pki import new_request  # noqa: PLC0415 - see there

                    certificate.key, pem = new_request(certificate.name, certificate.addresses)
                    certificate.close()
                    self._connect(certificate)
                    kind = certificate.manager.kind
                    certificate.send(Step.CREATE, create_signing_request(kind, pem))
                case ListRequest(name):
                    certificate.send(Step.LIST, list_signing_request(name))
                case WatchRequest(name):
                    certificate.partial = b""
                    low, high = WATCH_S
                    node = certificate.manager.node
                    share = self._draws.uniform(
                        node, _STREAM + certificate.manager.kind, turn.now_ns
                    )
                    timeout_s = int(low + share * (high - low))
                    certificate.send(Step.WATCH, watch_signing_request(name, timeout_s))
                case UseCertificate(pem):
                    self._use(certificate, pem, turn)
                case _:
                    assert_never(action)

    def _use(self, certificate: NodeCertificate, pem: bytes, turn: CertificateTurn) -> None:
        """Store a certificate; a node that waited for its first one starts."""
        manager = certificate.manager
        held = None
        try:
            held = self._store.update(certificate.name, manager.kind, pem, certificate.key)
        except (OSError, ValueError) as error:
            log.warning("%s: the certificate cannot be kept: %s", certificate.name, error)
        certificate.close()
        certificate.key = b""
        manager.on_stored(held, turn)
        node = NodeId(manager.node)
        if held is None or manager.kind is CertificateKind.SERVING:
            return
        if not certificate.begun_ns:
            self._begin(node, certificate, turn.now_ns)
        else:
            ticks = (turn.now_ns - certificate.begun_ns) // CHECK_NS + 1
            due_ns = certificate.begun_ns + ticks * CHECK_NS
            self._reactor.set_timer(node, due_ns, Timer.CERTIFICATE, PRESENT)

    def _begin(self, node: NodeId, client: NodeCertificate, now_ns: int) -> None:
        """Let a node speak with its own certificate."""
        client.begun_ns = now_ns
        self._on_ready(node, client.context)
        if len(self._nodes[node]) > 1:
            self._reactor.set_timer(node, now_ns + SERVING_NS, Timer.CERTIFICATE, SERVE)

    def _connect(self, certificate: NodeCertificate) -> None:
        """Open the connection of a request: with the own certificate, if there is a good one."""
        wall_s = self._clock.wall_ns() / NS_PER_S
        held = self._store.current(certificate.name, CertificateKind.CLIENT, wall_s)
        if held is None:
            certificate.wire = self._bootstrap
            self._bootstrap.open_pool(certificate.pool)
        else:
            certificate.wire = self._renewal
            self._renewal.open_pool(certificate.pool, ssl_context=certificate.context)

    def _context_of(self, name: str) -> CertificateContext:
        return CertificateContext(self._context, self._store.path(name, CertificateKind.CLIENT))

    def _count(self, errand: CertificateErrand, message: Response | StreamOpened) -> None:
        code = message.code if isinstance(message, Response) else 200
        if errand.step is Step.WATCH and code == 200 and isinstance(message, Response):
            return  # the end of one that was counted as it opened
        if isinstance(message, Response) and message.failure is Failure.OWN_LIMIT:
            return  # the transport has counted it
        took_us = (message.arrived_ns - message.sent_ns) // 1000
        self._reactor.counts.requests.record((errand.step.value, RESOURCE), code, took_us)
        tally = self._reactor.entries[errand.certificate.manager.node].client
        own_us = NO_DURATION if errand.step is Step.WATCH else took_us
        self._reactor.clients.count(tally, errand.step.value, code, own_us)


def _why(response: Response) -> str:
    """Say in one line why a request was refused."""
    return response.detail or decode_status(response.body)[1] or f"HTTP {response.code}"
