"""The closed set of effects that a kubelet may ask for, and the replies that it gets.

A kubelet appends effects to an `Outbox`; the reactor executes them. `ApiCall` names an `Op`, which
`wire/api/operations.py` maps to bytes; its payload is a record of this file or of `pods.py`.
"""

import enum
from typing import NamedTuple, NewType

from fleet.k8s.events import ObjectRef
from fleet.k8s.pods import EventType, NodeCondition, PodStatus
from fleet.k8s.volumes import ClaimStatusPatch, ClaimTarget, CSINodeUpdate, ObjectTarget

NodeId = NewType("NodeId", int)  # a dense index of the kubelets of one process


@enum.unique
class Op(enum.IntEnum):
    """Every API call that a kubelet makes, watches apart; each use of an object is one."""

    GET_NODE_CSI = 0
    GET_NODE_HEARTBEAT = 1  # the node status: by the heartbeat client, ?timeout=10s
    GET_NODE_LEASE = 20  # the same, for the owner of the Lease
    GET_NODE_EXISTING = 19  # what registration compares with the Node that it would create
    GET_NODE_ADMISSION = 21  # of a pod that only its node affinity keeps out
    CREATE_NODE = 2
    PATCH_NODE_STATUS = 3  # main client: registration
    GET_NODE_DRIVERS = 23  # which of its CSI drivers a Node names
    PATCH_NODE_CSI = 22  # the main client's PATCH, of CSI drivers
    PATCH_NODE_STATUS_HEARTBEAT = 18
    GET_CSINODE = 4
    PROBE_CSINODE = 5  # the connectivity check at start: resourceVersion=0
    CREATE_CSINODE = 6
    DELETE_CSINODE = 7
    GET_LEASE = 8
    CREATE_LEASE = 9
    RENEW_LEASE = 10
    GET_POD = 11
    PATCH_POD_STATUS = 12
    DELETE_POD = 13
    CREATE_TOKEN = 14
    CREATE_EVENT = 15
    PATCH_EVENT = 16
    DELETE_RESOURCE_SLICES = 17
    GET_RESOURCE_CLAIM = 50
    CREATE_RESOURCE_SLICE = 51  # as this and the next, of one DRA driver
    DELETE_DRIVER_SLICES = 52
    CREATE_MIRROR_POD = 70
    DELETE_MIRROR_POD = 71
    GET_CLAIM = 40  # for a volume, as the next three
    GET_VOLUME = 41
    GET_ATTACHMENT = 42
    GET_NODE_ATTACHED = 43  # the main client's GET before a volume counts as attached
    UPDATE_CSINODE = 44
    GET_CONFIG_MAP = 45  # by kubelets that do not watch them, as the next
    GET_SECRET = 46
    PATCH_CLAIM_STATUS = 47  # of a volume that the node expands
    CREATE_CSI_TOKEN = 48  # as CREATE_TOKEN, for a CSI driver
    GET_CSI_SECRET = 49  # that a CSI driver is given
    GET_SERVICE_ACCOUNT = 53  # for the pull of an image, as the next
    CREATE_PULL_TOKEN = 54  # as CREATE_TOKEN, for an image credential provider


class Owner(enum.IntEnum):
    """Which part of a kubelet makes a call, and takes its answer."""

    LEASE = 0
    NODE_STATUS = 1
    REGISTRATION = 2
    CSI_NODE = 3
    EVENTS = 4
    RESOURCE_SLICES = 5  # those that a kubelet before us left
    PLUGINS = 6
    ADMISSION = 7  # of a pod, as all that follow
    POD_STATUS = 8
    MIRROR_PODS = 9
    TOKENS = 10
    DRA = 11
    VOLUMES = 12
    IMAGES = 13


class Client(enum.IntEnum):
    """Which client of a kubelet sends a call, and so which limit it goes by.

    The groups of the main client share one, unless kubeAPIQPS is 0: then each has its own.
    """

    CORE = 0
    STORAGE = 1
    RESOURCE = 2
    EVENTS = 3
    HEARTBEAT = 4  # no limit, but a time-out for all tries of a call and the waits between
    DRIVER = 5  # a DRA driver's own, another process: no limit


class WatchKind(enum.IntEnum):
    """Every resource that a kubelet watches."""

    NODE = 0
    SERVICES = 1
    PODS = 2
    RUNTIME_CLASSES = 3
    CSI_DRIVERS = 4
    CONFIG_MAP = 5  # one object, by namespace and name
    SECRET = 6
    RESOURCE_SLICES = 7  # those of one DRA driver on this node; its name is the driver's
    CERTIFICATE_REQUESTS = 8  # PodCertificateRequests; no kubelet of fleet makes or reads any


