"""What an API server makes of pods that it is given, beside what `tests/world` knows of it."""

import copy

from normalisation import Json
from world.admission import _default_container, admitted_pod

from fleet.quantity import parse_quantity

VOLUME_SUFFIX = "abcde"
PRIORITIES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
KEPT = ("qosClass", "observedGeneration")
COMPUTE = ("cpu", "memory")


def admitted(given: Json) -> Json:
    """Return a pod of a user as it is stored."""
    pod = admitted_pod(given, VOLUME_SUFFIX)
    spec = pod["spec"]
    if priority := PRIORITIES.get(spec.get("priorityClassName", "")):
        spec["priority"] = priority
    pod["status"] = first_status(spec)
    return pod


def with_defaults(spec: Json) -> Json:
    """Return a spec that was patched: ephemeral containers that came get their defaults."""
    made: Json = copy.deepcopy(spec)
    for container in made.get("ephemeralContainers", ()):
        _default_container(container)
    return made


def first_status(spec: Json) -> Json:
    """Return the status of a pod that is new. Source: registry/core/pod/strategy.go."""
    return {"phase": "Pending", "qosClass": qos_class(spec)}


def kept_fields(status: Json) -> Json:
    """Return the patch of a status without what it may not take back.

    Source: registry/core/pod/strategy.go, podStatusStrategy, preserveOldObservedGeneration.
    """
    found = {key: each for key, each in status.items() if each is not None or key not in KEPT}
    conditions = found.get("conditions")
    if conditions:
        found["conditions"] = [
            {key: each for key, each in one.items() if each is not None or key not in KEPT}
            for one in conditions
        ]
    return found


def qos_class(spec: Json) -> str:
    """Source: pkg/apis/core/v1/helper/qos/qos.go, ComputePodQOS."""
    whole = spec.get("resources")
    holders = [whole] if whole else []
    if not whole:
        containers = (*spec["containers"], *spec.get("initContainers", ()))
        holders = [each.get("resources") or {} for each in containers]
    totals: dict[str, dict[str, int]] = {"requests": {}, "limits": {}}
    for holder in holders:
        for side, total in totals.items():
            for name, value in (holder.get(side) or {}).items():
                amount = parse_quantity(str(value)).nano
                if name in COMPUTE and amount > 0:
                    total[name] = total.get(name, 0) + amount
    if not any(totals.values()):
        return "BestEffort"
    is_limited = all(set(COMPUTE) <= set(holder.get("limits") or {}) for holder in holders)
    return "Guaranteed" if is_limited and totals["requests"] == totals["limits"] else "Burstable"
