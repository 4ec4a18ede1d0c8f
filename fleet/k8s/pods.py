"""What a container's spec says about the surroundings of its command: variables, mounts, stdin."""

import enum
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NewType

from msgspec import convert

from fleet.k8s.addresses import first_of
from fleet.k8s.admission import NO_STATE, PLAIN, AdmissionSpec, NodeState
from fleet.k8s.schema import (
    Addresses,
    Count,
    Flag,
    Keys,
    Record,
    Rendered,
    Seconds,
    Shown,
    Text,
    kind,
    member,
    read_kind,
    share,
    shown,
)
from fleet.k8s.selectors import Toleration
from fleet.k8s.well_known import MIRROR_ANNOTATION, START_ERROR


class EnvRef(NamedTuple):
    """Where the value of a variable comes from. Source: core/v1 EnvVarSource."""

    kind: str  # Field, Resource, ConfigMap, Secret, File, or "" for what is not read
    key: str = ""  # the path of a field, the name of a resource, the key of a file or an object:
    # "" for all of its keys
    name: str = ""  # of the object, the volume, or the container whose resources are meant
    divisor: str = ""
    path: str = ""  # of the file in the volume
    optional: bool = False


class Variable(NamedTuple):
    """One variable of a container. Source: core/v1 EnvVar."""

    name: str
    value: str = ""
    source: EnvRef | None = None


class UserSpec(NamedTuple):
    """What the security contexts of a pod and its container come to; None is the image's choice.

    Source: pkg/securitycontext/util.go, DetermineEffectiveSecurityContext.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    non_root: bool = False
    fs_group: int | None = None  # of the pod: it owns the volumes
    read_only_root: bool = False
    no_new_privs: bool = False  # allowPrivilegeEscalation: false
    windows_name: str = ""  # runAsUserName


IMAGE_USER = UserSpec()


RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"


class RestartRule(Record, frozen=True):
    """Source: core/v1 ContainerRestartRule."""

    action: str = ""
    operator: str = member("exitCodes/operator", "")  # In or NotIn
    values: tuple[int, ...] = member("exitCodes/values", ())

    def matches(self, exit_code: int) -> bool:
        """Tell whether the rule speaks of an exit code."""
        if self.operator == "In":
            return exit_code in self.values
        return self.operator == "NotIn" and exit_code not in self.values


class Hook(NamedTuple):
    """A postStart or preStop handler. Source: core/v1 LifecycleHandler."""

    kind: str  # exec, httpGet, tcpSocket or sleep
    command: tuple[str, ...] = ()  # of exec
    path: str = ""  # of httpGet
    seconds: int = 0  # of sleep
    host: str = ""  # of httpGet and tcpSocket; "" for the address of the pod
    port: int = 0  # of httpGet and tcpSocket; 0 if it has no number


class ContainerLifecycle(NamedTuple):
    """Everything of one container that most containers do not say."""

    restart_rules: tuple[RestartRule, ...] = ()
    post_start: Hook | None = None
    pre_stop: Hook | None = None
    message_path: str = "/dev/termination-log"
    message_from_logs: bool = False  # terminationMessagePolicy: FallbackToLogsOnError
    resize_restarts: tuple[str, ...] = ()  # resources whose resize restarts the container


PLAIN_LIFE = ContainerLifecycle()


def matching_action(rules: tuple[RestartRule, ...], exit_code: int) -> str:
    """Return the action of the first rule that matches, "" when none does."""
    return next((rule.action for rule in rules if rule.matches(exit_code)), "")


def _with_dots(name: str) -> str:
    """Source: component-helpers/node/util/sysctl, NormalizeName."""
    first = name.find("/")
    if first < 0 or "." in name[:first]:
        return name
    return name.translate(str.maketrans("./", "/."))


if TYPE_CHECKING:
    DnsOptions = tuple[tuple[str, str], ...]
    Sysctls = tuple[tuple[str, str], ...]
    IsEnabled = bool
else:
    DnsOptions = kind(
        lambda listed: tuple((each.get("name", ""), each.get("value", "")) for each in listed)
    )
    Sysctls = kind(
        lambda listed: tuple((_with_dots(each["name"]), each.get("value", "")) for each in listed)
    )
    IsEnabled = kind(lambda value: value == "Enabled")


class PodNetworkSpec(Record, frozen=True):
    """What of the files that a kubelet and a runtime write is the pod's own wish."""

    dns_policy: Text = "ClusterFirst"
    nameservers: tuple[str, ...] = member("dnsConfig/nameservers", ())
    searches: tuple[str, ...] = member("dnsConfig/searches", ())
    options: DnsOptions = member("dnsConfig/options", ())  # the name, and the value or ""
    sysctls: Sysctls = member("securityContext/sysctls", ())  # names with dots
    subdomain: Text = ""
    hostname_override: str = ""
    is_fqdn: bool = member("setHostnameAsFQDN", default=False)
    host_users: bool = True  # else a user namespace of its own


