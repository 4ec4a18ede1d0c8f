"""`NodeModel`: all that the nodes of one profile share, compiled once; and what differs by node.

What differs is a function of a node's index and name alone, so that a restarted process makes the
same node again: labels of the topology, the address, the providerID and the machine's identifiers.
Nodes that others make share a model by the resources that they declare.
"""

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fleet.k8s.addresses import each_of, first_of, is_ipv6
from fleet.k8s.pods import Pod
from fleet.k8s.well_known import HOSTNAME_LABEL, PROVIDED_ADDRESS, REGION_LABEL, ZONE_LABEL
from fleet.profile import machine
from fleet.profile.addresses import NOWHERE, AddressPool, Serving
from fleet.profile.agent_behavior import USER_AGENT_PLACEHOLDERS, AgentModel
from fleet.profile.image_behavior import DEFAULT_PULLS, ImagePulls
from fleet.profile.kubelet_configuration import (
    CRASH_LOOP_MAX_NS,
    CredentialProvider,
    DNSSettings,
    KubeletConfiguration,
    Taint,
)
from fleet.profile.pod_behavior import (
    USUAL_RUN_TIMES,
    CSIDriver,
    PodBehavior,
    RunTimes,
    select_behavior,
)
from fleet.profile.release import Release, emulated_version, release_of
from fleet.profile.schema import PLACEHOLDER
from fleet.profile.usage import Usage
from fleet.quantity import parse_quantity

KUBELET_LABELS = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
KUBELET_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
RESTRICTED = "node-restriction.kubernetes.io"
KUBERNETES_NAMESPACES = ("kubernetes.io", "k8s.io")


def forbidden_labels(keys: Iterable[str]) -> frozenset[str]:
    """Return the labels for which NodeRestriction refuses a kubelet's Node."""
    return frozenset(filter(_is_forbidden, keys))


def _is_forbidden(key: str) -> bool:
    namespace, slash, _ = key.partition("/")
    if not slash:
        return False
    if _is_within(namespace, (RESTRICTED,)):
        return True
    if not _is_within(namespace, KUBERNETES_NAMESPACES) or key in KUBELET_LABELS:
        return False
    return not _is_within(namespace, KUBELET_NAMESPACES)


def _is_within(namespace: str, parents: tuple[str, ...]) -> bool:
    return any(namespace == each or namespace.endswith(f".{each}") for each in parents)


