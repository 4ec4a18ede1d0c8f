"""What admission and device managers read of pods and Nodes; what a pod asks for as a whole.

Nearly every field of nearly every pod is the default, and a pod whose fields all are is `PLAIN`.
Source: component-helpers/resource/helpers.go, PodRequests, PodLimits;
pkg/apis/core/v1/helper/qos/qos.go, ComputePodQOS; pkg/kubelet/kubelet_pods.go,
getEffectiveAllocatedResources, convertToAPIPodLevelResourcesStatus;
pkg/scheduler/util/utils.go, GetHostPorts; component-helpers/nodedeclaredfeatures/features,
InferForScheduling.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from msgspec import convert

from fleet.k8s.objects import Owner, controller_uid
from fleet.k8s.schema import Record, kind, member
from fleet.k8s.selectors import NodeTerms, node_terms
from fleet.k8s.well_known import ALL_ADDRESSES, HOSTNAME_LABEL, OWN_PREFIX, TTL_ANNOTATION
from fleet.quantity import NANO, Quantity, parse_quantity


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
    overhead: tuple[tuple[str, int], ...] = ()  # of its RuntimeClass, which is one part of these
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


def _allocated(allocation: dict[str, Any]) -> tuple[ClaimDevice, ...]:
    results = allocation.get("devices", {}).get("results", ())
    return convert(results, tuple[ClaimDevice, ...])


if TYPE_CHECKING:
    Devices = tuple[ClaimDevice, ...] | None
    Uids = tuple[str, ...]
else:
    Devices = kind(_allocated)
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


class PreparedClaims(NamedTuple):
    """The claims of a pod that are prepared, by their names within the pod."""

    namespace: str
    found: dict[str, ResourceClaimView]


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


_intern = sys.intern


def admission_spec(spec: dict[str, Any], requests_json: bytes) -> AdmissionSpec:
    """Return what admission reads of a pod's spec; `requests_json` is the sum of its requests."""
    security = spec.get("securityContext") or {}
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return AdmissionSpec(
        requests=_requests(requests_json),
        overhead=_requests(orjson.dumps(spec.get("overhead") or {})),
        ports=tuple(_host_ports(spec)),
        node_selector=tuple(sorted((spec.get("nodeSelector") or {}).items())),
        node_affinity=None if required is None else node_terms(required),
        os=_intern((spec.get("os") or {}).get("name", "")),
        sysctls=tuple(each["name"] for each in security.get("sysctls") or ()),
        host_ipc=spec.get("hostIPC", False),
        strict_groups=security.get("supplementalGroupsPolicy") == "Strict",
        app_armor=_wants_app_armor(spec, security),
        pod_level=bool(spec.get("resources")),
        features=tuple(_features(spec)),
        devices=tuple(_devices(spec)),
        claims=tuple(map(_claim, spec.get("resourceClaims") or ())),
        container_claims=tuple(_container_claims(spec)),
    )


def with_claim_names(admission: AdmissionSpec, status: dict[str, Any]) -> AdmissionSpec:
    """Fill in the names of the claims that were made from templates. Source: resourceclaim.Name."""
    names = {
        each["name"]: each.get("resourceClaimName")
        for each in status.get("resourceClaimStatuses") or ()
    }
    claims = tuple(
        each._replace(claim=names[each.name] or "", is_needless=names[each.name] is None)
        if each.generated and each.name in names
        else each
        for each in admission.claims
    )
    return admission._replace(claims=claims)


def node_state(obj: dict[str, Any]) -> NodeState:
    """Return what admission and the device manager read of a Node."""
    meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
    labels = meta.get("labels") or {}
    capacity = status.get("capacity") or {}
    allocatable = status.get("allocatable") or {}
    return NodeState(
        unschedulable=spec.get("unschedulable", False),
        labels=tuple(
            (_intern(key), _intern(value))
            for key, value in labels.items()
            if key != HOSTNAME_LABEL or value != meta["name"]
        ),
        taints=tuple(
            (each["key"], each.get("value", ""), each["effect"])
            for each in spec.get("taints") or ()
            if each.get("effect") == "NoExecute"
        ),
        extended=extended_resources(capacity, allocatable),
        annotations=tuple(
            (key, value)
            for key, value in (meta.get("annotations") or {}).items()
            if key == TTL_ANNOTATION or key.startswith(OWN_PREFIX)
        ),
        lacks_hostname=HOSTNAME_LABEL not in labels,
    )