USUAL_NETWORK = PodNetworkSpec()


class MountSpec(Record, frozen=True):
    """Where a container sees a volume."""

    path: str = member("mountPath")
    volume: str = member("name")
    inner: str = member("subPath", "")  # the path within the volume
    expression: str = member("subPathExpr", "")  # what that path follows from
    read_only: bool = False
    recursive: IsEnabled = member("recursiveReadOnly", default=False)


class ScriptSpec(NamedTuple):
    """What a container's spec says about the surroundings of its command."""

    variables: tuple[Variable, ...] = ()
    mounts: tuple[MountSpec, ...] = ()
    env_from: tuple[Variable, ...] = ()  # of all keys of an object: the name is their prefix
    has_service_links: bool = True
    working_dir: str = ""  # "" for the image's own
    stdin: bool = False


NO_SCRIPT = ScriptSpec()

PodUid = NewType("PodUid", str)

TOKEN_VOLUME_START = b"kube-api-access-"
TOKEN_VOLUME = TOKEN_VOLUME_START + b"00000"
"""Stands in records for the volume of a pod's service-account token; see `Pod.token_suffix`."""


class NodeCondition(Record, frozen=True):
    """One condition of a Node. Source: core/v1 NodeCondition."""

    type: Text
    status: Text
    heartbeat_s: Seconds = member("lastHeartbeatTime", 0)
    transition_s: Seconds = member("lastTransitionTime", 0)
    reason: Text = ""
    message: Text = ""


class NodeDetails(NamedTuple):
    """What else registration reads of a Node that exists. `status` is as JSON shows it."""

    annotations: dict[str, str]
    status: dict[str, object]


class NodeReport(NamedTuple):
    """What a Node says of its machine: all but its conditions, images and volumes.

    It is compared as it came, and read only where it has changed.
    """

    raw: Hashable
    read: Callable[[Any], dict[str, object]]

    def status(self) -> dict[str, object]:
        """Return it as members of a status."""
        return self.read(self.raw)


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
    volumes_attached: tuple[str, ...]
    volumes_in_use: tuple[str, ...] = ()
    state: NodeState = NO_STATE
    details: NodeDetails | None = None  # of GET_NODE_EXISTING and GET_NODE_DRIVERS
    report: NodeReport | None = None


class LeaseView(NamedTuple):
    """The whole Lease as the server returned it, for the next PUT."""

    body: bytes
    renewed: bytes = b""  # its renewTime, only for GET_LEASE


class Token(Record, frozen=True):
    """A service-account token, and until when it is good."""

    expires_s: Seconds = member("status/expirationTimestamp", 0)
    text: str = member("status/token", "")

    def __repr__(self) -> str:
        """Say nothing of the secret: stories of nodes are kept and shown."""
        return f"Token(expires_s={self.expires_s})"


class ServiceAccountView(Record, frozen=True):
    """What is read of a ServiceAccount."""

    uid: str = member("metadata/uid")
    annotations: Keys = member("metadata/annotations", frozenset())


class ProbeSpec(NamedTuple):
    """One probe of a container. Source: core/v1 Probe."""

    handler: str  # the API's field name: exec, httpGet, tcpSocket, grpc
    scheme: str = ""  # of httpGet, in lower case
    host: str = ""  # "" for the address of the pod
    port: int = 0
    path: str = ""  # of httpGet
    command: tuple[str, ...] = ()  # of exec
    error: str = ""  # why it cannot be run at all
    initial_delay_s: int = 0
    timeout_s: int = 1
    period_s: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_s: int | None = None
    lost_port: str = ""  # the name of its port, which the container has not


class PortSpec(Record, frozen=True):
    """A port that a container declares. Source: core/v1 ContainerPort."""

    port: int = member("containerPort", 0)
    protocol: Text = "TCP"
    name: str = ""


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
    life: ContainerLifecycle = PLAIN_LIFE
    startup_probe: ProbeSpec | None = None
    readiness_probe: ProbeSpec | None = None
    liveness_probe: ProbeSpec | None = None
    user: UserSpec = IMAGE_USER
    script: ScriptSpec | None = None  # variables and mounts, None if there are none
    ports: tuple[PortSpec, ...] = ()  # that it declares
    target: str = ""  # targetContainerName of an ephemeral container

    @property
    def env_sources(self) -> tuple[EnvRef, ...]:
        """Return the ConfigMaps and Secrets that its environment needs, as they are read."""
        script = self.script or NO_SCRIPT
        refs = (each.source for each in (*script.env_from, *script.variables))
        return tuple(each for each in refs if each and each.kind in {"ConfigMap", "Secret"})


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
    paths: tuple[str, ...] = ()  # where they are shown, by key
    modes: tuple[int | None, ...] = ()  # of the files, by key
    kind: str = "ConfigMap"