ZONE_LABELS = frozenset(
    {
        ZONE_LABEL,
        REGION_LABEL,
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
"""What a cloud controller and the scheduler act on: not set on a shared cluster unless asked."""

DEFAULT_ADDRESS_POOL = ipaddress.ip_network("198.18.0.0/15")
"""RFC 2544, for benchmarks: never routed, so a fake address can reach nobody."""

USER_AGENT = "kubelet/{{version}} ({{os}}/{{arch}}) kubernetes/f1ee700"
"""Source: client-go/rest/config.go, DefaultKubernetesUserAgent.

In place of the commit stands one that nobody has: as long, and logs show fleet's nodes by it.
"""

WINDOWS = "windows"
NO_SWAP_KERNEL = (6, 4)  # Source: pkg/util/kernel/constants.go, TmpfsNoswapSupportKernelVersion
_KERNEL = re.compile(r"(\d+)\.(\d+)")


class NodeImage(NamedTuple):
    """An image of a node, with all of its names."""

    names: tuple[str, ...]
    size_bytes: int


class RuntimeHandler(NamedTuple):
    """One entry of `status.runtimeHandlers`."""

    name: str
    recursive_read_only_mounts: bool
    user_namespaces: bool


class NodeIdentity(NamedTuple):
    """What of a Node depends on its index and name, merged with what its profile says."""

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    addresses: tuple[tuple[str, str], ...]  # type, address
    provider_id: str
    node_info: dict[str, str]
    zone: str
    region: str
    kubelet_port: int  # 0 for none


@dataclass(frozen=True, slots=True, eq=False)
class NodeModel:
    """All that the nodes of one profile share. Compared by identity; change it with `adapted`."""

    name: str
    kubelet_version: str  # as the Node says it
    follows_server: bool  # the version is that of the API server, once one is known
    release: Release  # what its kubelets do
    labels: dict[str, str]  # of the template and the defaults, without those that need a name
    annotations: dict[str, str]
    taints: tuple[Taint, ...]
    capacity: dict[str, str]  # canonical quantities, sorted by resource
    allocatable: dict[str, str]
    node_info: dict[str, str]  # without machineID, systemUUID, bootID
    os: str
    arch: str
    kubelet_port: int
    pods_max: int
    provider_id: str  # with placeholders; "" for none
    runtime_handlers: tuple[RuntimeHandler, ...]
    supplemental_groups_policy: bool | None  # None: the runtime does not say
    topology_spread: tuple[tuple[str, tuple[str, ...]], ...]  # label key, values
    zone_labels: bool  # False keeps ZONE_LABELS off the nodes
    address_pools: tuple[AddressPool, ...]  # of one family each, the primary one first
    agents: tuple[AgentModel, ...]
    behaviors: tuple[PodBehavior, ...]
    kubelet: KubeletConfiguration  # as it was read
    pods_memory_bytes: int  # the limit of the cgroup of all pods
    pids_max: int
    usage: Usage  # outside of pods, since the start of the kubelet
    dns: DNSSettings  # of which those of pods are made
    app_armor: bool = True  # the kernel of the nodes has it
    machine_paths: tuple[machine.MachinePath, ...] = ()  # on top of the usual ones
    devices: tuple[machine.DeviceModel, ...] = ()  # what device plugins offer
    dra_drivers: tuple[machine.DraDriver, ...] = ()
    ordinals: tuple[int, ...] = (0,)  # see loader.NodeMix: rank within a period, by index
    ordinals_per_period: int = 1
    images_preloaded: tuple[NodeImage, ...] = ()  # on every node from its start
    image_pulls: ImagePulls = DEFAULT_PULLS
    credential_providers: tuple[CredentialProvider, ...] = ()
    image_disk_bytes: int = 0  # the file system that holds the images
    outages: tuple[machine.Outage, ...] = ()
    broken: machine.Broken = machine.NOTHING_BROKEN
    shutdown: machine.ShutdownSchedule | None = None
    directory: Path | None = None  # of the profile's file: what it names lies below
    csi_drivers: tuple[CSIDriver, ...] = ()  # whose node plug-in runs on the nodes
    user_agent: str = USER_AGENT  # with placeholders
    cloud_is_external: bool = False  # another says the addresses, and takes a taint away
    run_times: RunTimes = USUAL_RUN_TIMES  # of unknown programs
    serving: Serving | None = None  # None until a run says where: as the profile does
    notices: tuple[str, ...] = ()  # of what a pasted Node says and its profile cannot
    address_shift: int = 0  # of a process, see address_plan.py
    swap_bytes: int = 0  # of the machine

    @property
    def is_windows(self) -> bool:
        return self.os == WINDOWS

    @property
    def admin_labels(self) -> frozenset[str]:
        """Return the labels of the nodes that kubelets may not set themselves."""
        return forbidden_labels((*self.labels, *(key for key, _ in self.topology_spread)))

    @property
    def csi_driver_names(self) -> tuple[str, ...]:
        """Return the CSI drivers that a kubelet of this profile knows."""
        return tuple(each.name for each in self.csi_drivers)

    def csi_driver(self, name: str) -> CSIDriver | None:
        return next((each for each in self.csi_drivers if each.name == name), None)

    def ordinal(self, index: int) -> int:
        """Count the nodes of this profile before `index`, so that topology spreads per profile."""
        period, at = divmod(index, len(self.ordinals))
        return period * self.ordinals_per_period + self.ordinals[at]

    @property
    def zones(self) -> tuple[str, ...]:
        """Return the zones of the nodes, if their labels say any."""
        found = dict(self.topology_spread).get(ZONE_LABEL) or (self.labels.get(ZONE_LABEL, ""),)
        return tuple(filter(None, found)) if self.zone_labels else ()

    def topology(self, index: int) -> dict[str, str]:
        """Return the topology labels of a node: every combination of values equally often."""
        rest = self.ordinal(index)
        values: dict[str, str] = {}
        for key, choices in self.topology_spread:
            rest, at = divmod(rest, len(choices))
            values[key] = choices[at]
        return values

    def addresses(self, index: int) -> str:
        """Return the InternalIPs: of each pool without its two ends; what is served comes first.

        Clients take the first one: pkg/util/node/node.go, GetPreferredNodeAddress.
        """
        pools, served = self.address_pools, []
        if self.serving is not None and self.serving.port:
            served = [self.serving.address_of(index)]
            version = 6 if is_ipv6(served[0]) else 4
            pools = tuple(pool for pool in pools if pool.version != version)
        at = index + self.address_shift
        assert all(0 <= at < pool.num_addresses - 2 for pool in pools), (at, pools)
        return ",".join((*served, *(str(pool[at + 1]) for pool in pools)))

    def index_of(self, addresses: str) -> int:
        """Return the index of the node that has InternalIPs of its own."""
        address = first_of(addresses)
        if self.serving is not None and self.serving.port:
            return self.serving.index_of(address, self.serving.port)
        first = int(self.address_pools[0].network_address)
        return int(ipaddress.ip_address(address)) - first - 1 - self.address_shift

    @property
    def may_swap_volumes(self) -> bool:
        """Return whether what is in a tmpfs may be swapped out.

        Source: pkg/kubelet/util/swap/swap_util.go, IsTmpfsNoswapOptionSupported.
        """
        kernel = _KERNEL.match(self.node_info.get("kernelVersion", ""))
        if not self.swap_bytes or self.is_windows:
            return False
        return kernel is None or (int(kernel[1]), int(kernel[2])) < NO_SWAP_KERNEL

    @property
    def says_user_namespace(self) -> bool:
        """Return whether Nodes say that their kubelets run in no user namespace."""
        return self.release.says_user_namespace and not self.is_windows

    @property
    def crash_loop_max_ns(self) -> int:
        """Return the longest back-off of a container that crashes."""
        if not self.release.caps_crash_loops:
            return CRASH_LOOP_MAX_NS
        return self.kubelet.crash_loop_back_off.max_container_restart_period_ns

    @property
    def addresses_max(self) -> int:
        """Return how many nodes the address pools have room for."""
        return min(pool.num_addresses for pool in self.address_pools) - 2

    def identity(self, index: int, name: str) -> NodeIdentity:
        """Return what differs from node to node, the same after a restart."""
        topology = self.topology(index)
        zone = topology.get(ZONE_LABEL) or self.labels.get(ZONE_LABEL, "")
        region = topology.get(REGION_LABEL) or self.labels.get(REGION_LABEL, "")
        labels = self.labels | {HOSTNAME_LABEL: name} | topology
        if not self.zone_labels:
            labels = {key: value for key, value in labels.items() if key not in ZONE_LABELS}
        ips, port = self.addresses(index), self.kubelet_port
        if self.serving is not None:
            port = self.serving.port_of(index)
        provided = {PROVIDED_ADDRESS: ips} if self.cloud_is_external else {}
        known = {"name": name, "index": str(index), "zone": zone, "region": region}
        machine_id, system_uuid, boot_id = machine_identifiers(name)
        node_info = {"machineID": machine_id, "systemUUID": system_uuid, "bootID": boot_id}
        return NodeIdentity(
            name=name,
            labels=dict(sorted(labels.items())),
            annotations=self.annotations | provided,
            addresses=(*(("InternalIP", ip) for ip in each_of(ips)), ("Hostname", name)),
            provider_id=PLACEHOLDER.sub(lambda found: known[found[1]], self.provider_id),
            node_info=node_info | self.node_info,
            zone=zone,
            region=region,
            kubelet_port=port,
        )

    def status_json(self) -> dict[str, object]:
        """Return the members of `.status` that all nodes share, as JSON shows them.

        Source: pkg/kubelet/nodestatus/setters.go; conditions, addresses, ports, images and
        nodeInfo are a node's.
        """
        status: dict[str, object] = {
            "capacity": self.capacity,
            "allocatable": self.allocatable,
        }
        if self.runtime_handlers:
            status["runtimeHandlers"] = [
                _handler_json(handler) for handler in self.runtime_handlers
            ]
        if self.supplemental_groups_policy is not None:
            status["features"] = {"supplementalGroupsPolicy": self.supplemental_groups_policy}
        if self.release.declared_features:
            status["declaredFeatures"] = list(self.release.declared_features)
        return status

    def behavior_of(self, pod: Pod) -> PodBehavior:
        """Return how a pod behaves: the first match wins, annotations override."""
        return select_behavior(self.behaviors, pod.labels, pod.namespace, pod.annotations, pod.spec)

    def filled(self, user_agent: str) -> bytes:
        """Return a user agent of this profile's nodes. A version goes without its suffix.

        Source: client-go/rest/config.go, adjustVersion.
        """
        version = self.kubelet_version.partition("-")[0]
        if self.is_windows and user_agent == USER_AGENT:
            user_agent = user_agent.replace("kubelet/", "kubelet.exe/", 1)
        known = dict(zip(USER_AGENT_PLACEHOLDERS, (version, self.os, self.arch), strict=True))
        return PLACEHOLDER.sub(lambda found: known[found[1]], user_agent).encode()

    def on_server(self, server_version: str) -> "NodeModel":
        """Return this model with the kubelet that it has on an API server of some version."""
        asked = server_version if self.follows_server else self.kubelet_version
        version = emulated_version(asked, server_version)
        return replace(
            self,
            kubelet_version=version,
            node_info=self.node_info | {"kubeletVersion": version},
            release=release_of(version).with_gates(self.kubelet.feature_gates),
        )

    def adapted(
        self,
        *,
        zone_labels: bool,
        serving: Serving | None = None,
        address_shift: int = 0,
    ) -> "NodeModel":
        """Return this model for one cluster: with zone labels or not, served somewhere or not.

        What needs a server is declared only if there is one.
        """
        release = self.release
        return replace(
            self,
            release=replace(release, extends_sockets=False) if serving == NOWHERE else release,
            zone_labels=zone_labels,
            serving=serving,
            address_shift=address_shift,
        )


def daemon_endpoints(port: int) -> dict[str, object]:
    """Return `status.daemonEndpoints` of a kubelet that listens at a port."""
    return {"kubeletEndpoint": {"Port": port}}


def _handler_json(handler: RuntimeHandler) -> dict[str, object]:
    features = {
        "recursiveReadOnlyMounts": handler.recursive_read_only_mounts,
        "userNamespaces": handler.user_namespaces,
    }
    return {"name": handler.name, "features": features}


def boot_id(name: str, boots: int) -> str:
    """Return the bootID of a machine that has booted so often since fleet has it."""
    if not boots:
        return machine_identifiers(name)[2]
    return _as_uuid(hashlib.sha512(f"{name}/{boots}".encode()).hexdigest()[:32])


def machine_identifiers(name: str) -> tuple[str, str, str]:
    """Return machineID, systemUUID and bootID: formatted as systemd, SMBIOS and Linux do.

    Derived from the name: a bootID that changed would make every restart a reboot.
    """
    digest = hashlib.sha512(name.encode()).hexdigest()
    return digest[:32], _as_uuid(digest[32:64]), _as_uuid(digest[64:96])


def _as_uuid(digits: str) -> str:
    """Shape 32 hexadecimal digits as a version 4 UUID."""
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


NATIVE = ("cpu", "ephemeral-storage", "memory", "pods")
"""What every kubelet reports; of all else a Node has what it says."""

Amounts = tuple[tuple[str, str], ...]


class Resources(NamedTuple):
    """What a Node declares, sorted by name; a Node that others made may say nothing yet."""

    capacity: Amounts = ()
    allocatable: Amounts = ()

    @classmethod
    def of(cls, status: Mapping[str, object]) -> "Resources":
        """Read them from the status of a Node as JSON shows it."""
        return cls(_amounts(status.get("capacity")), _amounts(status.get("allocatable")))


def managed_model(model: NodeModel, found: Resources) -> NodeModel:
    """Return a model with these resources; what a Node does not say of them is the profile's.

    Without allocatable all of the capacity is, as a scheduler takes it. The device plugins of the
    profile would say otherwise, and are left out.
    """
    capacity = {name: model.capacity[name] for name in NATIVE} | dict(found.capacity)
    free = dict(found.allocatable or found.capacity)
    allocatable = {name: model.allocatable[name] for name in NATIVE} | free
    return replace(
        model,
        capacity=dict(sorted(capacity.items())),
        allocatable=dict(sorted(allocatable.items())),
        pods_max=parse_quantity(capacity["pods"]).value,
        pods_memory_bytes=model.kubelet.pods_memory(parse_quantity(capacity["memory"])),
        image_disk_bytes=parse_quantity(capacity["ephemeral-storage"]).value,
        devices=(),
    )


def _amounts(found: object) -> Amounts:
    listed = found if isinstance(found, dict) else {}
    return tuple(sorted((str(name), str(amount)) for name, amount in listed.items()))
