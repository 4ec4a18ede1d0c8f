"""What containers were given of a node's devices, as the PodResources service tells it.

Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from typing import NamedTuple

from fleet.k8s.admission import ClaimDevice

NO_TOPOLOGY = -1


class AssignedDevice(NamedTuple):
    """One device of a device plugin."""

    resource: str
    id: str
    numa_node: int = NO_TOPOLOGY


class AssignedClaim(NamedTuple):
    """A ResourceClaim, and what a container has of its devices."""

    name: str
    namespace: str
    devices: tuple[ClaimDevice, ...]


class ContainerResources(NamedTuple):
    """What one container was given."""

    name: str
    devices: tuple[AssignedDevice, ...]
    claims: tuple[AssignedClaim, ...]
    cpus: tuple[int, ...] = ()  # those that it has alone
    memory: tuple[tuple[str, int], ...] = ()  # kind and bytes, of NUMA node 0


class PodResources(NamedTuple):
    """What the containers of one pod were given."""

    name: str
    namespace: str
    containers: tuple[ContainerResources, ...]
