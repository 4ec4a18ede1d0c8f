"""What a pod and its containers are given, and what a new version of the pod asks for instead.

A limit of the pod itself is also one of each container that has none for that resource: so a
resize of the pod changes these containers, too. Amounts are JSON as the API renders them, with
sorted keys, so that equal ones are equal bytes.
Source: pkg/kubelet/allocation/allocation_manager.go, updatePodFromAllocation, allocationFromPod;
pkg/kubelet/util/util.go, GetLimits; pkg/kubelet/kuberuntime/kuberuntime_manager.go,
containerResourcesFromRequirements; pkg/kubelet/kubelet.go, recordResizeOperations.
"""

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from fleet.k8s.pods import ContainerSpec, ContainerStatus, Pod, PodSpec, RunningState
from fleet.profile.node_model import NodeModel
from fleet.quantity import Quantity, parse_quantity

RESOURCES = ("cpu", "memory")
KINDS = ("requests", "limits")
POD_GATE = "InPlacePodLevelResourcesVerticalScaling"
KEPT_MAX = 1024
WHOLE = ""  # in the place of a container's name: the pod itself
Resources = dict[str, dict[str, Any]]


def resizes_pods(model: NodeModel) -> bool:
    """Return whether a kubelet resizes pods as a whole, and so shows their resources.

    Source: the feature gate; it needs NodeDeclaredFeatures, and is declared by itself.
    """
    return POD_GATE in model.declared_features


def has_other_resources(old: Pod, new: Pod, *, whole: bool) -> bool:
    """Return whether containers, or the pod as a `whole`, ask for other resources than before."""
    before, after = old.spec, new.spec
    if before is after:
        return False
    if whole and before.own_json != after.own_json:
        return True
    had = {each.name: each.resources_json for each in (*before.init_containers, *before.containers)}
    return any(
        had.get(each.name, each.resources_json) != each.resources_json
        for each in (*after.init_containers, *after.containers)
    )


def asks_other(old: Pod, new: Pod, resource: str) -> bool:
    """Return whether a container requests another amount of a resource than it was given.

    Source: pkg/kubelet/allocation/handlers.go, guaranteedPodResourceResizeRequired.
    """
    had = {each.name: each for each in (*old.spec.init_containers, *old.spec.containers)}
    return any(
        each.name in had and _request(each, resource) != _request(had[each.name], resource)
        for each in (*new.spec.init_containers, *new.spec.containers)
    )


def _request(spec: ContainerSpec, resource: str) -> str | None:
    asked: dict[str, str] = orjson.loads(spec.requests_json) if spec.requests_json else {}
    return asked.get(resource)


def asks_more(old: Pod, new: Pod) -> bool:
    """Return whether a pod requests more CPU or memory. Source: isResizeIncreasingRequests."""
    had, asked = dict(old.spec.admission.requests), dict(new.spec.admission.requests)
    return any(asked.get(name, 0) > had.get(name, 0) for name in RESOURCES)


def with_resources(pod: Pod, allocated: Pod) -> Pod:
    """Return a pod with the resources of another version. Source: UpdatePodFromAllocation."""
    spec, had = pod.spec, allocated.spec
    new = copy.copy(pod)
    new.spec = spec._replace(
        containers=_with_resources(spec.containers, had.containers),
        init_containers=_with_resources(spec.init_containers, had.init_containers),
        allocated_json=had.allocated_json,
        resources_json=had.resources_json,
        running_json=had.running_json,
        ended_json=had.ended_json,
        own_json=had.own_json,
        admission=spec.admission._replace(
            requests=had.admission.requests, pod_level=had.admission.pod_level
        ),
    )
    return new


def _with_resources(
    specs: tuple[ContainerSpec, ...], allocated: tuple[ContainerSpec, ...]
) -> tuple[ContainerSpec, ...]:
    known = {spec.name: spec for spec in allocated}
    return tuple(
        spec._replace(
            requests_json=known[spec.name].requests_json,
            resources_json=known[spec.name].resources_json,
        )
        if spec.name in known
        else spec
        for spec in specs
    )


