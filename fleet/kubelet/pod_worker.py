"""Pod workers: one machine per pod, from first sync to cleanup.

    SYNC --deleted, removed, or ended--> TERMINATING --containers stopped--> TERMINATED --> finished

State only moves forward. Within a state one sync runs at a time; `stage` says what it waits for,
and what happens until then is `pending` until it is done. Only a wait for volumes can be cut short.
Source: pkg/kubelet/pod_workers.go, UpdatePod, podWorkerLoop, completeWork.
Differs: a static pod does not exist here.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s import pods
from fleet.k8s.well_known import DISRUPTION_TARGET
from fleet.profile.kubelet_configuration import CredentialProvider

BACKOFF_PERIOD_NS = 10 * NS_PER_S  # backOffPeriod, of a sync that failed
RESYNC_NS = 60 * NS_PER_S  # syncFrequency, unless configured: no sync is put off for longer
KILL_TIMEOUT_MIN_S = 10  # minTimeout of killPodNow
GRACE_MIN_S = 1  # 0 would mean a forced deletion
FAILED = 1 << 62  # a sync failed without a back-off whose end is known
PENDING_HOLD_NS = 1 * NS_PER_S
"""`light`: a pod that starts within this time is reported once, as Running."""
STARTED_PHASES = frozenset(("Running", "Succeeded"))
TERMINAL_PHASES = frozenset(("Succeeded", "Failed"))


class WorkerState(enum.IntEnum):
    """What a pod is on its way to."""

    SYNC = 0  # the pod should be running
    TERMINATING = 1  # its containers are being stopped
    TERMINATED = 2  # nothing runs any more
    FINISHED = 3  # nothing is left to do but to forget it


class SyncStage(enum.IntEnum):
    """How far the sync of a pod is; `pods/pod_sync.py` holds the table of what follows what.

    A worker rests in a stage that waits for something. A sync passes the others at once.
    """

    IDLE = 0  # no sync runs
    SYNC_POD = 1
    MOUNT = 2  # waits for the volume manager
    MOUNTED = 3  # waits for the next look at the volumes
    SECRETS = 4  # waits until the watches of the pull secrets have begun
    PREPARE = 5  # waits for the ResourceClaims of the pod
    RUNTIME = 6  # the runtime's half of SyncPod
    SANDBOX = 7  # waits for the runtime, which creates the sandbox
    SANDBOX_READY = 8
    PLAN = 9  # what to kill and what to start
    KILL = 10  # waits for the runtime, which stops one container
    STOP = 11  # waits for the runtime, which stops all containers
    CONFIGURE = 12
    NEXT = 13  # the first container of `plan`
    CREDENTIALS = 14  # waits for the lookup of credentials before a pull
    PULL = 15  # waits for the image manager
    CREATE = 16  # waits for what the environment of the first container of `plan` needs
    START = 17  # waits for the runtime, which starts the first container of `plan`
    POST_START = 18  # waits for the hook of the container that was started last
    COMPLETE = 19
    SYNC_TERMINATING = 20
    SYNC_TERMINATED = 21
    UNMOUNT = 22  # waits for the volume manager, on the way out
    ORPHAN = 23  # waits for housekeeping, which ends what runs of a pod that was refused


class Happened(enum.IntEnum):
    """What moves a worker on."""

    ASKED = 0  # a sync is wanted: UpdatePod, or the work queue
    ENDED = 1  # the same, for the pod is to end, or to end sooner
    ENTERED = 2  # the stage before is over
    DUE = 3  # the instant has come for which the worker waited
    DONE = 4  # the manager that the stage waits for is done
    FAILED = 5  # the manager that the stage waits for has given up


REFUSED = -1  # the last sync of a pod that was not admitted

RUNTIME_STAGES = frozenset(
    (
        SyncStage.SANDBOX,
        SyncStage.CREDENTIALS,
        SyncStage.PULL,
        SyncStage.CREATE,
        SyncStage.START,
        SyncStage.KILL,
        SyncStage.POST_START,
    )
)


class KillReason(enum.IntEnum):
    """Why one container is killed. Source: kuberuntime_manager.go, containerKillReason."""

    UNKNOWN = 0
    STARTUP_PROBE = 1
    LIVENESS_PROBE = 2
    POST_START_HOOK = 3
    RESTART_ALL = 4


class ContainerKill(NamedTuple):
    """One container to kill. Source: containerToKillInfo."""

    name: str
    message: str  # of the event Killing
    reason: KillReason


class Survivor(NamedTuple):
    """A container that is killed and does not end."""

    name: str
    kill_ns: int  # when it is sent SIGKILL
    end_ns: int  # when the runtime says that it failed, or is no longer waited for
    problem: str


class Kills(NamedTuple):
    """The containers that the running sync kills, one after another."""

    left: tuple[ContainerKill, ...] = ()
    done: tuple[str, ...] = ()
    failed_hooks: tuple[tuple[int, str], ...] = ()  # preStop hooks: when, of whom
    survivors: tuple[Survivor, ...] = ()
    sandbox_ns: int = 0  # until when the sandbox is being stopped, once they are over
    resets: bool = False  # then all containers are removed
    replaces: bool = False  # then the pod gets another sandbox
    resizes: bool = False  # then containers and the pod are given their new resources
    hook_error: str = ""  # of the postStart hook that is under way: why it will have failed
    hook_dies: bool = False  # it fails if its container ends before
    is_of_hook: bool = False  # it has failed: the sync goes on with the next container


NO_KILLS = Kills()


class Rejection(NamedTuple):
    """Why a pod is not admitted. Source: pkg/kubelet/lifecycle/interfaces.go, PodAdmitResult."""

    reason: str
    message: str


def disruption_target(pod: pods.Pod, message: str) -> pods.PodCondition:
    """Return the condition of a pod that a manager ends for the sake of others.

    The status manager sets its transition. Source: k8s.io/api, DisruptionTarget.
    """
    return pods.PodCondition(
        DISRUPTION_TARGET, "True", "TerminationByKubelet", message, 0, pod.generation
    )


class PodKill(NamedTuple):
    """A request of a manager to end a pod (eviction, preemption, shutdown, deadline).

    Source: pod_workers.go, KillPodOptions; its PodStatusFunc is what `applied` does. It is not
    called again when all containers have stopped: kubelet.go, SyncTerminatingPod.
    """

    reason: str
    message: str
    grace_s: int | None = None  # None: the pod's own
    condition: pods.PodCondition | None = None  # DisruptionTarget
    phase: str = "Failed"

    def applied(self, status: pods.PodStatus) -> pods.PodStatus:
        """Return a status that says why the pod is being ended."""
        return self.noted(status)._replace(
            phase=self.phase, reason=self.reason, message=self.message
        )

    def noted(self, status: pods.PodStatus) -> pods.PodStatus:
        """Return a status with the condition alone: the phase is as the containers ended.

        Whose containers all exited with 0 has succeeded, and says no reason.
        Source: kubelet_pods.go, generateAPIPodStatus.
        """
        if self.condition is None:
            return status
        others = (each for each in status.conditions if each.type != self.condition.type)
        return status._replace(conditions=(self.condition, *others))


@dataclass(slots=True, eq=False)
class CredentialLookup:
    """The providers that the pull of an image still has to ask, and whether one had credentials."""

    image: str
    left: tuple[CredentialProvider, ...]
    is_found: bool = False


@dataclass(slots=True, eq=False)
class PodWorker:
    """The worker of one pod."""

    pod: pods.Pod
    seen_ns: int  # when the pod was first seen; -1 once its start is reported
    told: pods.PodStatus | None = None  # by the API server, with the deletion
    state: WorkerState = WorkerState.SYNC
    stage: SyncStage = SyncStage.IDLE
    pending: bool = False  # something happened during this sync; idle: a sync waits for a relist
    removed: bool = False  # the object is gone
    registered: bool = False  # its ConfigMaps and Secrets are watched
    volumes_ready: bool = False
    had_actions: bool = False  # this sync started something
    fresh: bool = True  # the pod cache is newer than the last sync
    grace_s: int = 0  # of the termination, 0 before there is one
    killed: PodKill | None = None  # why a manager ended it
    retry_ns: int = 0  # of the running sync: 0 no error, FAILED, or the end of a back-off
    simulated_ns: int = 0  # of its start so far: what the runtime takes; 0 once it is reported
    api_ns: int = 0  # of its start so far: see PodStatuses.set_status
    pull_ns: int = 0  # of its start so far: what its images take
    last_sync_ns: int = 0
    began_ns: int = 0  # the sync that runs, or the last one; or `REFUSED`
    sync_ns: int = 0  # when the work queue calls for a sync, 0 for never
    due_ns: int = 0  # when `stage` is over, else when the runtime is to be looked at
    kills: Kills = NO_KILLS
    plan: tuple[pods.ContainerSpec, ...] = ()  # the containers that this sync still starts
    image_volumes: tuple[pods.VolumeSpec, ...] = ()  # whose images this sync still looks at
    image_failures: dict[str, pods.WaitingState] | None = (
        None  # of those before, by the volume's name
    )
    lookup: CredentialLookup | None = None  # before a pull
    pull_tokens: dict[str, int] | None = None  # until when each is good, by its audience
    reasons: dict[str, pods.WaitingState] | None = None  # the reason cache

    def on_pod(self, pod: pods.Pod, *, is_reconcile: bool = False) -> bool:
        """Take the newest version; return whether the running sync must be looked at again.

        That is so when the pod begins to end, and when its grace period became shorter. A change
        of the status alone is none that the worker hears of. Source: HandlePodReconcile.
        """
        assert pod.uid == self.pod.uid, (pod.uid, self.pod.uid)
        if pod.deleting and not self.pod.deleting:
            self.told = pod.status  # a RECONCILE brings no newer one to upstream's worker
        self.pod = pod
        if is_reconcile:
            return False
        if self.state is WorkerState.SYNC:
            if not pod.deleting and pod.status.phase not in TERMINAL_PHASES:
                return False
            return self._terminate()
        if self.state is WorkerState.TERMINATING:
            return self._shorten()
        return False

    def heed_phase(self) -> bool:
        """Begin to end a pod that the API shows as over; return whether it does.

        Others may write so: it counts at the next sync, unless the status manager has taken it
        back by then. Source: UpdatePod.
        """
        if self.state is not WorkerState.SYNC or self.pod.status.phase not in TERMINAL_PHASES:
            return False
        return self._terminate()

    def kill(self, killed: PodKill | None = None) -> bool:
        """Begin to end the pod; return whether the running sync must be looked at again.

        Without a `PodKill` the object is gone. The grace period can only become shorter.
        """
        override_s = None if killed is None else killed.grace_s
        if self.state is WorkerState.TERMINATING and override_s is not None:
            return self._shorten(override_s)
        if self.state is not WorkerState.SYNC:
            return False
        self.killed = killed
        return self._terminate(override_s)

    def _terminate(self, override_s: int | None = None) -> bool:
        self.state = WorkerState.TERMINATING
        self.grace_s = effective_grace_s(0, self.pod, override_s)
        return True

    def reject(self) -> None:
        """End a pod that was not admitted: it never runs."""
        assert self.state is WorkerState.SYNC, self.state
        assert self.stage is SyncStage.IDLE, self.stage
        self.state = WorkerState.FINISHED
        self.began_ns = REFUSED

    @property
    def was_refused(self) -> bool:
        """Return whether the pod was not admitted, and nothing was cleaned up after it yet."""
        return self.began_ns == REFUSED

    def terminate_refused(self) -> None:
        """Clean up after a pod that was not admitted: upstream's first worker of it does.

        Source: UpdatePod, isPodStatusCacheTerminal, also of a SyncPodKill.
        """
        assert self.was_refused, self.state
        self.state = WorkerState.TERMINATED

    def fail(self, retry_ns: int = 0) -> None:
        """Note that the running sync failed; `retry_ns` is the end of a back-off, if it is one."""
        retry_ns = retry_ns or FAILED
        self.retry_ns = min(self.retry_ns or FAILED, retry_ns)

    def forget_reason(self, name: str) -> None:
        """Drop a reason: the container has started."""
        if self.reasons is not None:
            self.reasons.pop(name, None)

    def has_reason(self, reason: str) -> bool:
        """Return whether the last attempt to start some container failed for a reason."""
        return any(each.reason == reason for each in (self.reasons or {}).values())

    def note_reason(self, name: str, reason: pods.WaitingState) -> None:
        """Put into the reason cache why a container could not be started."""
        self.reasons = {**(self.reasons or {}), name: reason}

    def complete_sync(self) -> None:
        """Go on to the end, now that all containers ended by themselves."""
        assert self.state is WorkerState.SYNC, self.state
        self._terminate()

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
        self.stage = SyncStage.IDLE
        self.due_ns = 0
        self.last_sync_ns = now_ns
        self.fresh = relisted
        self.had_actions = False
        self.retry_ns = 0
        self.kills = NO_KILLS

    def _shorten(self, override_s: int | None = None) -> bool:
        grace_s = effective_grace_s(self.grace_s, self.pod, override_s)
        shortened = grace_s < self.grace_s
        self.grace_s = grace_s
        return shortened


Workers = dict[pods.PodUid, PodWorker]  # the workers of one node's pods; `NodePods` owns them


def effective_grace_s(grace_s: int, pod: pods.Pod, override_s: int | None = None) -> int:
    """Return the grace period: it may only shrink, and is at least a second.

    Source: calculateEffectiveGracePeriod.
    """
    asked_s = pod.deletion_grace_s
    if asked_s is not None and (not grace_s or asked_s < grace_s):
        grace_s = asked_s
    if override_s is not None and (not grace_s or override_s < grace_s):
        grace_s = override_s
    if not grace_s and asked_s is None and override_s is None:
        grace_s = pod.spec.termination_grace_s
    return max(grace_s, GRACE_MIN_S)


def kill_timeout_ns(killed: PodKill, pod: pods.Pod) -> int:
    """Return for how long a manager waits for the end of a pod. Source: killPodNow."""
    grace_s = pod.spec.termination_grace_s if killed.grace_s is None else killed.grace_s
    return max(grace_s + grace_s // 2, KILL_TIMEOUT_MIN_S) * NS_PER_S


def requeue_ns(now_ns: int, retry_ns: int, share: float, resync_ns: int = RESYNC_NS) -> int:
    """Return when a sync that failed is tried again; `retry_ns` is as of `PodWorker.fail`.

    Source: completeWork; wait.Jitter with a factor of 0.5.
    """
    delay_ns = BACKOFF_PERIOD_NS
    if retry_ns not in {0, FAILED}:
        delay_ns = min(max(retry_ns - now_ns, 0), resync_ns)
    return now_ns + int(delay_ns * (1 + share / 2))
