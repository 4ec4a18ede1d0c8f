"""The certificates of the nodes of one process: kept on disk, requested, presented, renewed.

What is kept, as kubelets keep it:
    DIR/cluster                              the cluster that they are of
    DIR/NODE/kubelet-client-current.pem      certificate and key in one file, mode 0600
    DIR/NODE/kubelet-server-current.pem
A certificate that has expired, and every one of another cluster, is of no use and not looked at.

What a run needs before its nodes have certificates:
    credentials   --bootstrap-token, --bootstrap-kubeconfig, or a token made on a local cluster
    approval      by the controller-manager, or by fleet with --approve-csrs
    a directory   --cert-dir, else the local control plane's, or one for each cluster in the
                  user's state directory

How a node gets them; each node's `CertificateManager` says when:
    add -> a stored certificate, or: bootstrap connection, request, certificate -> `on_ready`
    70-90 % of its life -> request, certificate, on a connection for that -> old connection closed
A request goes over a connection with the bootstrap credentials, or, once the node has a
certificate, over one with that; it is closed when the request is done. Keys are made here, 12 us
each, and a request takes 75.

Source: client-go/util/certificate/certificate_store.go, Update, Current;
cmd/kubeadm/app/phases/bootstraptoken/node/token.go; cluster-bootstrap/token/api;
cmd/kubelet/app/server.go, buildKubeletClientConfig, buildClientCertificateManager;
pkg/kubelet/certificate/transport.go, addCertRotation.
Differs: one file is replaced, where a kubelet keeps dated ones and a link to the newest; a kubelet
starts without waiting, as system:anonymous, and is refused until its certificate is there; a
refused POST is repeated after the manager's back-off only.
"""

import asyncio
import contextlib
import datetime as dt
import enum
import logging
import os
import secrets
import ssl
import string
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple, assert_never

import orjson

from fleet.background import Background
from fleet.clock import NS_PER_S, Draws
from fleet.cluster.api_client import CONCURRENCY, Api, Cluster, expect
from fleet.cluster.credentials import ClusterSelection
from fleet.controlplane.directory import Layout, state_home, write_private
from fleet.controlplane.options import ControlPlaneInfo
from fleet.errors import FleetError, SetupError, UsageError, hide
from fleet.host.transports import endpoint_of
from fleet.k8s.effects import NodeId, Timer
from fleet.k8s.objects import CertificateKind, Validity
from fleet.k8s.pods import EventType
from fleet.k8s.well_known import NODE_USER
from fleet.kubelet.node.certificate_manager import (
    CertificateManager,
    CertificateState,
    CertificateTurn,
    ListRequest,
    NewRequest,
    UseCertificate,
    WakeAt,
    WatchRequest,
)
from fleet.profile.node_model import NodeModel
from fleet.profile.secret_variables import BOOTSTRAP_TOKEN_VARIABLE
from fleet.profile.settings import IdentityMode, Settings
from fleet.reactor.calls import Errand
from fleet.reactor.reactor import Reactor
from fleet.wire.api.decode_json import decode_status
from fleet.wire.api.requests import (
    SIGNING_REQUESTS,
    create_signing_request,
    decode_signing_event,
    decode_signing_request,
    decode_signing_requests,
    list_signing_request,
    watch_signing_request,
)
from fleet.wire.http2.messages import Failure, Request, Response, StreamOpened
from fleet.wire.sockets.connection import prepare_context
from fleet.wire.sockets.dials import Endpoint
from fleet.wire.sockets.transport import Transport

FILES = {
    CertificateKind.CLIENT: "kubelet-client-current.pem",
    CertificateKind.SERVING: "kubelet-server-current.pem",
}
CLUSTER = "cluster"
EXPIRED_FOR = dt.timedelta(hours=1)


