"""EvictionManager: signals, thresholds, grace periods, ranking, and the pressure of a node.

Source: pkg/kubelet/eviction/eviction_manager.go.
"""

from fleet.objects import Pod, Toleration

EVICTED = "Evicted"
CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure")
CRITICAL_PRIORITY = 2_000_000_000
"""Source: pkg/apis/scheduling/types.go, SystemCriticalPriority."""
MEMORY_PRESSURE_TAINT = "node.kubernetes.io/memory-pressure"
_NODE_CONDITION = "The node had condition: [%s]. "


def admits_under_pressure(pod: Pod, conditions: tuple[str, ...]) -> str:
    """Return why a pod is refused with reason Evicted, "" when it is not.

    `conditions` are the pressures of the node, in the order of `CONDITIONS`. Memory pressure
    alone refuses only BestEffort pods that do not tolerate it.
    Source: eviction_manager.go, Admit.
    """
    if not conditions or is_critical_pod(pod):
        return ""
    if conditions == ("MemoryPressure",) and (
        pod.qos_class != "BestEffort" or any(map(_tolerates_memory_pressure, pod.tolerations))
    ):
        return ""
    return _NODE_CONDITION % " ".join(conditions)


def is_critical_pod(pod: Pod) -> bool:
    """Return whether a pod is never evicted. Source: pkg/kubelet/types, IsCriticalPod."""
    return pod.is_mirror or pod.priority >= CRITICAL_PRIORITY


def _tolerates_memory_pressure(toleration: Toleration) -> bool:
    """Source: core/v1/toleration.go, ToleratesTaint, for the taint without a value."""
    if toleration.effect not in {"", "NoSchedule"}:
        return False
    if toleration.key not in {"", MEMORY_PRESSURE_TAINT}:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and not toleration.value
