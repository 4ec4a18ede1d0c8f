"""Pod workers: one machine per pod, from first sync to cleanup.

    SYNC --deleted, removed, or ended--> TERMINATING --containers stopped--> TERMINATED --> finished

State only moves forward. Within a state one sync runs at a time; `stage` says what it waits for,
and what happens meanwhile is `pending` until it is done. Only a wait for volumes can be cut short.
Source: pkg/kubelet/pod_workers.go, UpdatePod, podWorkerLoop, completeWork.
Differs: a static pod does not exist here; eviction comes with its manager.
"""

import enum

from fleet.clock import NS_PER_S
from fleet.objects import ContainerSpec, Pod, WaitingState

BACKOFF_PERIOD_NS = 10 * NS_PER_S
RESYNC_NS = 60 * NS_PER_S
GRACE_MIN_S = 1


class WorkerState(enum.IntEnum):
    """What a pod is on its way to."""

    SYNC = 0  # the pod should be running
    TERMINATING = 1  # its containers are being stopped
    TERMINATED = 2  # nothing runs any more
    FINISHED = 3  # nothing is left to do but to forget it


class Stage(enum.IntEnum):
    """What the sync that is running waits for."""

    IDLE = 0
    MOUNT = 1  # the volume manager
    MOUNTED = 2  # the next look at the volumes
    SANDBOX = 3  # the runtime, creating the sandbox
    START = 4  # the runtime, starting the first container of `plan`
    STOP = 5  # the runtime, stopping containers
    UNMOUNT = 6  # the volume manager, on the way out


RUNTIME_STAGES = frozenset((Stage.SANDBOX, Stage.START))


class PodWorker:
    """The worker of one pod."""

    __slots__ = (
        "due_ns",
        "fresh",
        "grace_s",
        "had_actions",
        "last_sync_ns",
        "pending",
        "plan",
        "pod",
        "reasons",
        "registered",
        "removed",
        "seen_ns",
        "stage",
        "state",
        "sync_ns",
        "volumes_ready",
    )

    def __init__(self, pod: Pod, now_ns: int) -> None:
        self.pod = pod
        self.state = WorkerState.SYNC
        self.stage = Stage.IDLE
        self.pending = False  # something happened during this sync
        self.removed = False  # the object is gone
        self.registered = False  # its ConfigMaps and Secrets are watched
        self.volumes_ready = False
        self.had_actions = False  # this sync started something
        self.fresh = True  # the pod cache is newer than the last sync
        self.grace_s = 0  # of the termination, 0 before there is one
        self.seen_ns = now_ns  # when the pod was first seen; -1 once its start is reported
        self.last_sync_ns = 0
        self.sync_ns = 0  # when the work queue calls for a sync, 0 for never
        self.due_ns = 0  # when `stage` is over, else when the runtime is to be looked at
        self.plan: tuple[ContainerSpec, ...] = ()  # the containers that this sync still starts
        self.reasons: dict[str, WaitingState] | None = None  # the reason cache

    @property
    def is_terminating(self) -> bool:
        """Return whether the pod's end was asked for. Source: IsPodTerminationRequested."""
        return self.state is not WorkerState.SYNC

    def on_pod(self, pod: Pod) -> bool:
        """Take the newest version; return whether the running sync must be looked at again.

        That is so when the pod begins to end, and when its grace period became shorter.
        """
        assert pod.uid == self.pod.uid, (pod.uid, self.pod.uid)
        self.pod = pod
        if self.state is WorkerState.SYNC:
            if not pod.deleting and pod.status.phase not in {"Succeeded", "Failed"}:
                return False
            self.state = WorkerState.TERMINATING
            self.grace_s = effective_grace_s(0, pod)
            return True
        if self.state is WorkerState.TERMINATING:
            return self._shorten()
        return False

    def kill(self) -> bool:
        """Begin to end the pod whose object is gone; return whether that is news."""
        if self.state is not WorkerState.SYNC:
            return False
        self.state = WorkerState.TERMINATING
        self.grace_s = effective_grace_s(0, self.pod)
        return True

    def complete_sync(self) -> None:
        """Go on to the end, now that all containers ended by themselves."""
        assert self.state is WorkerState.SYNC, self.state
        self.state = WorkerState.TERMINATING
        self.grace_s = effective_grace_s(0, self.pod)

    def complete_terminating(self) -> None:
        """Note that nothing runs any more."""
        assert self.state is WorkerState.TERMINATING, self.state
        self.state = WorkerState.TERMINATED

    def complete_terminated(self) -> None:
        """Note that nothing is left to do."""
        assert self.state is WorkerState.TERMINATED, self.state
        self.state = WorkerState.FINISHED
        self.plan = ()
        self.reasons = None

    def end_sync(self, now_ns: int, *, relisted: bool) -> None:
        """End the running sync; `relisted`: a relist on demand made the pod cache newer."""
        self.stage = Stage.IDLE
        self.due_ns = 0
        self.last_sync_ns = now_ns
        self.fresh = relisted
        self.had_actions = False

    def _shorten(self) -> bool:
        grace_s = effective_grace_s(self.grace_s, self.pod)
        shortened = grace_s < self.grace_s
        self.grace_s = grace_s
        return shortened


def effective_grace_s(grace_s: int, pod: Pod) -> int:
    """Return the grace period: it may only shrink, and is at least a second.

    Source: calculateEffectiveGracePeriod.
    """
    asked_s = pod.deletion_grace_s
    if asked_s is not None and (not grace_s or asked_s < grace_s):
        grace_s = asked_s
    elif not grace_s:
        grace_s = pod.termination_grace_s
    return max(grace_s, GRACE_MIN_S)


def requeue_ns(now_ns: int, retry_ns: int, share: float) -> int:
    """Return when a sync that failed is tried again; `retry_ns` is the end of a back-off, or 0.

    Source: completeWork; wait.Jitter with a factor of 0.5.
    """
    delay_ns = min(max(retry_ns - now_ns, 0), RESYNC_NS) if retry_ns else BACKOFF_PERIOD_NS
    return now_ns + int(delay_ns * (1 + share / 2))