class CertificateStore:
    """One directory for the nodes of one cluster."""

    def __init__(self, directory: Path, cluster_uid: str) -> None:
        """Make the directory. Raises SetupError if it cannot be written."""
        self.directory = directory
        mark = directory / CLUSTER
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            was = mark.read_text().strip() if mark.exists() else cluster_uid
            if was != cluster_uid:
                for name in FILES.values():
                    for path in directory.glob(f"*/{name}"):
                        path.unlink()
            mark.write_text(f"{cluster_uid}\n")
        except OSError as error:
            raise SetupError(f"--cert-dir {directory}: {error.strerror}") from error

    def path(self, node_name: str, kind: CertificateKind) -> Path:
        return self.directory / node_name / FILES[kind]

    def current(
        self, node_name: str, kind: CertificateKind, now_s: float, hosts: Sequence[str] = ()
    ) -> Validity | None:
        """Return the life of a stored certificate that can be used now, None if there is none.

        One that misses a host is replaced. Source: certSatisfiesTemplateLocked.
        """
        from fleet.controlplane import pki  # noqa: PLC0415 - its library takes 7 MB

        try:
            content = self.path(node_name, kind).read_bytes()
            names, validity = pki.read_pair(content)
        except (OSError, ValueError):
            return None
        is_ours = {NODE_USER + node_name, *hosts} <= names
        return validity if is_ours and now_s < validity.not_after_s else None

    def update(
        self, node_name: str, kind: CertificateKind, certificate: bytes, key: bytes
    ) -> Validity:
        """Store an issued certificate with its key. Raises OSError, and ValueError if it is none.

        The file is complete at every moment.
        """
        from fleet.controlplane import pki  # noqa: PLC0415 - its library takes 7 MB

        validity = pki.validity_of(certificate)
        path = self.path(node_name, kind)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = path.with_suffix(".tmp")
        write_private(fresh, certificate + key)
        fresh.replace(path)
        return validity

    def expire(self, node_name: str, now_s: float) -> bool:
        """Put a client certificate in place of a stored one that was over an hour before `now_s`.

        Its issuer is the same by name only, as nobody here can sign for the authority; a server
        refuses it all the same, with 401. Returns whether there was one. Raises OSError.
        """
        held = self.current(node_name, CertificateKind.CLIENT, now_s)
        if held is None:
            return False
        path = self.path(node_name, CertificateKind.CLIENT)
        from fleet.controlplane import pki  # noqa: PLC0415 - its library takes 7 MB

        over = dt.datetime.fromtimestamp(now_s, dt.UTC) - EXPIRED_FOR
        key_pem, pem = pki.expired(path.read_bytes(), over - EXPIRED_FOR, over)
        self.update(node_name, CertificateKind.CLIENT, pem, key_pem)
        return True


class CertificateContext:
    """A TLS context for one node: its certificate is read at every handshake, as Go's client does.

    All nodes share one `ssl.SSLContext`. OpenSSL gives a new connection what the context has at
    that moment and keeps that, so 6 KB a connection do where a context each takes 23.
    """

    __slots__ = ("_path", "_shared")

    def __init__(self, shared: ssl.SSLContext, path: Path) -> None:
        self._shared = shared
        self._path = str(path)

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_hostname: str
    ) -> ssl.SSLObject:
        """Begin a TLS connection. Raises OSError, also without a usable certificate."""
        self._shared.load_cert_chain(self._path)
        return self._shared.wrap_bio(incoming, outgoing, server_hostname=server_hostname)


SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKEN_LIFE = dt.timedelta(days=30)  # should the run be killed
DIRECTORY_VARIABLE = "FLEET_CERT_DIR"
TOKEN_LETTERS = string.ascii_lowercase + string.digits
ID_LENGTH, SECRET_LENGTH = 6, 16

log = logging.getLogger(__name__)


class Bootstrap(NamedTuple):
    """How nodes ask for their first certificate, and where all of them are kept."""

    endpoint: Endpoint
    context: ssl.SSLContext
    authorization: bytes | None
    store: CertificateStore
    approver: "Approver | None"


