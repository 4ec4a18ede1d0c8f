"""What a pod asks for as a whole, rendered as its status shows it, and its QoS class.

Source: component-helpers/resource/helpers.go, PodRequests, PodLimits;
pkg/apis/core/v1/helper/qos/qos.go, ComputePodQOS.
"""

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from fleet.quantity import Quantity, parse_quantity

Amounts = dict[str, str]
QOS_RESOURCES = ("cpu", "memory")


class Demand(NamedTuple):
    """The resources of one container. `restarts` marks a sidecar among the init containers."""

    requests: Amounts
    limits: Amounts
    restarts: bool = False


def pod_resources(
    containers: list[Demand],
    init_containers: list[Demand],
    overhead: Amounts,
    own: Demand | None,
) -> tuple[bytes, bytes]:
    """Return allocatedResources (b"" when empty) and resources of a pod's status as JSON."""
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
    resources = {}
    if limits:
        resources["limits"] = limits
    if requests:
        resources["requests"] = requests
    return (
        orjson.dumps(requests, option=orjson.OPT_SORT_KEYS) if requests else b"",
        orjson.dumps(resources, option=orjson.OPT_SORT_KEYS) if resources else b"{}",
    )


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
