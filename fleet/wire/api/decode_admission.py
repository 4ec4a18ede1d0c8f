"""What admission reads of a pod's spec and of a Node, from JSON: see `admission_objects.py`.

Called once per template of pods; the default is one shared record.
Source: component-helpers/resource/helpers.go, PodRequests, for the amounts;
pkg/scheduler/util/utils.go, GetHostPorts; component-helpers/nodedeclaredfeatures/features,
InferForScheduling.
"""

import sys
from collections.abc import Iterator
from typing import Any

import orjson

from fleet.k8s.admission import (
    AdmissionSpec,
    ContainerClaim,
    DeviceRequest,
    HostPort,
    NodeState,
    PodClaim,
    is_extended,
)
from fleet.k8s.selectors import node_terms
from fleet.k8s.well_known import ALL_ADDRESSES, HOSTNAME_LABEL, OWN_PREFIX, TTL_ANNOTATION
from fleet.quantity import parse_quantity

_intern = sys.intern


def admission_spec(spec: dict[str, Any], requests_json: bytes) -> AdmissionSpec:
    """Return what admission reads of a pod's spec; `requests_json` is the sum of its requests."""
    security = spec.get("securityContext") or {}
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return AdmissionSpec(
        requests=_requests(requests_json),
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
