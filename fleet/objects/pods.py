"""Slotted records of API objects: what decoders make and kubelets read.

A record holds only what a kubelet acts on. Strings that repeat over a fleet are interned by the
decoders; times are whole seconds since the epoch (`_s`), 0 for absent, since that is all the API
keeps. Records compare by value.
"""

import enum
from typing import NamedTuple, NewType

from fleet.objects.admission import NO_STATE, PLAIN, AdmissionSpec, NodeState
from fleet.objects.container_user import IMAGE_USER, UserSpec
from fleet.objects.lifecycle import PLAIN_LIFE, ContainerLifecycle
from fleet.objects.scripts import ScriptSpec

PodUid = NewType("PodUid", str)

TOKEN_VOLUME_START = b"kube-api-access-"
TOKEN_VOLUME = TOKEN_VOLUME_START + b"00000"
"""Stands in records for the volume of a pod's service-account token; see `Pod.token_suffix`."""


class NodeCondition(NamedTuple):
    """One condition of a Node. Source: core/v1 NodeCondition."""

    type: str
    status: str
    reason: str
    message: str
    heartbeat_s: int
    transition_s: int


class NodeDetails(NamedTuple):
    """What else registration reads of a Node that exists. `status` is as JSON shows it."""

    annotations: dict[str, str]
    status: dict[str, object]


class NodeView(NamedTuple):
    """What is read of a Node object."""

    name: str
    uid: str
    resource_version: str
    deleting: bool
    pod_cidrs: tuple[str, ...]
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]  # key, value, effect
    conditions: tuple[NodeCondition, ...]
    boot_id: str
    volumes_attached: tuple[str, ...]
    volumes_in_use: tuple[str, ...] = ()
    state: NodeState = NO_STATE
    details: NodeDetails | None = None  # only for GET_NODE_EXISTING


class LeaseView(NamedTuple):
    """The whole Lease as the server returned it, for the next PUT."""

    body: bytes


class CSINodeView(NamedTuple):
    """The owner of a CSINode decides whether it is ours."""

    resource_version: str
    owner_uid: str
    body: bytes = b""  # the whole of it, for a PUT


class Token(NamedTuple):
    """A service-account token's life; the token itself is dropped."""

    expires_s: int


class ObjectMeta(NamedTuple):
    """Any object of which only the version matters (ConfigMap, Secret, Event)."""

    name: str
    resource_version: str


class EnvSource(NamedTuple):
    """A ConfigMap or Secret that the environment of a container needs."""

    kind: str  # "ConfigMap" or "Secret"
    name: str
    optional: bool
    key: str = ""  # the one that is taken, "" for all


class ProbeSpec(NamedTuple):
    """One probe of a container. Source: core/v1 Probe."""

    handler: str  # the API's field name: exec, httpGet, tcpSocket, grpc
    scheme: str = ""  # of httpGet, in lower case
    host: str = ""  # "" for the address of the pod
    port: int = 0
    path: str = ""  # of httpGet
    command: tuple[str, ...] = ()  # of exec
    error: str = ""  # why it cannot be run at all: its port has no number
    initial_delay_s: int = 0
    timeout_s: int = 1
    period_s: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_s: int | None = None


class ContainerSpec(NamedTuple):
    """One container of a pod's spec. `*_json` are rendered as the status shows them."""

    name: str
    image: str
    pull_policy: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    restart_policy: str  # of the container itself; "Always" makes an init container a sidecar
    requests_json: bytes  # resources.requests, b"" when empty
    resources_json: bytes  # the whole of resources, b"{}" when empty
    volume_mounts_json: bytes  # status form: name, mountPath, readOnly, recursiveReadOnly
    env_sources: tuple[EnvSource, ...]
    life: ContainerLifecycle = PLAIN_LIFE
    startup_probe: ProbeSpec | None = None
    readiness_probe: ProbeSpec | None = None
    liveness_probe: ProbeSpec | None = None
    user: UserSpec = IMAGE_USER
    script: ScriptSpec | None = None  # what its command may look at, None if it does not


class TokenSource(NamedTuple):
    """A projected service-account token."""

    audience: str
    expiration_s: int
    path: str


class ObjectSource(NamedTuple):
    """A ConfigMap or Secret that a volume shows, and the keys that its items name."""

    name: str
    optional: bool = False
    keys: tuple[str, ...] = ()


class VolumeSpec(NamedTuple):
    """One volume: what must be read before it can be mounted."""

    name: str
    kind: str  # the API's field name: configMap, secret, projected, emptyDir, ...
    config_maps: tuple[ObjectSource, ...] = ()
    secrets: tuple[ObjectSource, ...] = ()
    tokens: tuple[TokenSource, ...] = ()
    claim: str = ""  # of a persistentVolumeClaim; an ephemeral one follows from the pod's name
    driver: str = ""  # of an inline csi volume
    mounted: bool = True  # by a container; kubelets skip a volume that none mounts
    block: bool = False  # as volumeDevices
    host_path: str = ""
    size_limit: str = ""  # of an emptyDir
    in_memory: bool = False
    image: str = ""  # of an image volume
    pull_policy: str = ""


class WaitingState(NamedTuple):
    """Source: core/v1 ContainerStateWaiting."""

    reason: str
    message: str = ""


class RunningState(NamedTuple):
    """Source: core/v1 ContainerStateRunning."""

    started_s: int


class TerminatedState(NamedTuple):
    """Source: core/v1 ContainerStateTerminated."""

    exit_code: int
    reason: str
    message: str
    started_s: int
    finished_s: int
    container_id: str


ContainerState = WaitingState | RunningState | TerminatedState


