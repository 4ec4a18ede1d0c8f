"""What kubelets read of Services, RuntimeClasses and CertificateSigningRequests."""

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

from fleet.k8s.schema import Record, Text, kind, member


class Owner(Record, frozen=True):
    """What is read of an owner. Source: meta/v1 OwnerReference."""

    uid: str = ""
    kind: str = ""
    api_version: str = ""
    controller: bool = False


def controller_uid(owners: tuple[Owner, ...]) -> str:
    """Return the uid of the owner that is the controller, "" if there is none."""
    return next((each.uid for each in owners if each.controller), "")


def _drivers(listed: list[dict[str, Any]]) -> tuple[tuple[str, str, frozenset[str], int], ...]:
    return tuple(
        (
            each["name"],
            each.get("nodeID", ""),
            frozenset(each.get("topologyKeys", ())),
            each.get("allocatable", {}).get("count", 0),
        )
        for each in listed
    )


if TYPE_CHECKING:
    Drivers = tuple[tuple[str, str, frozenset[str], int], ...]
else:
    Drivers = kind(_drivers)


class CSINodeView(Record, frozen=True):
    """The owner of a CSINode decides whether it is ours."""

    resource_version: str = member("metadata/resourceVersion")
    owners: tuple[Owner, ...] = member("metadata/ownerReferences", ())
    body: bytes = b""  # the whole of it, for a PUT
    drivers: Drivers = member("spec/drivers", ())
    """Name, the node's ID, topology keys, how many volumes a node takes or 0."""

    @property
    def owner_uid(self) -> str:
        """Return the uid of the Node that owns it, "" if none does."""
        return next((each.uid for each in self.owners if each.kind == "Node"), "")


class ServicePort(Record, frozen=True):
    """Source: core/v1 ServicePort."""

    port: int
    name: str = ""
    protocol: str = "TCP"


class ServiceView(Record, frozen=True):
    """What is read of a Service; nodes that see the same share one."""

    namespace: str = member("metadata/namespace")
    name: str = member("metadata/name")
    resource_version: str = member("metadata/resourceVersion", "")
    cluster_ip: str = member("spec/clusterIP", "")
    ports: tuple[ServicePort, ...] = member("spec/ports", ())


class RuntimeClassView(Record, frozen=True):
    """What is read of a RuntimeClass. Source: node/v1 RuntimeClass."""

    name: str = member("metadata/name")
    resource_version: str = member("metadata/resourceVersion", "")
    handler: Text = ""


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
