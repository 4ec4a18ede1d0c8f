"""The pods of one process as they reach one another: by address, without a wire.

    who asks -> the node whose address it is -> a pod that listens there -> its server's answer

Nothing is kept of it, and an exchange takes no time. What is looked for are the nodes of this
process, one after the other: it is done when a command, a hook or a server asks, which is seldom.
Differs: network policies forbid nothing; a kubelet that is down still shows its pods.
"""

from collections.abc import Iterator, Mapping

from fleet.k8s.addresses import each_of
from fleet.k8s.pods import Pod
from fleet.k8s.services import ServiceView
from fleet.k8s.streams import Refusal
from fleet.k8s.well_known import ALL_ADDRESSES
from fleet.kubelet.host_interface import PortAnswer, answer_datagram, answer_of
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.reactor.roster import Roster
from fleet.reactor.service_routes import ServiceRoutes
from fleet.runtime.http_message import HttpReply, HttpRequest, Network, Unreachable
from fleet.runtime.ports import PortSession

REFUSED = Unreachable(is_refused=True)
NOBODY_THERE = Unreachable()
NO_SUCH_NAME = Unreachable(is_unknown=True)
NOT_TLS = HttpReply(400, b"Client sent an HTTP request to an HTTPS server.\n")
NO_SERVICES: Mapping[tuple[str, str], ServiceView] = {}
STREAM_MAX = 64 << 10
_LOOPBACK = "127.0.0.1"
_OWN = frozenset(("localhost", _LOOPBACK))


class PodNetwork:
    """What all nodes of a process share."""

    __slots__ = ("_roster", "services")

    def __init__(
        self, roster: Roster, services: Mapping[tuple[str, str], ServiceView] = NO_SERVICES
    ) -> None:
        self._roster = roster
        self.services = ServiceRoutes(roster, services)

    def seen_from(self, address: str, hostname: str, namespace: str, now_ns: int) -> Network:
        """Return whom a container reaches that something runs in since an instant."""
        return _View(self, address, hostname, namespace, now_ns)

    def pods_at(self, address: str) -> Iterator[tuple[VirtualKubelet, Pod]]:
        """Yield the pods that have an address; those of the host's network share its own."""
        for _, kubelet in self._roster.living():
            loop = kubelet.pods
            if loop is None or not loop.runtime.may_have(address):
                continue
            for uid, sandbox in loop.runtime:
                worker = loop.workers.get(uid)
                if address in each_of(sandbox.ips) and sandbox.ready and worker is not None:
                    yield kubelet, worker.pod

    def mapped(
        self, address: str, port: int, protocol: str, node: str
    ) -> Iterator[tuple[VirtualKubelet, Pod, int]]:
        """Yield the pods that take a port of a node's address, and which of theirs it is.

        `address` may be the node's loopback device. Source: the CNI plugin portmap.
        """
        for _, kubelet in self._roster.living():
            if node not in each_of(kubelet.facts.host_ips) or kubelet.pods is None:
                continue
            for worker in kubelet.pods.workers.values():
                pod = worker.pod
                for spec in (*pod.spec.containers, *pod.spec.init_containers):
                    for each in spec.ports:
                        is_meant = each.host_port == port and each.protocol == protocol
                        if is_meant and each.host_ip in {"", ALL_ADDRESSES, address}:
                            yield kubelet, pod, each.port

    def is_of_node(self, address: str) -> bool:
        """Return whether a node has an address."""
        return any(address in each_of(each.facts.host_ips) for _, each in self._roster.living())


class _View:
    """The network as one container sees it."""

    __slots__ = ("_address", "_begun_ns", "_hostname", "_namespace", "_pods")

    def __init__(
        self, pods: PodNetwork, address: str, hostname: str, namespace: str, now_ns: int
    ) -> None:
        self._pods = pods
        self._address = address
        self._hostname = hostname
        self._namespace = namespace
        self._begun_ns = now_ns

    def request(
        self, host: str, port: int, request: HttpRequest, after_ns: int
    ) -> HttpReply | Unreachable:
        """Ask a server."""
        found = self._find(host, port, after_ns)
        if isinstance(found, Unreachable):
            return found
        if (found.tls is not None) != request.is_tls:
            return REFUSED if found.tls is None else NOT_TLS
        asked = request._replace(client=self._address)
        return found.answer(asked, self._begun_ns + after_ns)

    def connect(self, host: str, port: int, after_ns: int) -> Unreachable | None:
        """Open a connection, and close it; None if somebody listens."""
        found = self._find(host, port, after_ns)
        return found if isinstance(found, Unreachable) else None

    def datagram(self, host: str, port: int, text: str, after_ns: int) -> str | None:
        """Send a datagram; return the answer, None if there is none."""
        now_ns = self._begun_ns + after_ns
        address = self.resolve(host)
        found = self._candidates(address, port, "UDP", is_loopback=host in _OWN)
        for kubelet, pod, own in found:
            said = answer_datagram(kubelet, pod, own, text, self._address, now_ns)
            if said is not None:
                return said
        return None

    def stream(self, host: str, port: int, text: str, after_ns: int) -> str | Unreachable:
        """Connect, send some text and hear what comes."""
        found = self._find(host, port, after_ns)
        if isinstance(found, Unreachable):
            return found
        now_ns = self._begun_ns + after_ns
        session = PortSession(found.answer, found.greeting, only_http=found.only_http)
        session.write(text.encode("utf-8", "surrogateescape"), now_ns)
        return session.advance(STREAM_MAX, now_ns).data.decode("utf-8", "surrogateescape")

    def _candidates(
        self, address: str, port: int, protocol: str, *, is_loopback: bool
    ) -> Iterator[tuple[VirtualKubelet, Pod, int]]:
        """Yield the pods that may listen on a port of an address, and which of theirs it is."""
        is_node = self._pods.is_of_node(address)
        route = self._pods.services.find(address, port, protocol, is_node=is_node)
        if route is not None:
            backend = self._pods.services.backend(route, self._address)
            if backend is not None:
                yield backend
            return
        if is_node:
            at = _LOOPBACK if is_loopback else address
            yield from self._pods.mapped(at, port, protocol, address)
        for kubelet, pod in self._pods.pods_at(address):
            yield kubelet, pod, port

    def _find(self, host: str, port: int, after_ns: int) -> PortAnswer | Unreachable:
        address = self.resolve(host)
        if not address:
            return NO_SUCH_NAME
        is_there = False
        found = self._candidates(address, port, "TCP", is_loopback=host in _OWN)
        for kubelet, pod, own in found:
            is_there = True
            answer = answer_of(kubelet, pod, own, self._begun_ns + after_ns)
            if not isinstance(answer, Refusal):
                return answer
        return REFUSED if is_there or self._refuses(address, port) else NOBODY_THERE

    def _refuses(self, address: str, port: int) -> bool:
        """Return whether an address says that nobody listens: a node, a Service without pods."""
        if self._pods.is_of_node(address):
            return True
        return self._pods.services.find(address, port, "TCP", is_node=False) is not None

    def resolve(self, name: str) -> str:
        """Return the address of a name, "" if nobody knows it."""
        host = name
        if host in _OWN or host == self._hostname:
            return self._address
        parts = host.split(".")
        if len(parts) == 4 and all(each.isdecimal() for each in parts):
            return host
        return self._pods.services.resolved(host, self._namespace)
