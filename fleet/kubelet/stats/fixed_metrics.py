"""The kubelet's metrics that are the same on every node: of what no node of fleet does.

Nothing is pinned by CPU and memory managers whose policy is none, no event comes from the runtime,
no pod is left over: a real kubelet shows these zeros, too.
Source: pkg/kubelet/metrics/metrics.go.
"""

from collections.abc import Sequence

from fleet.kubelet.stats.exposition import Family, go_float, one_text
from fleet.kubelet.tally import DEFAULT_BOUNDS

_ZEROS = (
    Family(
        "force_cleaned_failed_volume_operation_errors_total",
        "[ALPHA] The number of volumes that failed force cleanup after their reconstruction failed "
        "during kubelet startup.",
        "counter",
    ),
    Family(
        "force_cleaned_failed_volume_operations_total",
        "[ALPHA] The number of volumes that were force cleaned after their reconstruction failed "
        "during kubelet startup. This includes both successful and failed cleanups.",
        "counter",
    ),
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
_ROTATION_AGE = Family(
    "rest_client_exec_plugin_certificate_rotation_age",
    "[ALPHA] Histogram of the number of seconds the last auth exec plugin client certificate lived "
    "before being rotated. If auth exec plugin client certificates are unused, histogram will "
    "contain no data.",
    "histogram",
)
_ROTATION_BOUNDS = (
    *(600, 1_800, 3_600, 14_400, 86_400, 604_800, 2_592_000, 7_776_000, 15_552_000, 31_104_000),
    124_416_000,
)
_PLUGIN_TTL = Family(
    "rest_client_exec_plugin_ttl_seconds",
    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the "
    "auth exec plugin. The value is in seconds until certificate expiry (negative if already "
    "expired). If auth exec plugins are unused or manage no TLS certificates, the value will be "
    "+INF.",
)
_PROVIDER = Family(
    "kubelet_metrics_provider",
    "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' "
    "and 'cri'",
)


def _empty(family: Family, bounds: Sequence[float] = DEFAULT_BOUNDS) -> str:
    """Return a histogram of nothing."""
    shown = (*(go_float(bound) for bound in bounds), "+Inf")
    lines = "".join(f'{family.name}_bucket{{le="{bound}"}} 0\n' for bound in shown)
    return f"{family.head()}{lines}{family.name}_sum 0\n{family.name}_count 0\n"


FIXED: tuple[tuple[str, str], ...] = (
    *((family.name, f"{family.head()}{family.name} 0\n") for family in _ZEROS),
    (_LATENCY.name, _empty(_LATENCY)),
    (_ROTATION_AGE.name, _empty(_ROTATION_AGE, _ROTATION_BOUNDS)),
    (_PLUGIN_TTL.name, one_text(_PLUGIN_TTL, float("inf"))),
    (_PROVIDER.name, f'{_PROVIDER.head()}{_PROVIDER.name}{{provider="cadvisor"}} 1\n'),
)
"""Text by name."""
