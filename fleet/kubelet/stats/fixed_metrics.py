"""The kubelet's metrics that are the same on every node: of what no node of fleet does.

Nothing is pinned by CPU and memory managers whose policy is none, no event comes from the runtime,
no pod is left over: a real kubelet shows these zeros, too.
Source: pkg/kubelet/metrics/metrics.go.
"""

from fleet.kubelet.node.tally import DEFAULT_BOUNDS
from fleet.kubelet.stats.exposition import Family, go_float

_ZEROS = (
    Family(
        "kubelet_cpu_manager_pinning_errors_total",
        "[ALPHA] The number of cpu core allocations which required pinning failed.",
        "counter",
    ),
    Family(
        "kubelet_cpu_manager_pinning_requests_total",
        "[ALPHA] The number of cpu core allocations which required pinning.",
        "counter",
    ),
    Family(
        "kubelet_evented_pleg_connection_error_count",
        "[ALPHA] The number of errors encountered during the establishment of streaming "
        "connection with the CRI runtime.",
        "counter",
    ),
    Family(
        "kubelet_evented_pleg_connection_success_count",
        "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
        "counter",
    ),
    Family(
        "kubelet_lifecycle_handler_http_fallbacks_total",
        "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
        "counter",
    ),
    Family(
        "kubelet_memory_manager_pinning_errors_total",
        "[ALPHA] The number of memory pages allocations which required pinning that failed.",
        "counter",
    ),
    Family(
        "kubelet_memory_manager_pinning_requests_total",
        "[ALPHA] The number of memory pages allocations which required pinning.",
        "counter",
    ),
    Family(
        "kubelet_orphan_pod_cleaned_volumes",
        "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last "
        "periodic sweep.",
        "gauge",
    ),
    Family(
        "kubelet_orphan_pod_cleaned_volumes_errors",
        "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last "
        "periodic sweep.",
        "gauge",
    ),
    Family(
        "kubelet_orphaned_runtime_pods_total",
        "[ALPHA] Number of pods that have been detected in the container runtime without being "
        "already known to the pod worker. This typically indicates the kubelet was restarted "
        "while a pod was force deleted in the API or in the local configuration, which is "
        "unusual.",
        "counter",
    ),
    Family(
        "kubelet_pod_watch_events_dropped_total",
        "[ALPHA] Cumulative number of pod watch events dropped.",
        "counter",
    ),
)
_LATENCY = Family(
    "kubelet_evented_pleg_connection_latency_seconds",
    "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
    "histogram",
)
_PROVIDER = Family(
    "kubelet_metrics_provider",
    "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' "
    "and 'cri'",
)


def _empty(family: Family) -> str:
    """Return a histogram of nothing."""
    bounds = (*(go_float(bound) for bound in DEFAULT_BOUNDS), "+Inf")
    lines = "".join(f'{family.name}_bucket{{le="{bound}"}} 0\n' for bound in bounds)
    return f"{family.head()}{lines}{family.name}_sum 0\n{family.name}_count 0\n"


FIXED: tuple[tuple[str, str], ...] = (
    *((family.name, f"{family.head()}{family.name} 0\n") for family in _ZEROS),
    (_LATENCY.name, _empty(_LATENCY)),
    (_PROVIDER.name, f'{_PROVIDER.head()}{_PROVIDER.name}{{provider="cadvisor"}} 1\n'),
)
"""Text by name."""
