"""How long a container that ended must wait before it is started again.

Source: k8s.io/client-go/util/flowcontrol/backoff.go; pkg/kubelet/kuberuntime, doBackOff.
"""

from fleet.clock import NS_PER_S
from fleet.k8s.pods import PodUid

BACKOFF_FIRST_NS = 10 * NS_PER_S
BACKOFF_FORGET_NS = 600 * NS_PER_S


class BackOff:
    """How long a failing container must wait: 10 s, doubling to 300 s or what is configured.

    An entry is (delay, time of the last bump); one that saw no exit for 600 s starts anew.
    Source: flowcontrol/backoff.go, Next, IsInBackOffSince; kuberuntime_manager.go, doBackOff.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[tuple[PodUid, str], tuple[int, int]] = {}

    def wait_ns(self, uid: PodUid, name: str, finished_ns: int, now_ns: int) -> int:
        """Return the whole delay that is still being waited for, 0 when it may start now."""
        delay_ns, bumped_ns = self._entries.get((uid, name), (0, 0))
        if finished_ns - bumped_ns > BACKOFF_FORGET_NS:
            return 0
        return delay_ns if now_ns - finished_ns < delay_ns else 0

    def next(self, uid: PodUid, name: str, finished_ns: int, now_ns: int, max_ns: int) -> None:
        """Count one more start after an exit; `max_ns` is maxContainerRestartPeriod."""
        entry = self._entries.get((uid, name))
        if entry is None or finished_ns - entry[1] > BACKOFF_FORGET_NS:
            delay_ns = min(BACKOFF_FIRST_NS, max_ns)
        else:
            delay_ns = min(entry[0] * 2, max_ns)
        self._entries[uid, name] = (delay_ns, now_ns)

    def forget(self, uid: PodUid) -> None:
        """Drop the entries of a pod."""
        for key in [key for key in self._entries if key[0] == uid]:
            del self._entries[key]
