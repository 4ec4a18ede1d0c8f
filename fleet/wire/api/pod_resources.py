"""What a pod asks for as a whole, rendered as its status shows it, and its QoS class.

Source: component-helpers/resource/helpers.go, PodRequests, PodLimits;
pkg/apis/core/v1/helper/qos/qos.go, ComputePodQOS; pkg/kubelet/kubelet_pods.go,
getEffectiveAllocatedResources, convertToAPIPodLevelResourcesStatus.
"""

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from fleet.quantity import NANO, Quantity, parse_quantity

Amounts = dict[str, str]
QOS_RESOURCES = ("cpu", "memory")
MIN_SHARES_MILLI = 2
"""So little CPU, or less, is no request to a cgroup. Source: cm/helpers_linux.go, MinShares."""
MIN_LIMIT_MILLI = 10
"""Source: cm/helpers_linux.go, MinMilliCPULimit."""
NANO_OF_A_MILLI = NANO // 1000


class Demand(NamedTuple):
    """The resources of one container. `restarts` marks a sidecar among the init containers."""

    requests: Amounts
    limits: Amounts
    restarts: bool = False


class PodResources(NamedTuple):
    """What a pod asks for as a whole, as JSON."""

    allocated: bytes
    """Its requests, b"" when there are none."""
    asked: bytes
    """Requests and limits, as a status shows them until the pod runs."""
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
    """
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
