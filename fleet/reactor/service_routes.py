"""Where the Services lead to: which pod of this process a connection to one is handed to.

    a name of DNS -> an address -> the Service that has it -> one of its ready pods, and its port

The pods are those that a Service's selector chooses and that are Ready: what endpoint controllers
would write about them, without reading it.
Source: pkg/proxy/iptables/proxier.go for what is refused and what waits; pkg/controller/util/
endpointslice and k8s.io/endpointslice, podEndpointChanged, FindPort; the DNS specification of
kubernetes/dns.
Differs: of a Service without selector nothing is known; topology and traffic policies choose
nothing; sticky sessions last for ever; a pod's own name of DNS leads nowhere.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fleet.k8s.pods import Pod, PodStatus
from fleet.k8s.services import NO_ADDRESS, ServicePort, ServiceView
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.reactor.roster import Roster

_SUFFIXES = ((), ("svc",), ("svc", "cluster", "local"))
_DEPTH_MAX = 4
"""Of names that stand for names."""


class Route(NamedTuple):
    """A Service that was found, and which of its ports is meant."""

    service: ServiceView
    port: ServicePort


class ServiceRoutes:
    """What all containers of a process find."""

    __slots__ = ("_count", "_roster", "_services")

    def __init__(self, roster: Roster, services: Mapping[tuple[str, str], ServiceView]) -> None:
        self._roster = roster
        self._services = services
        self._count = 0  # of connections, so that they go round

    def resolved(self, name: str, namespace: str, depth: int = 0) -> str:
        """Return the address of a name as a pod of a namespace finds it, "" if there is none."""
        parts = name.removesuffix(".").split(".")
        service = None
        if len(parts) == 1:
            service = self._services.get((namespace, name))
        elif tuple(parts[2:]) in _SUFFIXES:
            service = self._services.get((parts[1], parts[0]))
        if service is None or depth > _DEPTH_MAX:
            return ""
        if service.external_name:
            return self.resolved(service.external_name, namespace, depth + 1)
        if service.cluster_ip not in NO_ADDRESS:
            return service.cluster_ip
        ready = next(self._ready(service), None)  # headless
        if ready is None or ready[0].pods is None:
            return ""
        return ready[0].pods.last_status(ready[1]).pod_ip

    def find(self, address: str, port: int, protocol: str, *, is_node: bool) -> Route | None:
        """Return the Service that has a port of an address, None if none has."""
        for service in self._services.values():
            is_own = address == service.cluster_ip or address in service.external_ips
            for each in service.ports:
                number = each.port if is_own else each.node_port if is_node else 0
                if number == port and each.protocol == protocol:
                    return Route(service, each)
        return None

    def backend(self, route: Route, client: str) -> tuple[VirtualKubelet, Pod, int] | None:
        """Return whom a connection is handed to, None if nobody is ready."""
        service, port = route
        found = [
            (kubelet, pod, number)
            for kubelet, pod in self._ready(service)
            if (number := _port_of(pod, port))
        ]
        if not found:
            return None
        found.sort(key=lambda each: each[1].uid)
        self._count += 1
        at = zlib.crc32(client.encode()) if service.is_sticky else self._count
        return found[at % len(found)]

    def _ready(self, service: ServiceView) -> Iterator[tuple[VirtualKubelet, Pod]]:
        """Yield the pods of a Service that are to be asked. Source: ShouldPodBeInEndpoints."""
        if not service.selector:
            return
        wanted = set(service.selector)
        for _, kubelet in self._roster.living():
            if kubelet.pods is None:
                continue
            for worker in kubelet.pods.workers.values():
                pod = worker.pod
                if pod.namespace != service.namespace or pod.deleting:
                    continue
                if not wanted <= set(pod.labels):
                    continue
                if service.shows_unready or _is_ready(kubelet.pods.last_status(pod)):
                    yield kubelet, pod


def _is_ready(status: PodStatus) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in status.conditions)


def _port_of(pod: Pod, port: ServicePort) -> int:
    """Return the number of a pod's port, 0 if it has none of that name. Source: FindPort."""
    if isinstance(port.target, int):
        return port.target or port.port
    if port.target.isdecimal():
        return int(port.target)
    for spec in pod.spec.containers:
        for each in spec.ports:
            if (each.name, each.protocol) == (port.target, port.protocol):
                return each.port
    return 0
