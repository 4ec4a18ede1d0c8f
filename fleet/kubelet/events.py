"""Events as client-go sends them: grouped, counted, and dropped when they are spam.

One recorder stands for one kubelet's broadcaster: the correlator decides between a POST, a PATCH
of the count, and nothing; the sender has one request in flight, in order, and tries again.
Source: client-go/tools/record/event.go, recordToSink; events_cache.go, EventAggregator,
eventLogger, EventSourceObjectSpamFilter; pkg/kubelet/container/ref.go, GenerateContainerRef.
Differs: keys are kept as 64-bit hashes, since an idle node would else hold more event texts than
everything else together. What is about a pod that is gone is dropped: its UID does not come again.
"""

import enum
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import COMBINED, ApiCall, EventObject, Milestone, Op, Reply, ReplyKind, Timer
from fleet.k8s.events import ObjectRef
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.quantity import format_duration

if TYPE_CHECKING:
    from fleet.kubelet.turn import Turn  # which holds the recorder

QUEUE_MAX = 1000  # maxQueuedEvents: what comes then is lost
TRIES_MAX = 12  # maxTriesPerEvent
RETRY_NS = 10 * NS_PER_S  # defaultSleepDuration; the first wait is a random part of it
_RETRY_STREAM = 0xE7E27
_POP_STREAM = 0xE7E28
GROUP_MESSAGES_MAX = 10  # different messages of one kind before they are combined
GROUP_INTERVAL_NS = 600 * NS_PER_S  # defaultAggregateIntervalInSeconds
SPAM_BURST = 25  # defaultSpamBurst, for each source and object
SPAM_REFILL_NS = 300 * NS_PER_S  # one more event per source and object
KEYS_MAX = 4096  # maxLruCacheEntries
COUNT_MAX = (1 << 32) - 1  # of its field in a record
_HALF = (1 << 32) - 1
_KEY = struct.Struct("<Q")
_SEEN = struct.Struct("<QqI")  # key of an exact event, first wall time in ns, count


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
    RESOLVER_FILE = ("CheckLimitsForResolvConf", True)
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

OF_MANAGERS = frozenset(
    (
        Reason.NODE_ALLOCATABLE_ENFORCED,
        Reason.INVALID_DISK_CAPACITY,
        Reason.VOLUMES_ON_DISK,
        Reason.EVICTION_THRESHOLD_MET,
        Reason.SYSTEM_OOM,
        Reason.SHUTDOWN,
        Reason.RESOLVER_FILE,
        Reason.MISSING_CLUSTER_DNS,
        Reason.FREE_DISK_SPACE_FAILED,
    )
)
"""About the Node, and by parts that refer to it as it was at the start, without its UID.

Source: pkg/kubelet/kubelet_node_status.go of 1.37, nodeRefWithUID, and who does not call it.
"""


def pod_ref(pod: Pod, spec: ContainerSpec | None) -> ObjectRef:
    """Return a reference to a pod, or to one of its containers."""
    path = "" if spec is None else field_path(pod, spec)
    return ObjectRef("Pod", pod.namespace, pod.name, pod.uid, pod.resource_version, path)


def field_path(pod: Pod, spec: ContainerSpec) -> str:
    """Return where a container stands in its pod."""
    field = "containers"
    if spec in pod.spec.init_containers:
        field = "initContainers"
    elif spec in pod.spec.ephemeral_containers:
        field = "ephemeralContainers"
    return f"spec.{field}{{{spec.name}}}"


def _key(about: ObjectRef, *what: object) -> int:
    """Return a key of something about an object; what is above its 32 bits is the object's."""
    whole = hash((about.kind, about.namespace, about.name, about.uid)) & _HALF
    return whole << 32 | hash(what) & _HALF


def aggregate(errors: Iterable[str]) -> str:
    """Return several errors as one text, each once; "" for none.

    Source: apimachinery/pkg/util/errors/errors.go, aggregate.Error.
    """
    found = list(dict.fromkeys(errors))
    return f"[{', '.join(found)}]" if len(found) > 1 else "".join(found)