class DownwardFile(NamedTuple):
    """A file that shows a field of its pod. Source: core/v1 DownwardAPIVolumeFile."""

    path: str
    source: EnvRef
    mode: int | None = None  # None: the volume's own


READ_ONLY_MODE = 0o444


class VolumeSpec(NamedTuple):
    """One volume: what must be read before it can be mounted."""

    name: str
    kind: str  # the API's field name: configMap, secret, projected, emptyDir, ...
    sources: tuple[ObjectSource, ...] = ()
    tokens: tuple[TokenSource, ...] = ()
    claim: str = ""  # of a persistentVolumeClaim; an ephemeral one follows from the pod's name
    driver: str = ""  # of an inline csi volume
    mounted: bool = True  # by a container; kubelets skip a volume that none mounts
    block: bool = False  # as volumeDevices
    host_path: str = ""
    host_type: str = ""  # "" if the path need not be of any
    size_limit: str = ""  # of an emptyDir
    in_memory: bool = False
    downward: tuple[DownwardFile, ...] = ()
    mode: int = 0o644  # defaultMode: of the files that it shows; of a claim whether it is readOnly
    image: str = ""  # of an image volume
    pull_policy: str = ""
    secret: str = ""  # that its plug-in is given: that an inline csi volume is published with
    flaw: str = ""  # why its pod's spec never lets it be mounted

    @property
    def is_read_only(self) -> bool:
        """Return whether a claim is mounted for reading only."""
        return self.mode == READ_ONLY_MODE and bool(self.claim)


class WaitingState(Record, frozen=True):
    """Source: core/v1 ContainerStateWaiting."""

    reason: Text = ""
    message: str = ""


class RunningState(Record, frozen=True):
    """Source: core/v1 ContainerStateRunning."""

    started_s: Seconds = member("startedAt", 0)


class TerminatedState(Record, frozen=True):
    """Source: core/v1 ContainerStateTerminated."""

    exit_code: Count = 0
    reason: Text = ""
    message: str = ""
    started_s: Seconds = member("startedAt", 0)
    finished_s: Seconds = member("finishedAt", 0)
    container_id: str = member("containerID", "")


ContainerState = WaitingState | RunningState | TerminatedState
_STATES: dict[str, type[Record]] = {
    "running": RunningState,
    "waiting": WaitingState,
    "terminated": TerminatedState,
}
_MEMBERS = {record: name for name, record in _STATES.items()}
NEVER = "1970-01-01T00:00:00Z"


def read_state(obj: dict[str, Any] | None) -> Any:
    """Return the state of a container; one that says nothing waits."""
    for name, record in _STATES.items():
        if obj and (found := obj.get(name)) is not None:
            state = convert(found, record, dec_hook=read_kind)
            return share(state) if record is RunningState else state
    return WaitingState()


def show_state(state: ContainerState | None) -> dict[str, Any]:
    """Return a state as the API shows it; a container that never ended has none."""
    if state is None:
        return {}
    found = shown(state)
    if isinstance(state, TerminatedState) and state.reason == START_ERROR and not state.started_s:
        found["startedAt"] = NEVER  # a runtime gives a container that it could not start
    return {_MEMBERS[type(state)]: found}


if TYPE_CHECKING:
    State = ContainerState
    LastState = TerminatedState | None
else:
    State = kind(read_state, show_state, is_written=True)
    LastState = kind(
        lambda obj: read_state(obj) if "terminated" in obj else None, show_state, is_written=True
    )


class ContainerStatus(Record, frozen=True):
    """Source: core/v1 ContainerStatus. The `*_json` fields are as the API shows them."""

    name: Text
    state: State = WaitingState()
    last_state: LastState = None
    ready: Flag = False
    started: Flag = False
    restart_count: Count = 0
    image: Shown = ""
    image_id: Shown = member("imageID", "")
    container_id: str = member("containerID", "")
    allocated_json: Rendered = member("allocatedResources", b"")
    resources_json: Rendered = member("resources", b"")
    volume_mounts_json: Rendered = member("volumeMounts", b"")
    user_json: Rendered = member("user", b"")
    devices_json: Rendered = member("allocatedResourcesStatus", b"")


