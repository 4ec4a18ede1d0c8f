"""What of /metrics is about the lives of pods: begun, refused a sandbox, ended, being resized.

All of it was counted as it happened, or is what is there now.
Source: pkg/kubelet/metrics/metrics.go; pkg/kubelet/images/metrics.go; cm/dra/claiminfo.go.
"""

from fleet.clock import NS_PER_S
from fleet.kubelet.devices.dra import ANY_DRIVER
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.stats.exposition import Family, go_float, one_text, text_of
from fleet.kubelet.tally import PER_POD_BOUNDS, NodeTally

CLAIMS = Family(
    "dra_resource_claims_in_use",
    "[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name "
    "(driver_name label value) and across all drivers (special value <any> for driver_name). Note "
    "that the sum of all by-driver counts is not the total number of in-use ResourceClaims because "
    "the same ResourceClaim might use devices from different drivers. Instead, use the count for "
    "the <any> driver_name.",
    labels=("driver_name",),
)
PER_POD = Family(
    "kubelet_containers_per_pod_count",
    "[ALPHA] The number of containers per pod.",
    "histogram",
)
FIRST_NETWORK = Family(
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images "
    "and run init containers, measured from pod creation timestamp to when all its containers are "
    "reported as started and observed via watch",
)
IMAGES = Family(
    "kubelet_image_manager_ensure_image_requests_total",
    "[ALPHA] Number of ensure-image requests processed by the kubelet.",
    "counter",
    ("present_locally", "pull_policy", "pull_required"),
)
RESIZES = Family(
    "kubelet_pod_in_progress_resizes", "[ALPHA] Number of in-progress resizes for pods."
)
SANDBOX_ERRORS = Family(
    "kubelet_started_pods_errors_total",
    "[ALPHA] Cumulative number of errors when starting pods",
    "counter",
)
TERMINATED = Family(
    "kubelet_terminated_containers_total",
    "[ALPHA] Cumulative number of container terminations.",
    "counter",
    ("container_type", "exit_code", "reason"),
)


def life_texts(kubelet: VirtualKubelet, tally: NodeTally) -> list[str]:
    """Return the text of each of these metrics; "" of one that has no series yet."""
    pods = kubelet.pods
    claims = {ANY_DRIVER: 0} if pods is None else pods.claims_in_use()
    return [
        text_of(CLAIMS, [((driver,), count) for driver, count in claims.items()]),
        _per_pod(tally),
        one_text(FIRST_NETWORK, max(tally.first_network_ns, 0) / NS_PER_S),
        text_of(
            IMAGES,
            [
                ((present, policy, pulled), count)
                for (policy, present, pulled), count in tally.images.items()
            ],
        ),
        one_text(RESIZES, 0 if pods is None else pods.resizes_in_progress()),
        one_text(SANDBOX_ERRORS, tally.sandbox_errors),
        text_of(
            TERMINATED,
            [
                ((kind, str(code), reason), count)
                for (kind, code, reason), count in tally.terminated.items()
            ],
        ),
    ]


def _per_pod(tally: NodeTally) -> str:
    """Return the histogram of the number of containers."""
    *counts, total = tally.containers_per_pod
    name, below, lines = PER_POD.name, 0, []
    for bound, count in zip((*map(go_float, PER_POD_BOUNDS), "+Inf"), counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {below}\n')
    return f"{PER_POD.head()}{''.join(lines)}{name}_sum {total}\n{name}_count {below}\n"