def limited_json(spec: ContainerSpec, pod: PodSpec) -> bytes:
    """Return the resources of a container, with the limits of its pod where it has none."""
    return _limited(spec.resources_json, pod.own_json) if pod.own_json else spec.resources_json


@lru_cache(maxsize=KEPT_MAX)
def _limited(resources_json: bytes, own_json: bytes) -> bytes:
    found = amounts(resources_json)
    given = amounts(own_json)["limits"]
    limits = found["limits"]
    missing = {
        name: given[name]
        for name in RESOURCES
        if name in given and limits.get(name, "0") == "0" and given[name] != "0"
    }
    if not missing:
        return resources_json
    return rendered({**found, "limits": {**limits, **missing}})


def updated_json(spec: ContainerSpec, pod: PodSpec) -> bytes | None:
    """Return what a container has once it was updated as it runs; None: as if made anew.

    One that requests no CPU has the shares of its limit when it is made, and the least that there
    are when it is updated: its request is then said to be 0.
    Source: updatePodContainerResources; kuberuntime_container_linux.go, calculateLinuxResources.
    """
    found = amounts(limited_json(spec, pod))
    if "cpu" in found["requests"] or "cpu" not in found["limits"]:
        return None
    return rendered({**found, "requests": {**found["requests"], "cpu": "0"}})


def updated_by_status(pod: Pod) -> dict[str, bytes]:
    """Return which containers were updated as they ran, by what is told of their requests."""
    known = {each.name: each for each in (*pod.spec.init_containers, *pod.spec.containers)}
    return {
        each.name: json
        for each in (*pod.status.init_containers, *pod.status.containers)
        if isinstance(each.state, RunningState)
        and (requests := amounts(each.resources_json)["requests"])
        and "cpu" not in requests
        and each.name in known
        and (json := updated_json(known[each.name], pod.spec)) is not None
    }


def changed(had: bytes, asked: bytes) -> tuple[str, ...]:
    """Return of which resources the amounts differ."""
    if had == asked:
        return ()
    before, after = amounts(had), amounts(asked)
    return tuple(
        name
        for name in RESOURCES
        if any(before[kind].get(name, "0") != after[kind].get(name, "0") for kind in KINDS)
    )


def lowered_memory_limit(had: bytes, asked: bytes) -> int:
    """Return the limit of memory in bytes if it is new or lower than it was, else 0."""
    before, after = (_memory_limit(each) for each in (had, asked))
    return after if after and (not before or after < before) else 0


def _memory_limit(resources_json: bytes) -> int:
    return parse_quantity(amounts(resources_json)["limits"].get("memory", "0")).value


def amounts(json: bytes) -> Resources:
    """Return requests and limits; what is not there is empty."""
    found: Resources = orjson.loads(json) if json else {}
    return {"limits": {}, "requests": {}, **found}


def rendered(found: Resources) -> bytes:
    """Return amounts as JSON with sorted keys, without what is empty."""
    told = {kind: each for kind, each in found.items() if each}
    return b"%b" % orjson.dumps(told, option=orjson.OPT_SORT_KEYS)


def allocated_by_status(pod: Pod) -> Pod | None:
    """Return a pod with the requests that its status says were allocated; None: those it asks for.

    What a resize of them had changed besides, the limits, are then as its status shows them.
    Differs: of a kubelet that does not show what the pod as a whole was allocated, only those of
    the containers are known.
    """
    spec, status = pod.spec, pod.status
    told = {each.name: each for each in (*status.init_containers, *status.containers)}
    containers = _as_told(spec.containers, told)
    inits = _as_told(spec.init_containers, told)
    had = status.allocated_json or spec.allocated_json
    if had == spec.allocated_json and (containers, inits) == (
        spec.containers,
        spec.init_containers,
    ):
        return None
    new = copy.copy(pod)
    new.spec = spec._replace(containers=containers, init_containers=inits)
    if not status.allocated_json:
        requests = _moved(spec, new.spec)
        new.spec = new.spec._replace(admission=spec.admission._replace(requests=requests))
        return new
    own = amounts(spec.own_json)
    limits = amounts(status.resources_json)["limits"]
    allocated = {"limits": limits, "requests": orjson.loads(had)}
    given = _own_as_told(own, amounts(spec.resources_json), allocated)
    new.spec = new.spec._replace(
        allocated_json=had,
        resources_json=rendered(allocated),
        running_json=status.resources_json,
        ended_json=status.resources_json,
        own_json=spec.own_json and rendered(given),
        admission=spec.admission._replace(requests=_requests(allocated["requests"])),
    )
    return new