class PodCondition(Record, frozen=True):
    """Source: core/v1 PodCondition."""

    type: Text
    status: Text
    reason: Text = ""
    message: str = ""
    transition_s: Seconds = member("lastTransitionTime", 0)
    observed_generation: int = 0
    probe_s: Seconds = member("lastProbeTime", 0)  # 0 for none: only those of a resize have one


class PodStatus(Record, frozen=True):
    """Source: core/v1 PodStatus, as far as kubelets own or keep it."""

    phase: Shown = "Pending"
    reason: Text = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    host_ips: Addresses = member("hostIPs", "")  # of up to two families; see fleet.k8s.addresses
    pod_ips: Addresses = member("podIPs", "")
    start_time_s: Seconds = member("startTime", 0)
    qos_class: Text = ""
    observed_generation: int = 0
    init_containers: tuple[ContainerStatus, ...] = member("initContainerStatuses", ())
    containers: tuple[ContainerStatus, ...] = member("containerStatuses", ())
    ephemeral_containers: tuple[ContainerStatus, ...] = member("ephemeralContainerStatuses", ())
    allocated_json: Rendered = member("allocatedResources", b"")
    resources_json: Rendered = member("resources", b"")

    @property
    def pod_ip(self) -> str:
        """Return the primary address, "" if there is none yet."""
        return first_of(self.pod_ips)


class PodView(NamedTuple):
    """What is read of the answer to a GET of a Pod: enough to compute the next status patch."""

    uid: str
    resource_version: str
    deleting: bool
    status: PodStatus


class PodSpec(NamedTuple):
    """What a kubelet keeps of a pod's spec; the pods of one template share it."""

    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    ephemeral_containers: tuple[ContainerSpec, ...] = ()
    volumes: tuple[VolumeSpec, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    restart_policy: str = "Always"
    termination_grace_s: int = 30
    active_deadline_s: int = 0  # 0 for none
    service_account: str = ""
    host_network: bool = False
    shares_pids: bool = False  # with the node or within the pod: no container has a PID 1
    hostname: str = ""  # "" for the pod's name
    runtime_class: str = ""
    host_aliases: tuple[tuple[str, ...], ...] = ()  # an address, and its names
    network: PodNetworkSpec = USUAL_NETWORK
    priority: int = 0
    readiness_gates: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    qos_class: str = "BestEffort"  # computed from the resources of the containers
    allocated_json: bytes = b""  # requests of the whole pod, b"" when there are none
    resources_json: bytes = b"{}"  # requests and limits of the whole pod
    running_json: bytes = b"{}"  # the same, as the status of a running pod shows them
    ended_json: bytes = b"{}"  # the same, once it has ended and the API does not know it yet
    own_json: bytes = b""  # resources of the pod itself, b"" when it has none
    admission: AdmissionSpec = PLAIN  # what decides whether a node takes it
    digest: int = 0  # of the bytes that it came from

    @property
    def all_containers(self) -> tuple[ContainerSpec, ...]:
        """Return the containers of all kinds."""
        return (*self.init_containers, *self.containers, *self.ephemeral_containers)


NO_SPEC, NO_STATUS = PodSpec(), PodStatus()


@dataclass(slots=True, eq=False)
class Pod:
    """One version of a Pod: its metadata, its spec, its status. A new version replaces it."""

    namespace: str
    name: str
    uid: PodUid
    node_name: str = ""
    resource_version: str = ""
    generation: int = 1
    created_s: int = 0
    deletion_s: int = 0  # metadata.deletionTimestamp, 0 when not being deleted
    deletion_grace_s: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()  # of others only if the pod shows them itself
    fingerprint: int = 0  # of spec, labels, annotations: what an UPDATE looks at
    token_suffix: str = ""  # of kube-api-access-xxxxx, "" without such a volume
    spec: PodSpec = NO_SPEC
    status: PodStatus = NO_STATUS
    is_controlled: bool = False  # an owner is its controller: a Job, a ReplicaSet, ...
    end_matters: bool = False  # a finalizer or an owner waits for its last status

    def find(self, name: str) -> ContainerSpec | None:
        """Return the container of a name, of whatever kind."""
        spec = self.spec
        for specs in (spec.containers, spec.init_containers, spec.ephemeral_containers):
            for each in specs:
                if each.name == name:
                    return each
        return None

    @property
    def is_mirror(self) -> bool:
        """Return whether it only shows a static pod. Source: pkg/kubelet/types, IsMirrorPod."""
        return any(key == MIRROR_ANNOTATION for key, _ in self.annotations)

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