@enum.unique
class Timer(enum.IntEnum):
    """What can be due. Leases come first within one instant."""

    RENEW_LEASE = 0
    NODE_STATUS = 1
    REGISTER = 2
    FAST_STATUS = 3
    CSI_NODE = 4
    POD_SOURCE = 5  # start the pods watch once the node informer has synced
    POD_SYNC = 6  # key: pod uid; the work queue
    RUNTIME = 7  # something in the simulated runtime changes
    STATUS_SYNC = 8  # the status manager's full pass
    HOUSEKEEPING = 9
    EVENT_SEND = 10
    VOLUMES = 11
    RECONSTRUCT = 27  # the Node is read again for volumes that a kubelet before left
    TOKENS = 26  # the tokens of a pod are to be asked for again
    RESOURCE_SLICES = 12
    PLUGINS = 17  # a plugin registers, comes or goes; devices fail or recover
    EVICTION = 20  # the eviction manager's next pass, or memory is used up
    POD_KILL = 25  # key: pod uid; a manager that ends a pod waits no longer
    RESIZE = 21  # deferred resizes are tried again
    CALL_RETRY = 13  # the reactor's own, as the next three; of the number of a call, not a node
    WATCH_RETRY = 22  # of the number of a wait
    RESTART = 23
    RELIST = 24  # of nobody
    PROBES = 16  # key: pod uid; an attempt of one of its probes ends
    IMAGES = 15  # key: the list in the node status, or the garbage collection
    RUNTIME_STATE = 14  # the health of the runtime changes, or the sync loop goes on
    SHUTDOWN = 18  # the machine begins to shut down, or goes on with it
    CERTIFICATE = 60  # not the kubelet's: a certificate is to be asked for, or presented
    AGENT = 80  # a node agent's, not a kubelet's; key: its place on the node, then its own key
    PROBLEM = 81  # what a fault has turned is to be said of the Node
    STATIC_PODS = 70  # look at file and URL; key: a full name whose mirror is tried again


class LeaseObject(NamedTuple):
    """Payload of CREATE_LEASE."""

    node_uid: str
    duration_s: int
    renew_ns: int  # wall


class LeaseRenewal(NamedTuple):
    """Payload of RENEW_LEASE: the object that the last call returned, with a new renewTime."""

    base: bytes
    renew_ns: int  # wall


class NodeObject(NamedTuple):
    """Payload of CREATE_NODE: what differs from the profile's template."""

    conditions: tuple[NodeCondition, ...]
    images_json: bytes = b""  # the `images` member of the status, if there is one
    extended: tuple[tuple[str, int, int], ...] = ()
    """Capacity and allocatable of what device plugins are known to offer."""


