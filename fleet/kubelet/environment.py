"""What the kubelets of one profile share: nothing here belongs to a single node."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.admission import PreparedClaims
from fleet.k8s.effects import NodeId, NodeStatusPatch, WatchEvent, WatchKind
from fleet.k8s.holds import Hold
from fleet.k8s.objects import RuntimeClassView, ServiceView
from fleet.k8s.pods import EventType, NodeView, Pod, PodUid
from fleet.k8s.static_pods import StaticManifest
from fleet.k8s.volumes import CSIDriverView
from fleet.profile.addresses import pod_cidrs as planned_pod_cidrs
from fleet.profile.node_model import NodeModel
from fleet.runtime.image_store import ImageStore
from fleet.runtime.runtime import Runtime

CATALOG_KINDS = frozenset((WatchKind.SERVICES, WatchKind.RUNTIME_CLASSES, WatchKind.CSI_DRIVERS))
"""What no node has for itself."""

_Key = TypeVar("_Key")
_View = TypeVar("_View")


class Fidelity(NamedTuple):
    """What a virtual kubelet does of what a kubelet does; `light` does none of it."""

    admits_again: bool = True  # the pods that it finds running when it starts
    asks_for_watches: bool = True  # for each when a kubelet opens it; else it has them at once
    delays_first_sync: bool = True  # as long as a pod takes through a kubelet's channels
    follows_own_node: bool = True  # repairs what others write into the Node's status
    has_connections: bool = True  # of its own, not those of a pool
    has_csi_node: bool = True
    limits_rate: bool = True  # of its requests: kubeAPIQPS, kubeAPIBurst
    mounts_volumes: bool = True  # watches what they show, and waits for them at start and end
    prepares_claims: bool = True  # ResourceClaims, before the sandbox
    probes_on_ticks: bool = True  # else a readiness probe may run with the status that it decides
    pulls_images: bool = True  # takes time and credentials for it, lists and collects images
    reads_before_patch: bool = True  # a pod, before its status; else the watch's version will do
    reads_objects: bool = True  # ConfigMaps, Secrets, RuntimeClasses, its Node at admission
    records_events: bool = True
    registers_in_steps: bool = True  # Node, its status, Lease; else one POST says everything
    reports_each_step: bool = True  # of a pod's start and end; else what it comes to
    resyncs_pods: bool = True  # each syncFrequency, where that says or does something
    spreads_renewals: bool = True  # of Leases; else they fall due at tenths of a second
    starts_in_steps: bool = True  # sandbox, then containers; else all after one wait
    waits_for_relist: bool = True  # a sync sees what the last relist saw
    watches_slices: bool = True  # its ResourceSlices, and wipes what earlier drivers left


KUBELET = Fidelity()
LIGHT = Fidelity(**dict.fromkeys(Fidelity._fields, False))


class Allocations(NamedTuple):
    """What the pods of a node were given, as a kubelet that restarts finds it."""

    given: dict[PodUid, Pod]  # with the resources that were allocated to them
    before: dict[PodUid, Pod]  # pods as their cgroups were last set
    actuated: dict[PodUid, dict[str, bytes]]  # what containers still have
    updated: Mapping[PodUid, Mapping[str, bytes]]  # resources of containers resized while running


@dataclass(slots=True, eq=False)
class Environment:
    """Handed to every input of a kubelet, so that no node keeps a copy."""

    model: NodeModel
    draws: Draws
    _: KW_ONLY
    fidelity: Fidelity = KUBELET
    own_watches: bool = True  # each node opens its own; else the nodes of the run share some
    registers: bool = True  # creates its Node; else it serves one that others make
    starts_settled: bool = False  # a new node begins as if it had been up for long
    is_ours: Callable[[NodeView], bool] = lambda _view: True
    """Of a Node that exists: whether this run may be its kubelet."""
    position_of: Callable[[str, str], int] | None = None
    """Of a node, by its name and address, which may not be its own; None: by its address."""
    tolerate_key: str = ""  # a pod that does not tolerate it never becomes Ready
    csi_drivers: dict[str, CSIDriverView] = field(default_factory=dict)  # as any watch shows them
    services: dict[tuple[str, str], ServiceView] = field(default_factory=dict)  # the same
    runtime_classes: dict[str, RuntimeClassView] = field(default_factory=dict)  # the same
    static: tuple[StaticManifest, ...] | None = None  # as the profile's files say, once read
    runtimes: dict[int, Runtime] = field(default_factory=dict)  # of kubelets that restart now
    claims: dict[int, dict[PodUid, PreparedClaims]] = field(default_factory=dict)  # the same
    allocations: dict[int, Allocations] = field(default_factory=dict)  # the same
    devices: dict[int, dict[str, list[PodUid]]] = field(default_factory=dict)  # the same: attached
    outdated: dict[int, NodeStatusPatch] = field(default_factory=dict)  # for the next status patch
    sent: dict[int, NodeStatusPatch] = field(default_factory=dict)  # from there, until the answer
    holds: dict[int, Hold] = field(default_factory=dict)  # of Nodes that others make
    silent: set[int] = field(default_factory=set)  # machines whose runtime does not answer
    boots: dict[int, int] = field(default_factory=dict)  # of machines that booted again: how often
    wall_offset_ns: int = 0  # wall minus monotonic; the reactor keeps it
    skew_ns: int = 0  # how much the clock of the machines is ahead
    images: ImageStore = field(init=False)  # what the nodes of the profile have on disk
    origin: "Environment" = field(init=False)  # of machines in order, if these are not

    def __post_init__(self) -> None:
        self.images, self.origin = ImageStore(self.model), self

    def of_machine(self, model: NodeModel, skew_ns: int) -> "Environment":
        """Return what nodes of the profile see whose machines are not as it says.

        All else is one with the others: images, services, what is kept by node.
        """
        made = copy.copy(self.origin)
        made.model, made.skew_ns = model, skew_ns
        made.wall_offset_ns = self.origin.wall_offset_ns + skew_ns
        return made

    def runtime_of(self, node: NodeId, name: str, host_ips: str, pod_cidrs: str) -> Runtime:
        """Return the runtime of a machine: the one that a kubelet before left, or a new one."""
        if not pod_cidrs:
            position = self.index_of(name, host_ips) + self.model.address_shift
            pod_cidrs = planned_pod_cidrs(position, host_ips)
        runtime = self.runtimes.pop(node, None)
        if runtime is None:
            return Runtime(node, host_ips, pod_cidrs, self.draws, self.model.run_times)
        runtime.use_cidrs(pod_cidrs)
        return runtime

    def index_of(self, name: str, address: str) -> int:
        """Return the position of a node among those of the run."""
        found = self.position_of
        return self.origin.model.index_of(address) if found is None else found(name, address)

    def boot(self, node: NodeId, down_ns: int, now_ns: int) -> None:
        """Let a machine boot that was off since an instant: another bootID, and nothing runs."""
        self.boots[node] = self.boots.get(node, 0) + 1
        runtime = self.runtimes.get(node)
        if runtime is not None:
            runtime.boot(down_ns, now_ns, self.wall_offset_ns)

    def wall_ns(self, now_ns: int) -> int:
        """Return the wall time of a monotonic instant."""
        return now_ns + self.wall_offset_ns

    def wall_s(self, now_ns: int) -> int:
        """Return the wall time in whole seconds, as API objects are stamped."""
        return _shared((now_ns + self.wall_offset_ns) // NS_PER_S)


class Catalogs(Protocol):
    """Who keeps what all nodes see of these kinds, in one place."""

    services: dict[tuple[str, str], ServiceView]
    csi_drivers: dict[str, CSIDriverView]
    runtime_classes: dict[str, RuntimeClassView]


def on_catalog(catalogs: Catalogs, event: WatchEvent) -> None:
    """Take an event of one of the CATALOG_KINDS."""
    found, is_gone = event.record, event.type is EventType.DELETED
    if isinstance(found, ServiceView):
        _keep(catalogs.services, (found.namespace, found.name), found, is_gone=is_gone)
    elif isinstance(found, CSIDriverView):
        _keep(catalogs.csi_drivers, found.name, found, is_gone=is_gone)
    elif isinstance(found, RuntimeClassView):
        _keep(catalogs.runtime_classes, found.name, found, is_gone=is_gone)


def _keep(kept: dict[_Key, _View], key: _Key, found: _View, *, is_gone: bool) -> None:
    if is_gone:
        kept.pop(key, None)
    elif kept.get(key) is not found:
        kept[key] = found


@lru_cache(maxsize=256)
def _shared(wall_s: int) -> int:
    """Return the one number of this second: each pod keeps several times."""
    return wall_s
