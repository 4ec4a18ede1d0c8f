"""Taints and tolerations, and the conditions of Nodes.

Source: component-helpers/scheduling/corev1/helpers.go, api/core/v1/toleration.go ToleratesTaint.
"""

from collections.abc import Iterable

from world.strategic_merge import Object

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_EXECUTE = "NoExecute"
NO_SCHEDULE = "NoSchedule"
OF_CONDITIONS = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
}
"""Source: node_lifecycle_controller.go, nodeConditionToTaintKeyStatusMap."""
MANAGED = frozenset({*OF_CONDITIONS.values(), UNSCHEDULABLE})


def taints_of(node: Object) -> list[Object]:
    """Return the taints of a Node."""
    found: list[Object] = node.get("spec", {}).get("taints") or []
    return found


def condition_of(obj: Object, kind: str) -> Object | None:
    """Return a condition of an object."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), None)


def tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a toleration is of a taint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    is_named = bool(toleration.get("key"))
    return is_named and toleration.get("value", "") == taint.get("value", "")


def is_tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    """Return whether any toleration is of a taint."""
    return any(tolerates(each, taint) for each in tolerations)
