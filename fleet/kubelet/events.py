"""Events as client-go sends them: grouped, counted, and dropped when they are spam.

One recorder stands for one kubelet's broadcaster: the correlator decides between a POST, a PATCH
of the count, and nothing; the sender has one request in flight, in order, and tries again.
Source: client-go/tools/record/event.go, recordToSink.
"""

import enum
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import (
    COMBINED,
    ApiCall,
    EventObject,
    Milestone,
    Op,
    Reply,
    ReplyKind,
    Timer,
)
from fleet.k8s.pods import ObjectRef
from fleet.kubelet.event_correlator import RecentEvents, SeenEvents

if TYPE_CHECKING:
    from fleet.kubelet.turn import Turn  # which holds the recorder

QUEUE_MAX = 1000  # maxQueuedEvents: what comes then is lost
TRIES_MAX = 12  # maxTriesPerEvent
RETRY_NS = 10 * NS_PER_S  # defaultSleepDuration; the first wait is a random part of it
_RETRY_STREAM = 0xE7E27


class Reason(enum.Enum):
    """Why a kubelet reports: the API's text, and whether it is a warning.

    Source: pkg/kubelet/events/event.go; pkg/kubelet/kubelet_node_status.go for the node's own.
    """

    STARTING = ("Starting", False)
    NODE_READY = ("NodeReady", False)
    NODE_NOT_READY = ("NodeNotReady", False)
    NODE_SCHEDULABLE = ("NodeSchedulable", False)
    NODE_NOT_SCHEDULABLE = ("NodeNotSchedulable", False)
    NODE_ALLOCATABLE_ENFORCED = ("NodeAllocatableEnforced", False)
    NODE_HAS_SUFFICIENT_MEMORY = ("NodeHasSufficientMemory", False)
    NODE_HAS_INSUFFICIENT_MEMORY = ("NodeHasInsufficientMemory", False)
    NODE_HAS_NO_DISK_PRESSURE = ("NodeHasNoDiskPressure", False)
    NODE_HAS_DISK_PRESSURE = ("NodeHasDiskPressure", False)
    NODE_HAS_SUFFICIENT_PID = ("NodeHasSufficientPID", False)
    NODE_HAS_INSUFFICIENT_PID = ("NodeHasInsufficientPID", False)
    INVALID_DISK_CAPACITY = ("InvalidDiskCapacity", True)
    VOLUMES_ON_DISK = ("PossibleMemoryBackedVolumesOnDisk", True)
    EVICTION_THRESHOLD_MET = ("EvictionThresholdMet", True)
    SYSTEM_OOM = ("SystemOOM", True)
    EVICTED = ("Evicted", True)
    SHUTDOWN = ("Shutdown", False)
    PULLING = ("Pulling", False)
    PULLED = ("Pulled", False)
    CREATED = ("Created", False)
    STARTED = ("Started", False)
    KILLING = ("Killing", False)
    REBOOTED = ("Rebooted", True)
    SANDBOX_CHANGED = ("SandboxChanged", False)
    UNHEALTHY = ("Unhealthy", True)
    PROBE_WARNING = ("ProbeWarning", True)
    FAILED_POST_START_HOOK = ("FailedPostStartHook", True)
    FAILED_KILL_POD = ("FailedKillPod", True)
    EXCEEDED_GRACE_PERIOD = ("ExceededGracePeriod", True)
    FAILED_PRE_STOP_HOOK = ("FailedPreStopHook", True)
    BACK_OFF = ("BackOff", True)
    BACK_OFF_PULL_IMAGE = ("BackOff", False)
    ERR_IMAGE_NEVER_PULL = ("ErrImageNeverPull", True)
    FAILED_TO_INSPECT_IMAGE = ("InspectFailed", True)
    FAILED_PULL_SECRET = ("FailedToRetrieveImagePullSecret", True)
    DNS_CONFIG_FORMING = ("DNSConfigForming", True)
    MISSING_CLUSTER_DNS = ("MissingClusterDNS", True)
    IMAGE_GC_FAILED = ("ImageGCFailed", True)
    CONTAINER_GC_FAILED = ("ContainerGCFailed", True)
    FREE_DISK_SPACE_FAILED = ("FreeDiskSpaceFailed", True)
    FAILED = ("Failed", True)
    FAILED_MOUNT = ("FailedMount", True)
    FAILED_MAP_VOLUME = ("FailedMapVolume", True)
    SUCCESSFUL_MOUNT_VOLUME = ("SuccessfulMountVolume", False)
    FILE_SYSTEM_RESIZE_SUCCESSFUL = ("FileSystemResizeSuccessful", False)
    FILE_SYSTEM_RESIZE_FAILED = ("FileSystemResizeFailed", True)
    VOLUME_RESIZE_FAILED = ("VolumeResizeFailed", True)
    FAILED_VALIDATION = ("FailedValidation", True)
    DEADLINE_EXCEEDED = ("DeadlineExceeded", False)
    RESIZE_STARTED = ("ResizeStarted", False)
    RESIZE_COMPLETED = ("ResizeCompleted", False)
    RESIZE_DEFERRED = ("ResizeDeferred", True)
    RESIZE_INFEASIBLE = ("ResizeInfeasible", True)
    RESIZE_ERROR = ("ResizeError", True)
    NETWORK_NOT_READY = ("NetworkNotReady", True)
    FAILED_CREATE_POD_SANDBOX = ("FailedCreatePodSandBox", True)

    def __init__(self, text: str, warning: bool) -> None:  # noqa: FBT001 - an enum's value
        self.text = text
        self.warning = warning