def extended_resources(
    capacity: dict[str, str], allocatable: dict[str, str]
) -> tuple[tuple[str, int, int], ...]:
    """Return capacity and allocatable of each extended resource of a Node, -1 where absent."""
    return tuple(
        (_intern(name), _whole(capacity.get(name, "-1")), _whole(allocatable.get(name, "-1")))
        for name in {**capacity, **allocatable}
        if is_extended(name)
    )


def _whole(amount: object) -> int:
    return parse_quantity(amount).value


def _requests(json: bytes) -> tuple[tuple[str, int], ...]:
    if not json:
        return ()
    amounts = ((name, parse_quantity(text)) for name, text in orjson.loads(json).items())
    return tuple(
        sorted(
            (_intern(name), each.milli if name == "cpu" else each.value) for name, each in amounts
        )
    )


def _host_ports(spec: dict[str, Any]) -> Iterator[HostPort]:
    inits = (each for each in spec.get("initContainers") or () if _is_sidecar(each))
    for container in (*inits, *(spec.get("containers") or ())):
        for each in container.get("ports") or ():
            if each.get("hostPort", 0) > 0:
                ip = _intern(each.get("hostIP") or ALL_ADDRESSES)
                yield HostPort(_intern(each.get("protocol", "TCP")), ip, each["hostPort"])


def _wants_app_armor(spec: dict[str, Any], security: dict[str, Any]) -> bool:
    members = ("initContainers", "containers", "ephemeralContainers")
    contexts = [each.get("securityContext") for name in members for each in spec.get(name) or ()]
    profiles = [(each or {}).get("appArmorProfile") for each in (security, *contexts)]
    return any(each and each.get("type") != "Unconfined" for each in profiles)


def _features(spec: dict[str, Any]) -> Iterator[str]:
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    rules = (rule for each in containers for rule in each.get("restartPolicyRules") or ())
    if any(rule.get("action") == "RestartAllContainers" for rule in rules):
        yield "RestartAllContainersOnContainerExits"
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        yield "UserNamespacesHostNetworkSupport"


def _devices(spec: dict[str, Any]) -> Iterator[DeviceRequest]:
    """Yield what containers ask of device plugins, in the order in which it is given out."""
    inits = spec.get("initContainers") or ()
    for containers, is_init in ((inits, True), (spec.get("containers") or (), False)):
        for container in containers:
            limits = (container.get("resources") or {}).get("limits") or {}
            reusable = is_init and not _is_sidecar(container)
            for name, amount in limits.items():
                if is_extended(name):
                    resource = _intern(name)
                    yield DeviceRequest(container["name"], resource, _whole(amount), reusable)


def _claim(obj: dict[str, Any]) -> PodClaim:
    claim = obj.get("resourceClaimName")
    return PodClaim(obj["name"], claim or "", generated=claim is None)


def _container_claims(spec: dict[str, Any]) -> Iterator[ContainerClaim]:
    for container in spec.get("containers") or ():
        for each in (container.get("resources") or {}).get("claims") or ():
            yield ContainerClaim(container["name"], each["name"], each.get("request", ""))


def _is_sidecar(container: dict[str, Any]) -> bool:
    return container.get("restartPolicy") == "Always"


Amounts = dict[str, str]
QOS_RESOURCES = ("cpu", "memory")
MIN_SHARES_MILLI = 2
"""So little CPU, or less, is no request to a cgroup. Source: cm/helpers_linux.go, MinShares."""
MIN_LIMIT_MILLI = 10  # Source: cm/helpers_linux.go, MinMilliCPULimit
NANO_OF_A_MILLI = NANO // 1000


class Demand(NamedTuple):
    """The resources of one container. `restarts` marks a sidecar among the init containers."""

    requests: Amounts
    limits: Amounts
    restarts: bool = False


class PodResources(NamedTuple):
    """What a pod asks for as a whole, as JSON."""

    allocated: bytes  # its requests, b"" when there are none
    asked: bytes  # requests and limits, as a status shows them until the pod runs
    running: bytes
    """The same of a running pod: what its cgroup has, and what the pod itself was given."""
    ended: bytes
    """The same without limits that not all containers have, which a cgroup does not have."""


