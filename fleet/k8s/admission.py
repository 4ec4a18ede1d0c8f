"""What admission and the device managers read of pods and nodes: records that templates share.

Nearly every field of nearly every pod is the default, and a pod whose fields all are is `PLAIN`.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import convert

from fleet.k8s.objects import Owner, controller_uid
from fleet.k8s.schema import Record, kind, member
from fleet.k8s.selectors import NodeTerms
from fleet.k8s.well_known import HOSTNAME_LABEL


class HostPort(NamedTuple):
    """A port of the node that a pod takes."""

    protocol: str
    ip: str  # "0.0.0.0" for all
    port: int


class DeviceRequest(NamedTuple):
    """An extended resource in the limits of a container."""

    container: str
    resource: str
    amount: int
    reusable: bool = False  # an init container's that ends: the next container may have them


class PodClaim(NamedTuple):
    """An entry of spec.resourceClaims, with the name that the status gives a generated claim."""

    name: str
    claim: str  # the ResourceClaim's name, "" when there is none (yet)
    generated: bool = False  # made from a template: the pod must own it
    is_needless: bool = False  # the status says that no claim was made for it


class ContainerClaim(NamedTuple):
    """An entry of a container's resources.claims."""

    container: str
    claim: str
    request: str


class AdmissionSpec(NamedTuple):
    """What decides whether a node takes a pod, apart from tolerations, priority and QoS class."""

    requests: tuple[tuple[str, int], ...] = ()  # of the whole pod; cpu in thousandths
    ports: tuple[HostPort, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    node_affinity: NodeTerms | None = None
    os: str = ""
    sysctls: tuple[str, ...] = ()
    host_ipc: bool = False
    strict_groups: bool = False  # supplementalGroupsPolicy: Strict
    app_armor: bool = False  # a profile other than Unconfined
    pod_level: bool = False  # resources of the pod as a whole
    features: tuple[str, ...] = ()  # what the node must declare
    devices: tuple[DeviceRequest, ...] = ()
    claims: tuple[PodClaim, ...] = ()
    container_claims: tuple[ContainerClaim, ...] = ()


PLAIN = AdmissionSpec()


class NodeState(NamedTuple):
    """What of a Node's own object decides about pods; nodes of one kind and zone share it."""

    unschedulable: bool = False
    labels: tuple[tuple[str, str], ...] = ()  # without a hostname that is the node's name
    taints: tuple[tuple[str, str, str], ...] = ()  # those of effect NoExecute
    extended: tuple[tuple[str, int, int], ...] = ()  # resource, capacity, allocatable; -1: none
    annotations: tuple[tuple[str, str], ...] = ()  # those under fleet.emulator/, and the TTL
    lacks_hostname: bool = False  # somebody removed that label

    def labels_of(self, name: str) -> dict[str, str]:
        """Return all labels of the Node of this name."""
        hostname = {} if self.lacks_hostname else {HOSTNAME_LABEL: name}
        return hostname | dict(self.labels)


NO_STATE = NodeState()


class ClaimDevice(Record, frozen=True):
    """A device that the scheduler allocated to a claim."""

    request: str
    driver: str
    pool: str
    device: str


def _devices(allocation: dict[str, Any]) -> tuple[ClaimDevice, ...]:
    results = allocation.get("devices", {}).get("results", ())
    return convert(results, tuple[ClaimDevice, ...])


if TYPE_CHECKING:
    Devices = tuple[ClaimDevice, ...] | None
    Uids = tuple[str, ...]
else:
    Devices = kind(_devices)
    Uids = kind(lambda listed: tuple(each["uid"] for each in listed))


class ResourceClaimView(Record, frozen=True):
    """What is read of a ResourceClaim."""

    name: str = member("metadata/name")
    uid: str = member("metadata/uid")
    owners: tuple[Owner, ...] = member("metadata/ownerReferences", ())
    reserved_for: Uids = member("status/reservedFor", ())
    devices: Devices = member("status/allocation", None)  # None: not allocated

    @property
    def owner_uid(self) -> str:
        """Return the uid of the controller, "" without one."""
        return controller_uid(self.owners)


class ResourceSliceView(Record, frozen=True):
    """What is read of a ResourceSlice."""

    name: str = member("metadata/name")
    resource_version: str = member("metadata/resourceVersion")
    generation: int = member("spec/pool/generation", 0)


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one.

    Source: pkg/apis/core/v1/helper/helpers.go, IsExtendedResourceName.
    """
    native = "/" not in resource or "kubernetes.io/" in resource
    return not native and not resource.startswith("requests.")