class OpenReason(NamedTuple):
    """A reason out of an open set, such as OutOfnvidia.com/gpu of an admission."""

    text: str
    warning: bool = True


AnyReason = Reason | OpenReason


class EventRecorder:
    """Record, correlate and send the events of one kubelet."""

    __slots__ = ("_named_ns", "_queue", "_recent", "_retry_ns", "_seen", "_tries")

    def __init__(self) -> None:
        self._seen = SeenEvents()
        self._recent: RecentEvents | None = None
        self._queue: deque[ApiCall] | None = None  # the first one is in flight
        self._tries = 0
        self._retry_ns = 0
        self._named_ns = 0  # names are instants: two events of one instant need two

    @classmethod
    def silent(cls) -> "EventRecorder":
        """Return the one recorder of all nodes that record no events: fidelity light."""
        return _SILENT

    def event(
        self,
        about: ObjectRef,
        reason: AnyReason,
        message: str,
        turn: "Turn",
        annotations: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Record one event the way client-go would: group, count, then drop what is spam.

        Source: EventCorrelator.EventCorrelate. The order matters: a dropped event still counts
        towards its group and its own count.
        """
        if turn.env.light:
            return
        wall_ns = turn.wall_ns
        recent = self._recent = self._recent or RecentEvents()
        message, key = recent.group(about, (reason.text, reason.warning), message, turn.now_ns)
        first_ns, count = self._seen.take(key)
        if not count:
            first_ns = self._named_ns = max(wall_ns, self._named_ns + 1)
        count += 1
        self._seen.put(key, first_ns, count)
        if not recent.admit(about, turn.now_ns, warning=reason.warning):
            self._drop(turn)
            return
        name = f"{about.name}.{first_ns:x}"
        event = EventObject(
            name,
            about,
            reason.warning,
            reason.text,
            message,
            count,
            first_ns // NS_PER_S,
            wall_ns // NS_PER_S,
            () if message.startswith(COMBINED) else annotations,
        )
        op = Op.CREATE_EVENT if count == 1 else Op.PATCH_EVENT
        self._enqueue(ApiCall(turn.node, op, name, event), turn)

    def on_reply(self, call: ApiCall, reply: Reply, turn: "Turn") -> None:
        """Send the next event, or this one again when no server answered.

        Source: event.go, recordToSink and recordEvent: a status error is final, except a 404 on a
        patch, which is posted as new.
        """
        assert self._queue, call
        if reply.kind is ReplyKind.LOST and self._tries + 1 < TRIES_MAX:
            self._tries += 1
            delay_ns = RETRY_NS
            if self._tries == 1:
                delay_ns = int(RETRY_NS * turn.draw(_RETRY_STREAM))
            self._retry_ns = turn.now_ns + delay_ns
            turn.arm(self._retry_ns, Timer.EVENT_SEND)
            return
        if reply.kind is ReplyKind.NOT_FOUND and call.op is Op.PATCH_EVENT:
            self._queue[0] = call._replace(op=Op.CREATE_EVENT)
            turn.out.append(self._queue[0])
            return
        if not reply.ok:
            self._drop(turn)
        self._queue.popleft()
        self._tries = 0
        if self._queue:
            turn.out.append(self._queue[0])
        else:
            self._queue = None

    def on_timer(self, turn: "Turn") -> None:
        """Try the first event again."""
        if self._queue and self._retry_ns and turn.now_ns >= self._retry_ns:
            self._retry_ns = 0
            turn.out.append(self._queue[0])

    def forget(self, now_ns: int) -> None:
        """Let go of what would start anew by now."""
        if self._recent is not None:
            self._recent.forget(now_ns)
            self._recent = self._recent or None

    def _enqueue(self, call: ApiCall, turn: "Turn") -> None:
        if self._queue is None:
            self._queue = deque((call,))
            turn.out.append(call)
        elif len(self._queue) >= QUEUE_MAX:
            self._drop(turn)
        else:
            self._queue.append(call)

    def _drop(self, turn: "Turn") -> None:
        turn.report(Milestone.EVENT_DROPPED)


_SILENT = EventRecorder()