class ContainerStatus(NamedTuple):
    """Source: core/v1 ContainerStatus. The `*_json` fields are as the API shows them."""

    name: str
    state: ContainerState
    last_state: TerminatedState | None
    ready: bool
    started: bool
    restart_count: int
    image: str
    image_id: str
    container_id: str
    allocated_json: bytes = b""
    resources_json: bytes = b""
    volume_mounts_json: bytes = b""
    user_json: bytes = b""
    devices_json: bytes = b""  # allocatedResourcesStatus


class PodCondition(NamedTuple):
    """Source: core/v1 PodCondition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transition_s: int = 0
    observed_generation: int = 0


class PodStatus(NamedTuple):
    """Source: core/v1 PodStatus, as far as kubelets own or keep it."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    host_ip: str = ""
    pod_ip: str = ""
    start_time_s: int = 0
    qos_class: str = ""
    observed_generation: int = 0
    init_containers: tuple[ContainerStatus, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    ephemeral_containers: tuple[ContainerStatus, ...] = ()
    allocated_json: bytes = b""
    resources_json: bytes = b""


class Toleration(NamedTuple):
    """Source: core/v1 Toleration."""

    key: str
    operator: str
    value: str
    effect: str


class PodView(NamedTuple):
    """What is read of the answer to a GET of a Pod: enough to compute the next status patch."""

    uid: str
    resource_version: str
    deleting: bool
    status: PodStatus


class Pod:
    """What a kubelet keeps of one of its Pods. Never changed: a new version replaces it."""

    __slots__ = (
        "active_deadline_s",
        "admission",
        "allocated_json",
        "annotations",
        "containers",
        "created_s",
        "deletion_grace_s",
        "deletion_s",
        "ephemeral_containers",
        "fingerprint",
        "generation",
        "host_network",
        "init_containers",
        "is_mirror",
        "labels",
        "name",
        "namespace",
        "node_name",
        "priority",
        "pull_secrets",
        "qos_class",
        "readiness_gates",
        "resource_version",
        "resources_json",
        "restart_policy",
        "service_account",
        "status",
        "termination_grace_s",
        "token_suffix",
        "tolerations",
        "uid",
        "volumes",
    )

    def __init__(
        self,
        namespace: str,
        name: str,
        uid: PodUid,
        node_name: str = "",
        resource_version: str = "",
        generation: int = 1,
        created_s: int = 0,
        deletion_s: int = 0,
        deletion_grace_s: int | None = None,
        labels: tuple[tuple[str, str], ...] = (),
        annotations: tuple[tuple[str, str], ...] = (),
        fingerprint: int = 0,
        is_mirror: bool = False,  # noqa: FBT001, FBT002 - decoders pass all by position
        token_suffix: str = "",
        containers: tuple[ContainerSpec, ...] = (),
        init_containers: tuple[ContainerSpec, ...] = (),
        ephemeral_containers: tuple[ContainerSpec, ...] = (),
        volumes: tuple[VolumeSpec, ...] = (),
        tolerations: tuple[Toleration, ...] = (),
        restart_policy: str = "Always",
        termination_grace_s: int = 30,
        active_deadline_s: int = 0,
        service_account: str = "",
        host_network: bool = False,  # noqa: FBT001, FBT002
        priority: int = 0,
        readiness_gates: tuple[str, ...] = (),
        pull_secrets: tuple[str, ...] = (),
        qos_class: str = "BestEffort",
        allocated_json: bytes = b"",
        resources_json: bytes = b"{}",
        admission: AdmissionSpec = PLAIN,
        status: PodStatus = PodStatus(),  # noqa: B008 - immutable
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.node_name = node_name
        self.resource_version = resource_version
        self.generation = generation
        self.created_s = created_s
        self.deletion_s = deletion_s  # metadata.deletionTimestamp, 0 when not being deleted
        self.deletion_grace_s = deletion_grace_s
        self.labels = labels
        self.annotations = annotations  # only those under fleet.emulator/
        self.fingerprint = fingerprint  # of spec, labels, annotations: what an UPDATE looks at
        self.is_mirror = is_mirror
        self.token_suffix = token_suffix  # of kube-api-access-xxxxx, "" without such a volume
        self.containers = containers
        self.init_containers = init_containers
        self.ephemeral_containers = ephemeral_containers
        self.volumes = volumes
        self.tolerations = tolerations
        self.restart_policy = restart_policy
        self.termination_grace_s = termination_grace_s
        self.active_deadline_s = active_deadline_s  # 0 for none
        self.service_account = service_account
        self.host_network = host_network
        self.priority = priority
        self.readiness_gates = readiness_gates
        self.pull_secrets = pull_secrets
        self.qos_class = qos_class  # computed from the resources of the containers
        self.allocated_json = allocated_json  # requests of the whole pod, b"" when there are none
        self.resources_json = resources_json  # requests and limits of the whole pod
        self.admission = admission  # what decides whether a node takes it
        self.status = status

    def find(self, name: str) -> ContainerSpec | None:
        """Return the container of a name, of whatever kind."""
        for specs in (self.containers, self.init_containers, self.ephemeral_containers):
            for spec in specs:
                if spec.name == name:
                    return spec
        return None

    @property
    def full_name(self) -> str:
        """Return `name_namespace`, as the kubelet's messages write it."""
        return f"{self.name}_{self.namespace}"

    @property
    def deleting(self) -> bool:
        """Return whether a deletionTimestamp is set."""
        return self.deletion_s != 0


class EventType(enum.IntEnum):
    """What a watch reports. RESTARTED and SYNCED are around the events of a whole snapshot."""

    ADDED = 0
    MODIFIED = 1
    DELETED = 2
    BOOKMARK = 3
    SYNCED = 4
    ERROR = 5
    RESTARTED = 6


class ObjectRef(NamedTuple):
    """What an event is about. Source: core/v1 ObjectReference."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""
