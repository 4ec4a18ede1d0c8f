"""What kubelets read of Services, RuntimeClasses and CertificateSigningRequests.

Source of the variables of Services: pkg/kubelet/kubelet_pods.go, getServiceEnvVarMap;
pkg/kubelet/envvars/envvars.go, FromServices, makeLinkVariables.
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple

MASTER_SERVICE = ("default", "kubernetes")
NO_ADDRESS = frozenset(("", "None"))


class ServicePort(NamedTuple):
    """Source: core/v1 ServicePort."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    target: int | str = 0  # the pods' port, or its name; 0 for the same
    node_port: int = 0


class ServiceView(NamedTuple):
    """What is read of a Service; nodes that see the same share one."""

    namespace: str
    name: str
    resource_version: str
    cluster_ip: str
    ports: tuple[ServicePort, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    external_ips: tuple[str, ...] = ()
    external_name: str = ""
    is_sticky: bool = False  # sessionAffinity: ClientIP
    shows_unready: bool = False  # publishNotReadyAddresses


def service_variables(
    services: Mapping[tuple[str, str], ServiceView], namespace: str, *, has_links: bool
) -> dict[str, str]:
    """Return the variables of a namespace: those of the master always, of others with links."""
    found: dict[str, ServiceView] = {}
    for key, service in services.items():
        if service.cluster_ip in NO_ADDRESS or not service.ports:
            continue
        if key == MASTER_SERVICE:
            found.setdefault(service.name, service)
        elif service.namespace == namespace and has_links:
            found[service.name] = service
    made: dict[str, str] = {}
    for service in found.values():
        _add(made, service)
    return made


def _add(made: dict[str, str], service: ServiceView) -> None:
    prefix = _variable_name(service.name)
    host = service.cluster_ip
    made[f"{prefix}_SERVICE_HOST"] = host
    made[f"{prefix}_SERVICE_PORT"] = str(service.ports[0].port)
    for each in service.ports:
        if each.name:
            made[f"{prefix}_SERVICE_PORT_{_variable_name(each.name)}"] = str(each.port)
    for at, each in enumerate(service.ports):
        protocol = each.protocol.lower()
        url = f"{protocol}://{f'[{host}]' if ':' in host else host}:{each.port}"
        if not at:
            made[f"{prefix}_PORT"] = url
        start = f"{prefix}_PORT_{each.port}_{each.protocol.upper()}"
        made[start] = url
        made[f"{start}_PROTO"] = protocol
        made[f"{start}_PORT"] = str(each.port)
        made[f"{start}_ADDR"] = host


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()


class RuntimeClassView(NamedTuple):
    """What is read of a RuntimeClass. Source: node/v1 RuntimeClass."""

    name: str
    resource_version: str
    handler: str


class CertificateKind(enum.IntEnum):
    """Which of a kubelet's two certificates."""

    CLIENT = 0
    SERVING = 1


class Validity(NamedTuple):
    """The life of a certificate, in seconds of the wall clock."""

    not_before_s: int
    not_after_s: int


class SigningRequestView(NamedTuple):
    """A CertificateSigningRequest as its requester reads it."""

    name: str
    uid: str
    certificate: bytes = b""  # PEM, once it is issued
    is_approved: bool = False
    refusal: str = ""  # the message of Denied or Failed; never empty then