class Approver:
    """Approves requests that nodes of this process have made, and no others."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()

    def approve(self, body: bytes) -> None:
        """Take a request as the server returned it to its node."""
        self._waiting.put_nowait(body)

    def start(self, background: Background) -> None:
        """Begin to approve; a request that cannot be read harms no other."""
        for _ in range(CONCURRENCY):
            background.keep("the approval of certificates", self._work)

    async def _work(self) -> None:
        while True:
            request = orjson.loads(await self._waiting.get())
            name = request["metadata"]["name"]
            del request["metadata"]["resourceVersion"]  # another approver may have written
            approved = {
                "type": "Approved",
                "status": "True",
                "reason": "ApprovedByFleet",
                "message": "One of fleet's own nodes asked for it.",
            }
            request["status"] = {"conditions": [approved]}
            path = f"{SIGNING_REQUESTS.decode()}/{name}/approval"
            try:
                expect(await self._api.request("PUT", path, body=request), f"no approval of {name}")
            except FleetError as error:
                log.warning("%s", error)


@contextlib.asynccontextmanager
async def open_bootstrap(
    settings: Settings,
    cluster: Cluster,
    cluster_uid: str,
    local: ControlPlaneInfo | None,
    background: Background,
) -> AsyncIterator[Bootstrap | None]:
    """Provide what bootstrapping needs; None unless nodes have certificates of their own.

    Raises UsageError for an unusable kubeconfig, SetupError if the directory cannot be written.
    """
    if settings.identity is not IdentityMode.CSR:
        yield None
        return
    directory = state_home() / "certificates" / cluster_uid
    if local is not None:
        directory = Layout(local.directory).certificates
    directory = (settings.cert_dir or directory).absolute()
    store = CertificateStore(directory, cluster_uid)
    approver = Approver(cluster.api("approve")) if settings.approve_csrs else None
    async with contextlib.AsyncExitStack() as stack:
        if settings.bootstrap_kubeconfig is not None:
            try:
                user = await ClusterSelection(kubeconfig=settings.bootstrap_kubeconfig).load()
            except UsageError as error:
                text = str(error).replace("--kubeconfig", "--bootstrap-kubeconfig", 1)
                raise UsageError(text) from error
            endpoint = endpoint_of(user)
            context, authorization = user.ssl_context(), user.authorization()
        else:
            user = cluster.credentials
            endpoint = endpoint_of(user)
            context = user.ssl_context(with_client_certificate=False)
            token = settings.bootstrap_token.get_secret_value()
            if not token:
                assert not settings.names_cluster, "checked by Settings"
                token = await stack.enter_async_context(own_token(cluster.api("bootstrap")))
            hide(token)
            authorization = f"Bearer {token}".encode()
            if settings.processes > 1:
                os.environ[BOOTSTRAP_TOKEN_VARIABLE] = token
        if settings.processes > 1:  # the other processes inherit it
            os.environ[DIRECTORY_VARIABLE] = str(directory)
        if approver is not None:
            approver.start(background)
        yield Bootstrap(endpoint, context, authorization, store, approver)


@contextlib.asynccontextmanager
async def own_token(api: Api) -> AsyncIterator[str]:
    """Create a bootstrap token that lives as long as the run. Raises SetupError."""
    number, secret = (
        "".join(secrets.choice(TOKEN_LETTERS) for _ in range(length))
        for length in (ID_LENGTH, SECRET_LENGTH)
    )
    name = f"bootstrap-token-{number}"
    body = {
        "metadata": {"name": name},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "description": "Nodes of a fleet join with it, until its run is over.",
            "token-id": number,
            "token-secret": secret,
            "expiration": (dt.datetime.now(dt.UTC) + TOKEN_LIFE).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "usage-bootstrap-authentication": "true",
        },
    }
    answer = await api.request("POST", SECRETS, body=body)
    made = expect(answer, f"cannot create the Secret {name}")
    try:
        yield f"{number}.{secret}"
    finally:
        with contextlib.suppress(FleetError):
            options = {"preconditions": {"uid": made["metadata"]["uid"]}}
            await api.request("DELETE", f"{SECRETS}/{name}", body=options)


CHECK_NS = 10 * NS_PER_S
"""How often a kubelet looks for a new certificate. Source: transport.go, UpdateTransport."""
SERVING_NS = 1 * NS_PER_S
WARN_NS = 1 * NS_PER_S  # a server that refuses one node refuses thousands
"""When the serving certificate is first asked for: the template is looked at once a second."""
WATCH_S = (300, 600)  # of a reflector
RESOURCE = "certificatesigningrequests"
PRESENT, SERVE = "present", "serve"
_STREAM = 0xCE57


class Step(enum.Enum):
    """What was asked."""

    CREATE = "POST"
    LIST = "LIST"
    WATCH = "WATCH"


@dataclass(slots=True, eq=False)
class CertificateErrand(Errand):
    """One request about a certificate; only the answer to the newest one counts."""

    certificate: "NodeCertificate"
    step: Step

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
    streams_lists: bool = True  # a watch brings the present state
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


@dataclass(eq=False)
class NodeCertificates:
    """See the top of this file. `bootstrap` and `renewal` are transports of its own."""

    _reactor: Reactor
    _draws: Draws
    _store: CertificateStore
    _context: ssl.SSLContext  # of all nodes
    _: KW_ONLY
    bootstrap: Transport
    renewal: Transport
    on_ready: Callable[[NodeId, CertificateContext], None]
    on_renewed: Callable[[NodeId], None]
    approve: Callable[[bytes], None] | None
    _warned_ns: int = -WARN_NS
    _nodes: dict[NodeId, list[NodeCertificate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._clock = self._reactor.clock
        prepare_context(self._context)
        self._reactor.on_certificate_timer = self.on_timer
        self._reactor.wires.all += [self.bootstrap, self.renewal]

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
        context = CertificateContext(self._context, self._store.path(name, CertificateKind.CLIENT))
        streams_lists = model.release.streams_lists
        client = NodeCertificate(self, manager, name, context, streams_lists=streams_lists)
        self._nodes[node] = [client]
        if model.kubelet.server_tls_bootstrap:
            manager = CertificateManager(node, CertificateKind.SERVING)
            self._nodes[node].append(
                NodeCertificate(self, manager, name, client.context, addresses, streams_lists)
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
        self.on_renewed(node)  # what is open was let in with the one before
        self._start(client, None, self._clock.now_ns())

    def waiting(self) -> list[NodeId]:
        """Return the nodes whose kubelets have not begun, for want of a certificate."""
        return [node for node, (client, *_) in self._nodes.items() if not client.begun_ns]

    def on_timer(self, node: NodeId, key: str, now_ns: int) -> None:
        """Take a timer of a node: of one of its managers, or to present a new certificate."""
        if self._reactor.entries[node].kubelet is None:
            return  # powered off, or quarantined
        for certificate in self._nodes.get(node, ()):
            kind = certificate.manager.kind
            if key == PRESENT and kind is CertificateKind.CLIENT:
                self.on_renewed(node)
            elif key == SERVE and kind is CertificateKind.SERVING:
                wall_s = self._clock.wall_ns() / NS_PER_S
                hosts = [address for _, address in certificate.addresses]
                held = self._store.current(certificate.name, kind, wall_s, hosts)
                self._start(certificate, held, now_ns)
            elif key == str(int(kind)):
                turn = self._turn(now_ns)
                certificate.manager.on_timer(turn)
                self._execute(certificate, turn)

    def _turn(self, now_ns: int) -> CertificateTurn:
        return CertificateTurn(self._draws, now_ns, self._clock.wall_ns(), [])

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
                    if now_ns - self._warned_ns >= WARN_NS:
                        self._warned_ns = now_ns
                        why = message.detail or decode_status(message.body)[1]
                        why = why or f"HTTP {message.code}"
                        log.warning("%s: no signing request: %s", certificate.name, why)
                elif self.approve is not None:
                    self.approve(message.body)
                manager.on_created(view, turn)
            elif errand.step is Step.LIST and manager.state is CertificateState.LISTING:
                manager.on_listed(ok=message.code == 200, turn=turn)
            elif errand.step is Step.LIST and message.code == 200:
                self._on_snapshot(certificate, message.body, turn)
            else:
                manager.on_watch_ended(turn)
        elif isinstance(message, bytes):
            self._on_events(certificate, message, turn)
        self._execute(certificate, turn)

    def _on_snapshot(
        self, certificate: NodeCertificate, body: bytes, turn: CertificateTurn
    ) -> None:
        """Take what a kubelet without watch-lists lists, and watch from there on."""
        version, views = decode_signing_requests(body)
        if not views:
            certificate.manager.on_watch_ended(turn)
        for view in views:
            certificate.manager.on_seen(view, turn)
            if not turn.out:
                self._watch(certificate, view.name, turn, version)

    def _watch(
        self, certificate: NodeCertificate, name: str, turn: CertificateTurn, version: str = ""
    ) -> None:
        manager = certificate.manager
        certificate.partial = b""
        low, high = WATCH_S
        share = self._draws.uniform(manager.node, _STREAM + manager.kind, turn.now_ns)
        timeout_s = int(low + share * (high - low))
        certificate.send(Step.WATCH, watch_signing_request(name, timeout_s, version))

    def _on_events(self, certificate: NodeCertificate, data: bytes, turn: CertificateTurn) -> None:
        *lines, certificate.partial = (certificate.partial + data).split(b"\n")
        for line in lines:
            kind, view = decode_signing_event(line)
            if view is not None and view.refusal:
                log.warning("%s: %s was refused: %s", certificate.name, view.name, view.refusal)
            if view is not None:
                seen = None if kind is EventType.DELETED else view
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
                case WatchRequest(name) if certificate.streams_lists:
                    self._watch(certificate, name, turn)
                case WatchRequest(name):
                    certificate.send(Step.LIST, list_signing_request(name, is_snapshot=True))
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
        self.on_ready(node, client.context)
        if len(self._nodes[node]) > 1:
            self._reactor.set_timer(node, now_ns + SERVING_NS, Timer.CERTIFICATE, SERVE)

    def _connect(self, certificate: NodeCertificate) -> None:
        """Open the connection of a request: with the own certificate, if there is a good one."""
        wall_s = self._clock.wall_ns() / NS_PER_S
        held = self._store.current(certificate.name, CertificateKind.CLIENT, wall_s)
        if held is None:
            certificate.wire = self.bootstrap
            self.bootstrap.open_pool(certificate.pool)
        else:
            certificate.wire = self.renewal
            self.renewal.open_pool(certificate.pool, ssl_context=certificate.context)

    def _count(self, errand: CertificateErrand, message: Response | StreamOpened) -> None:
        code = message.code if isinstance(message, Response) else 200
        if errand.step is Step.WATCH and code == 200 and isinstance(message, Response):
            return  # the end of one that was counted as it opened
        if isinstance(message, Response) and message.failure is Failure.OWN_LIMIT:
            return  # the transport has counted it
        took_us = (message.arrived_ns - message.sent_ns) // 1000
        self._reactor.counts.requests.record((errand.step.value, RESOURCE), code, took_us)
