"""activeDeadlineSeconds: a pod that was active for longer is failed.

Source: pkg/kubelet/active_deadline.go; kubelet.go, syncLoopIteration, getPodsToSync.
Differs: nothing looks at every pod each second; the tick that would find one is computed.
"""

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod, PodStatus

REASON = "DeadlineExceeded"
MESSAGE = "Pod was active on the node longer than the specified deadline"


def deadline_ns(pod: Pod, status: PodStatus, wall_offset_ns: int) -> int:
    """Return when a pod has been active for too long, 0 for never or not known yet."""
    if not pod.spec.active_deadline_s or not status.start_time_s:
        return 0
    return (status.start_time_s + pod.spec.active_deadline_s) * NS_PER_S - wall_offset_ns


def is_past_deadline(pod: Pod, status: PodStatus, now_ns: int, wall_offset_ns: int) -> bool:
    """Tell whether a pod has been active for too long. Source: pastActiveDeadline."""
    due_ns = deadline_ns(pod, status, wall_offset_ns)
    return due_ns != 0 and now_ns >= due_ns