def back_off_texts(pod: Pod, spec: ContainerSpec, delay_ns: int) -> tuple[str, str]:
    """Return what the event and the waiting state say of a container in back-off."""
    where = f"{pod.full_name}({pod.uid})"
    delay = format_duration(delay_ns // NS_PER_S * NS_PER_S)
    return (
        f"Back-off restarting failed container {spec.name} in pod {where}",
        f"back-off {delay} restarting failed container={spec.name} pod={where}",
    )


@dataclass(slots=True, eq=False)
class SeenEvents:
    """The events that were counted, least recently used first.

    In one array of 20 bytes an event: a dict of ints takes 120, and an idle node remembers seven
    events for ever. That one of 4,096 is not there is known after 32 microseconds, of 550 after 4.
    """

    _records: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self._records) // _SEEN.size

    def take(self, key: int) -> tuple[int, int]:
        """Take out what is known of an event: its first wall time and its count, 0 if it is new."""
        wanted = _KEY.pack(key)
        at = self._records.find(wanted)
        while at % _SEEN.size and at >= 0:  # the same bytes, but not those of a key
            at = self._records.find(wanted, at + 1)
        if at < 0:
            return 0, 0
        _, first_ns, count = _SEEN.unpack_from(self._records, at)
        del self._records[at : at + _SEEN.size]
        return first_ns, count

    def put(self, key: int, first_ns: int, count: int) -> None:
        """Note an event as the one used last; the one used least recently makes room."""
        if len(self) >= KEYS_MAX:
            del self._records[: _SEEN.size]
        self._records += _SEEN.pack(key, first_ns, min(count, COUNT_MAX))

    def drop(self, gone: set[int]) -> None:
        """Drop the events about some objects."""
        records = _SEEN.iter_unpack(self._records)
        kept = b"".join(_SEEN.pack(*each) for each in records if each[0] >> 32 not in gone)
        self._records = bytearray(kept)  # a new one: an old one keeps its room


@dataclass(slots=True, eq=False)
class RecentEvents:
    """What is remembered for a while: groups of similar events, and what the spam filter took."""

    # last ns, hashes of the messages
    _groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _buckets: dict[int, int] = field(default_factory=dict)  # when they are full again

    def __len__(self) -> int:
        return len(self._groups) + len(self._buckets)

    def group(
        self, about: ObjectRef, reason: tuple[str, bool], message: str, turn: "Turn"
    ) -> tuple[str, int]:
        """Return the message to send and the key of its count.

        Source: EventAggregator.EventAggregate: the tenth different message within the interval is
        sent as a combined one, and any of the ten is forgotten.
        """
        key, now_ns = _key(about, reason), turn.now_ns
        group = self._groups.get(key, (0,))
        messages = group[1:] if now_ns - group[0] <= GROUP_INTERVAL_NS else ()
        digest = hash(message)
        if digest not in messages:
            messages = (*messages, digest)
        if len(messages) >= GROUP_MESSAGES_MAX:
            at = int(turn.draw(_POP_STREAM, message) * len(messages))
            self._groups[key] = (now_ns, *messages[:at], *messages[at + 1 :])
            return COMBINED + message, key
        self._groups[key] = (now_ns, *messages)
        return message, _key(about, about.field_path, reason, digest)

    def admit(self, about: ObjectRef, now_ns: int, *, warning: bool) -> bool:
        """Take one token.

        Source: EventSourceObjectSpamFilter.Filter; golang.org/x/time/rate, Limiter.advance.
        """
        key = _key(about, warning)
        full_ns = max(self._buckets.get(key, 0), now_ns) + SPAM_REFILL_NS
        if full_ns - now_ns > SPAM_BURST * SPAM_REFILL_NS:
            return False
        self._buckets[key] = full_ns
        return True

    def forget(self, now_ns: int, gone: set[int]) -> None:
        """Drop groups and buckets that would start again: long silent, full again, of what is gone.

        New dicts: one that was emptied keeps the room of all it ever held.
        """
        self._groups = {
            key: group
            for key, group in self._groups.items()
            if now_ns - group[0] <= GROUP_INTERVAL_NS and key >> 32 not in gone
        }
        self._buckets = {
            key: full_ns
            for key, full_ns in self._buckets.items()
            if full_ns > now_ns and key >> 32 not in gone
        }


@dataclass(slots=True, eq=False)
class EventRecorder:
    """Record, correlate and send the events of one kubelet."""

    _seen: SeenEvents = field(default_factory=SeenEvents)
    _recent: RecentEvents | None = None
    _queue: deque[ApiCall] | None = None  # the first one is in flight
    _tries: int = 0
    _retry_ns: int = 0
    _named_ns: int = 0  # names are instants: two events of one instant need two
    _gone: tuple[int, ...] = ()  # objects about which there is nothing more to say

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
        if not turn.env.fidelity.records_events:
            return
        wall_ns = turn.wall_ns
        recent = self._recent = self._recent or RecentEvents()
        message, key = recent.group(about, (reason.text, reason.warning), message, turn)
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

    def leave(self, pod: Pod) -> None:
        """Note that a pod is gone: the next `forget` drops what is about it."""
        if self._recent is not None:
            self._gone = (*self._gone, _key(pod_ref(pod, None)) >> 32)

    def forget(self, now_ns: int) -> None:
        """Let go of what would start again by now, and of what is about pods that are gone."""
        if self._recent is not None:
            gone = set(self._gone)
            self._recent.forget(now_ns, gone)
            self._recent = self._recent or None
            if gone:
                self._seen.drop(gone)
                self._gone = ()

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