class NodeStatusPatch(NamedTuple):
    """Payload of PATCH_NODE_STATUS*: what differs from the Node as it was read last.

    `conditions` holds (old, new) of every condition of the status, old None when it is new; equal
    ones are left out of the patch, but not of its element order.
    """

    conditions: tuple[tuple[NodeCondition | None, NodeCondition], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    status_json: bytes = b""  # further members of .status, rendered
    volumes_in_use: tuple[str, ...] | None = None  # None: as they were
    version: str = ""  # the resourceVersion that the Node must still have, "" for any


class CSINodeObject(NamedTuple):
    """Payload of CREATE_CSINODE."""

    node_uid: str


class PodTarget(NamedTuple):
    """Payload of GET_POD and DELETE_POD; the key is the uid."""

    namespace: str
    name: str


class MirrorPodObject(NamedTuple):
    """Payload of CREATE_MIRROR_POD."""

    manifest_json: bytes
    name: str
    uid: str  # of the static pod: its hash
    source: str
    seen_ns: int  # wall
    node_uid: str


class MirrorTarget(NamedTuple):
    """Payload of DELETE_MIRROR_POD; an empty uid is no precondition."""

    namespace: str
    name: str
    uid: str


class PodStatusPatch(NamedTuple):
    """Payload of PATCH_POD_STATUS: the two-way patch is computed from old to new."""

    namespace: str
    name: str
    uid: str
    old: PodStatus
    new: PodStatus
    token_suffix: str = ""  # of the pod's token volume, whose records have a common name


class TokenRequest(NamedTuple):
    """Payload of CREATE_TOKEN."""

    namespace: str
    service_account: str
    audience: str
    expiration_s: int  # 0: the server's default
    pod_name: str
    pod_uid: str
    volume: str = ""  # which one of the pod waits for it
    account_uid: str = ""  # of the service account, where it is known


class ResourceSlices(NamedTuple):
    """Payload of CREATE_RESOURCE_SLICE and DELETE_DRIVER_SLICES: the devices are the profile's."""

    driver: str
    node_uid: str = ""
    generation: int = 0  # of the pool


COMBINED = "(combined from similar events): "


class EventObject(NamedTuple):
    """Payload of CREATE_EVENT and PATCH_EVENT; a patch sends what changes when one repeats."""

    name: str
    about: ObjectRef
    warning: bool
    reason: str
    message: str
    times: int
    first_s: int  # wall
    last_s: int
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def reporter(self) -> bytes:
        """Return who reports it; of a combined event client-go leaves that out.

        Source: client-go/tools/record/events_cache.go, EventAggregate.
        """
        return b"" if self.message.startswith(COMBINED) else b"kubelet"


Payload = (
    LeaseObject
    | LeaseRenewal
    | NodeObject
    | NodeStatusPatch
    | CSINodeObject
    | PodTarget
    | PodStatusPatch
    | MirrorPodObject
    | MirrorTarget
    | TokenRequest
    | EventObject
    | ResourceSlices
    | ClaimTarget
    | ClaimStatusPatch
    | ObjectTarget
    | CSINodeUpdate
    | None
)


class ApiCall(NamedTuple):
    """Send one request. `key` routes the reply inside the kubelet (a pod's uid, an event's key)."""

    node: NodeId
    op: Op
    key: str = ""
    payload: Payload = None


class SetTimer(NamedTuple):
    """Call `on_timer(timer, key)` at `due_ns`. Never cancelled; the owner ignores a stale one."""

    node: NodeId
    due_ns: int
    timer: Timer
    key: str = ""


class StartWatch(NamedTuple):
    """Open a reflector; the name is of one object, or of a DRA driver."""

    node: NodeId
    kind: WatchKind
    namespace: str = ""
    name: str = ""


class StopWatch(NamedTuple):
    """Close a reflector."""

    node: NodeId
    kind: WatchKind
    namespace: str = ""
    name: str = ""
    is_idle: bool = False  # it may be started again, and goes on from its version


class Milestone(enum.IntEnum):
    """What a kubelet reports to the run, for counts and latencies only."""

    REGISTERED = 0
    READY = 1
    NOT_READY = 2
    POD_ADDED = 3
    POD_RUNNING = 4  # value_ns: from first seen to the server's answer to the Running status
    POD_FAILED = 5
    POD_REMOVED = 6
    EVENT_DROPPED = 7
    GONE = 8  # the Node object was deleted from outside
    FOREIGN = 9  # a Node of this name is there, and is not of this run


class Report(NamedTuple):
    """Count one milestone."""

    node: NodeId
    milestone: Milestone
    value_ns: int = 0
    simulated_ns: int = 0  # how much of it the simulated machine took
    api_ns: int = 0  # how much of it requests to the API server took


class PowerOff(NamedTuple):
    """The machine is off: nothing more is heard of this node, unless it boots after a time."""

    node: NodeId
    off_ns: int | None = None


Effect = ApiCall | SetTimer | StartWatch | StopWatch | Report | PowerOff
Outbox = list[Effect]


class ReplyKind(enum.IntEnum):
    """How a manager should look at a reply, decided once at the border."""

    OK = 0
    NOT_FOUND = 1  # 404
    CONFLICT = 2  # 409 Conflict
    EXISTS = 3  # 409 AlreadyExists
    FORBIDDEN = 4  # 401, 403
    REFUSED = 5  # any other answer of the server
    LOST = 6  # no answer: time-out, connection


class Reply(NamedTuple):
    """The decoded answer to one `ApiCall`. `record` is one of fleet.k8s, None on errors."""

    kind: ReplyKind
    record: object = None
    code: int = 0
    message: str = ""
    sent_ns: int = 0
    arrived_ns: int = 0

    @property
    def ok(self) -> bool:
        """Return whether the server did what was asked."""
        return self.kind is ReplyKind.OK


class WatchEvent(NamedTuple):
    """One event of a reflector. `record` is a Pod, NodeView, ObjectData; None around a snapshot."""

    kind: WatchKind
    type: EventType
    record: object = None
    namespace: str = ""
    name: str = ""