def _moved(asked: PodSpec, given: PodSpec) -> tuple[tuple[str, int], ...]:
    """Return the requests of a pod whose containers have other ones than they ask for.

    Differs: as if all of its containers ran at once.
    """
    found = dict(asked.admission.requests)
    for specs, sign in ((asked, -1), (given, 1)):
        for each in (*specs.init_containers, *specs.containers):
            for name, amount in _requests(amounts(each.resources_json)["requests"]):
                found[name] = found.get(name, 0) + sign * amount
    return tuple(sorted(found.items()))


def _as_told(
    specs: tuple[ContainerSpec, ...], told: Mapping[str, ContainerStatus]
) -> tuple[ContainerSpec, ...]:
    """Return containers with the resources that their statuses show."""
    return tuple(_told(spec, told[spec.name]) if spec.name in told else spec for spec in specs)


def _told(spec: ContainerSpec, status: ContainerStatus) -> ContainerSpec:
    had = status.allocated_json
    if not status.container_id or had == spec.requests_json:
        return spec
    asked = amounts(spec.resources_json)
    limits = _taken(asked["limits"], amounts(status.resources_json)["limits"])
    requests = orjson.loads(had) if had else {}
    json = rendered({**asked, "limits": limits, "requests": requests})
    return spec._replace(requests_json=had, resources_json=json)


def _own_as_told(own: Resources, asked: Resources, told: Resources) -> Resources:
    """Return a pod's own resources as its status shows them, without its overhead."""
    requests = {}
    for name, amount in own["requests"].items():
        has = parse_quantity(told["requests"].get(name, amount))
        overhead = parse_quantity(asked["requests"].get(name, amount)).nano
        overhead -= parse_quantity(amount).nano
        requests[name] = str(Quantity(has.nano - overhead, has.format))
    return {**own, "limits": _taken(own["limits"], told["limits"]), "requests": requests}


def _taken(asked: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    return {name: told.get(name, amount) for name, amount in asked.items()}


def _requests(found: dict[str, str]) -> tuple[tuple[str, int], ...]:
    """Return requests as admission counts them: CPU in thousandths."""
    known = ((name, parse_quantity(text)) for name, text in found.items())
    return tuple(
        sorted((name, each.milli if name == "cpu" else each.value) for name, each in known)
    )


def actuated_by_status(pod: Pod) -> tuple[Pod, dict[str, bytes]]:
    """Return a pod as its cgroup is, and what it and its containers have, by its status."""
    spec, status = pod.spec, pod.status
    shown = amounts(status.resources_json)
    had = copy.copy(pod)
    own = amounts(spec.own_json)
    own_json = spec.own_json and rendered({kind: _taken(own[kind], shown[kind]) for kind in KINDS})
    had.spec = spec._replace(
        running_json=status.resources_json, ended_json=status.resources_json, own_json=own_json
    )
    has = {WHOLE: own_json}
    known = {each.name: each for each in (*spec.init_containers, *spec.containers)}
    for each in (*status.init_containers, *status.containers):
        if each.name in known and isinstance(each.state, RunningState):
            asked, told = amounts(known[each.name].resources_json), amounts(each.resources_json)
            json = rendered({**asked, **{kind: _taken(asked[kind], told[kind]) for kind in KINDS}})
            has[each.name] = limited_json(known[each.name]._replace(resources_json=json), had.spec)
    return had, has
