"""Admission: whether this node takes a pod that was bound to it, by the handlers of a kubelet.

    eviction -> sysctl -> devices, CPU, memory -> predicates -> AppArmor -> pod features
    -> declared features -> node shutdown; the first refusal wins. A critical pod that is short of
    resources alone is taken, and others make room for it.

Pure: what the managers of pressure, devices and shutdown say is handed in.
Source: pkg/kubelet/lifecycle/predicate.go, handlers.go; pkg/kubelet/sysctl/allowlist.go;
pkg/scheduler/eventhandlers.go, AdmissionCheck; noderesources/fit.go, fitsRequest.
Differs: all devices of a pod are looked at before its CPUs and memory, not container by container;
scalar resources are looked at in alphabetical order, not in Go's random one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from fleet.k8s.admission import AdmissionSpec, HostPort, NodeState, is_extended
from fleet.k8s.pods import Pod
from fleet.k8s.selectors import selects
from fleet.k8s.static_pods import StaticPod
from fleet.k8s.well_known import ALL_ADDRESSES, OS_LABEL
from fleet.kubelet.devices import container_manager
from fleet.kubelet.devices.container_manager import UNEXPECTED, static_refusal
from fleet.kubelet.pod_worker import Rejection
from fleet.kubelet.pressure.preemption import is_critical_pod
from fleet.profile.node_model import NodeModel
from fleet.profile.release import Release
from fleet.quantity import parse_quantity
from fleet.runtime.container_usage import resources_of

NODE_AFFINITY_FAILED = "node(s) didn't match Pod's node affinity/selector"
PORTS_FAILED = "node(s) didn't have free ports for the requested pod ports"
TAINTS_FAILED = "node(s) had taints that the pod didn't tolerate"
NODE_SHUTDOWN = Rejection("NodeShutdown", "Pod was rejected as the node is shutting down.")
SAFE_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
"""Source: pkg/kubelet/sysctl/safe_sysctls.go; simulated kernels are new enough for all."""
NEW_SYSCTLS = ("net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat")
_IPC_SYSCTLS = ("kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue.")
_FIRST_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")


class Shortage(NamedTuple):
    """A resource that the node lacks. Source: predicate.go, InsufficientResourceError."""

    resource: str
    requested: int  # cpu in thousandths
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """Return how much others would have to give up."""
        return self.requested - (self.capacity - self.used)

    def rejection(self) -> Rejection:
        """Return the refusal that names it."""
        return Rejection(
            f"OutOf{self.resource}",
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}",
        )


class AdmissionInputs(NamedTuple):
    """What the node says: its object, its profile, and what its managers have found."""

    name: str
    model: NodeModel
    state: NodeState
    pressure: str = ""  # why the eviction manager refuses the pod
    is_shutting_down: bool = False


class Devices(NamedTuple):
    """What the device manager did for the pod."""

    error: str = ""
    allocated: Mapping[str, int] | None = None  # by resource, of all pods; None: the pod has none


class Verdict(NamedTuple):
    """The outcome: taken, refused, or taken once others made room.

    `asks_node`: only the Node's labels speak against it, and they may be out of date.
    """

    rejection: Rejection | None = None
    shortages: tuple[Shortage, ...] = ()
    asks_node: bool = False


def admit(
    pod: Pod, others: Sequence[Pod], inputs: AdmissionInputs, allocate: Callable[[Pod], Devices]
) -> Verdict:
    """Return whether a pod may run alongside `others`, the other active pods of the node.

    Source: allocation_manager.go, canAdmitPod; kubelet.go, NewMainKubelet, for the order.
    """
    spec = pod.spec.admission
    if inputs.pressure:
        return Verdict(Rejection("Evicted", inputs.pressure))
    message = _forbidden_sysctl(pod, spec, inputs.model) if spec.sysctls else ""
    if message:
        return Verdict(Rejection("SysctlForbidden", f"forbidden sysctl: {message}"))
    devices = allocate(pod) if spec.devices else Devices()
    rejection = _container_managers(pod, others, inputs, devices)
    if rejection is not None:
        return Verdict(rejection)
    verdict = _predicates(pod, others, inputs, devices)
    if verdict.rejection is not None:
        return verdict
    return Verdict(_last_handlers(pod, inputs), verdict.shortages)


def _container_managers(
    pod: Pod, others: Sequence[Pod], inputs: AdmissionInputs, devices: Devices
) -> Rejection | None:
    """Source: topologymanager/topology_manager.go, Admit; admission/errors.go."""
    if devices.error == container_manager.MESSAGE:
        return Rejection(container_manager.REASON, devices.error)
    if devices.error:
        message = f"Allocate failed due to {devices.error}, which is unexpected"
        return Rejection(UNEXPECTED, message)
    return static_refusal(pod, others, inputs.model)


def _last_handlers(pod: Pod, inputs: AdmissionInputs) -> Rejection | None:
    """Source: lifecycle/handlers.go; nodeshutdown_manager_linux.go, Admit."""
    spec, model = pod.spec.admission, inputs.model
    if spec.app_armor and not model.app_armor and pod.status.phase == "Pending":
        message = "Cannot enforce AppArmor: AppArmor is not enabled on the host"
        return Rejection("AppArmor", message)
    if spec.pod_level and not model.release.has_pod_resources:
        message = "PodLevelResources feature gate is disabled"
        return Rejection("PodLevelResourcesNotSupported", message)
    if spec.features and model.release.declares_features:
        declared = model.release.declared_features
        missing = [each for each in spec.features if each not in declared]
        if missing:
            message = f"Pod requires node features that are not available: {', '.join(missing)}"
            return Rejection("PodFeatureUnsupported", message)
    return NODE_SHUTDOWN if inputs.is_shutting_down else None


def _predicates(
    pod: Pod, others: Iterable[Pod], inputs: AdmissionInputs, devices: Devices
) -> Verdict:
    """Source: predicateAdmitHandler.Admit; preemption.go, HandleAdmissionFailure."""
    spec, model = pod.spec.admission, inputs.model
    if dict(pod.labels).get(OS_LABEL, model.os) != model.os:
        message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        return Verdict(Rejection("PodOSSelectorNodeLabelDoesNotMatch", message))
    if spec.os and spec.os != model.os:
        message = "Failed to admit pod as the OS field doesn't match node OS"
        return Verdict(Rejection("PodOSNotSupported", message))
    if spec.strict_groups and not model.supplemental_groups_policy:
        message = "SupplementalGroupsPolicy=Strict is not supported in this node"
        return Verdict(Rejection("SupplementalGroupsPolicyNotSupported", message))
    others = list(others)
    shortages = find_shortages(spec, others, inputs, devices.allocated or {})
    failed = list(_failed_predicates(pod, others, inputs))
    if shortages and not is_critical_pod(pod):
        return Verdict(shortages[0].rejection())
    if not failed:
        return Verdict(None, tuple(shortages))
    only_affinity = not shortages and [name for name, _ in failed] == ["NodeAffinity"]
    name, text = failed[0]
    return Verdict(Rejection(name, f"Predicate {name} failed: {text}"), (), asks_node=only_affinity)


def find_shortages(
    spec: AdmissionSpec, others: list[Pod], inputs: AdmissionInputs, allocated: Mapping[str, int]
) -> list[Shortage]:
    """Return what the pod asks for and the node has not left, in upstream's order.

    An extended resource that the Node does not have at all is not looked at: it is the cluster's.
    Source: noderesources/fit.go, fitsRequest; predicate.go, removeMissingExtendedResources;
    devicemanager/manager.go, sanitizeNodeAllocatable.
    """
    found = []
    capacity = inputs.model.pods_max
    if len(others) + 1 > capacity:
        found.append(Shortage("pods", 1, len(others), capacity))
    if not spec.requests:
        return found
    allocatable = _model_allocatable(inputs.model)
    if inputs.state.extended:  # of extended resources the Node's object knows the newest
        newest = {name: has for name, _, has in inputs.state.extended if has >= 0}
        allocatable = allocatable | newest
    used: dict[str, int] = {}
    shared = Counter(counted_requests(other, inputs.model.release) for other in others)
    for requests, count in shared.items():
        for name, amount in requests:
            used[name] = used.get(name, 0) + amount * count
    for name, amount in spec.requests:
        has = allocatable.get(name)
        if not amount or (has is None and is_extended(name)):
            continue
        has = max(has or 0, allocated.get(name, 0))
        if amount > has - used.get(name, 0):
            found.append(Shortage(name, amount, used.get(name, 0), has))
    order = {name: at for at, name in enumerate(_FIRST_RESOURCES)}
    return sorted(found, key=lambda each: (order.get(each.resource, len(order)), each.resource))


def counted_requests(pod: Pod, release: Release) -> tuple[tuple[str, int], ...]:
    """Return what another pod counts for: what it was given, or has by its status if that is more.

    The status of a pod as a whole has the overhead in it, which is added to that all the same.
    Source: scheduler/framework/types.go, CalculateResource; component-helpers/resource/helpers.go,
    AggregateContainerRequests, of 1.36 determineEffectiveRequests.
    """
    spec, status, overhead = pod.spec, pod.status, pod.spec.admission.overhead
    if pod.generation < 2 and not overhead:  # nobody has resized it
        return spec.admission.requests
    told = [(spec.resources_json, status.resources_json)]
    if not (status.resources_json and (release.counts_whole_pods or spec.admission.pod_level)):
        asked = {each.name: each.resources_json for each in spec.containers + spec.init_containers}
        shown = status.containers + status.init_containers
        told = [(asked[each.name], each.resources_json) for each in shown if each.name in asked]
        overhead = ()
    found = Counter(dict(spec.admission.requests))
    for given, has in told:
        before, after = resources_of(given).requests, resources_of(has).requests
        found["cpu"] += max(after.cpu_milli - before.cpu_milli, 0)
        found["memory"] += max(after.memory - before.memory, 0)
    found.update(dict(overhead))
    return tuple(found.items())


@lru_cache(maxsize=64)
def _model_allocatable(model: NodeModel) -> dict[str, int]:
    amounts = ((name, parse_quantity(text)) for name, text in model.allocatable.items())
    return {name: each.milli if name == "cpu" else each.value for name, each in amounts}


def _failed_predicates(
    pod: Pod, others: list[Pod], inputs: AdmissionInputs
) -> Iterable[tuple[str, str]]:
    """Yield name and text of what is not about resources. Source: AdmissionCheck, generalFilter."""
    spec = pod.spec.admission
    if not _matches_node(spec, inputs):
        yield "NodeAffinity", NODE_AFFINITY_FAILED
    if spec.ports and _has_port_conflict(spec.ports, others):
        yield "NodePorts", PORTS_FAILED
    if inputs.state.taints and not isinstance(pod, StaticPod):
        for key, value, effect in inputs.state.taints:
            if not any(each.tolerates(key, value, effect) for each in pod.spec.tolerations):
                yield "TaintToleration", TAINTS_FAILED
                return


def _matches_node(spec: AdmissionSpec, inputs: AdmissionInputs) -> bool:
    """Return whether node selector and required node affinity match.

    Source: component-helpers/scheduling/corev1/nodeaffinity, GetRequiredNodeAffinity, Match.
    """
    if not spec.node_selector and spec.node_affinity is None:
        return True
    labels = inputs.state.labels_of(inputs.name)
    if any(labels.get(key) != value for key, value in spec.node_selector):
        return False
    return spec.node_affinity is None or selects(spec.node_affinity, inputs.name, labels)


def _has_port_conflict(ports: tuple[HostPort, ...], others: list[Pod]) -> bool:
    """Source: kube-scheduler/framework, HostPortInfo.CheckConflict."""
    return any(
        (mine.protocol, mine.port) == (taken.protocol, taken.port)
        and (ALL_ADDRESSES in {mine.ip, taken.ip} or mine.ip == taken.ip)
        for other in others
        for taken in other.spec.admission.ports
        for mine in ports
    )


def _forbidden_sysctl(pod: Pod, spec: AdmissionSpec, model: NodeModel) -> str:
    """Return why a sysctl may not be set, "" when all may. Source: validateSysctl."""
    for name in map(_normalized, spec.sysctls):
        if not _is_allowed(name, model):
            return f'"{name}" not allowlisted'
        is_ipc = name.startswith(_IPC_SYSCTLS)
        if is_ipc and spec.host_ipc:
            return f'"{name}" not allowed with host IPC enabled'
        if name.startswith("net.") and pod.spec.host_network:
            return f'"{name}" not allowed with host Net enabled'
        if name.startswith("user.") and pod.spec.network.host_users:
            return f'"{name}" not allowed with host User enabled'
    return ""


def _is_allowed(name: str, model: NodeModel) -> bool:
    if name in SAFE_SYSCTLS or (name in NEW_SYSCTLS and model.release.has_new_sysctls):
        return True
    return any(
        name.startswith(_normalized(each[:-1])) if each.endswith("*") else name == _normalized(each)
        for each in model.kubelet.allowed_unsafe_sysctls
    )


def _normalized(name: str) -> str:
    """Source: component-helpers/node/util/sysctl/sysctl.go, NormalizeName."""
    at = min((name.find(each) for each in "./" if each in name), default=-1)
    if at < 0 or name[at] == ".":
        return name
    return name.translate(str.maketrans("./", "/."))