def pod_resources(
    containers: list[Demand],
    init_containers: list[Demand],
    overhead: Amounts,
    own: Demand | None,
) -> PodResources:
    """Return allocatedResources and resources of a pod's status.

    Differs: a CPU request is as asked; cgroup v2 has it as a weight, which a kubelet turns back.
    Raises ValueError for what is no quantity, as client-go cannot read such a pod either.
    """
    for each in (*containers, *init_containers):
        for text in (*each.requests.values(), *each.limits.values()):
            parse_quantity(text)
    requests = _total(
        [each.requests for each in containers],
        [(each.requests, each.restarts) for each in init_containers],
        own.requests if own else {},
        overhead,
    )
    limits = _total(
        [each.limits for each in containers],
        [(each.limits, each.restarts) for each in init_containers],
        own.limits if own else {},
        {},
    )
    if overhead:  # of what is limited at all
        limited = {name: each for name, each in overhead.items() if limits.get(name, "0") != "0"}
        limits = dict(limits)
        _add(limits, limited)
    asked = _rendered(requests, limits)
    own_limits = own.limits if own else {}
    given = _in_cgroup(requests, own.requests if own else {}, MIN_SHARES_MILLI)
    everywhere = [each.limits for each in (*containers, *init_containers)]
    declared = {
        name: amount
        for name, amount in limits.items()
        if name in own_limits or all(each.get(name, "0") != "0" for each in everywhere)
    }
    # What a cgroup does not have keeps the value that it had before the pod ran.
    kept = {name: limits[name] for name in QOS_RESOURCES if name in limits.keys() - declared}
    in_cgroup = _in_cgroup(declared, own_limits, MIN_LIMIT_MILLI)
    running = _rendered(given, {**in_cgroup, **kept})
    ended = _rendered(given, in_cgroup)
    allocated = orjson.dumps(requests, option=orjson.OPT_SORT_KEYS) if requests else b""
    return PodResources(allocated, asked, running, ended)


def _rendered(requests: Amounts, limits: Amounts) -> bytes:
    found = {"limits": limits, "requests": requests}
    told = {kind: amounts for kind, amounts in found.items() if amounts}
    return orjson.dumps(told, option=orjson.OPT_SORT_KEYS)


def _in_cgroup(total: Amounts, own: Amounts, least_milli: int) -> Amounts:
    """Return of all that a pod is given what its cgroup has, besides the pod's own."""
    kept = {name: total[name] for name in QOS_RESOURCES if name in total}
    if "cpu" in kept and parse_quantity(kept["cpu"]).nano <= least_milli * NANO_OF_A_MILLI:
        del kept["cpu"]
    return {**own, **kept}


def qos_class(demands: Iterable[Demand]) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    asks = False
    guaranteed = True
    for requests, limits, _ in demands:
        for name in QOS_RESOURCES:
            request, limit = requests.get(name, "0"), limits.get(name, "0")
            asks = asks or request != "0" or limit != "0"
            guaranteed = guaranteed and limit != "0" and request == limit
    if not asks:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _total(
    containers: list[Amounts],
    init_containers: list[tuple[Amounts, bool]],
    own: Amounts,
    overhead: Amounts,
) -> Amounts:
    """Add containers and sidecars; take what the largest step of initialisation needs."""
    if len(containers) == 1 and not init_containers and not own and not overhead:
        return containers[0]
    total: Amounts = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for amounts, restarts in init_containers:
        if restarts:
            _add(total, amounts)
            _add(sidecars, amounts)
            _raise_to(peak, sidecars)
        else:
            step = dict(amounts)
            _add(step, sidecars)
            _raise_to(peak, step)
    _raise_to(total, peak)
    total.update(own)  # pod-level resources replace the sum
    _add(total, overhead)
    return total


def _add(total: Amounts, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        have = total.get(name)
        if have is None or have == "0":
            total[name] = amount
        elif amount != "0":
            first, second = parse_quantity(have), parse_quantity(amount)
            total[name] = str(Quantity(first.nano + second.nano, first.format))


def _raise_to(total: Amounts, peak: Amounts) -> None:
    for name, amount in peak.items():
        have = total.get(name)
        if have is None or parse_quantity(amount).nano > parse_quantity(have).nano:
            total[name] = amount
