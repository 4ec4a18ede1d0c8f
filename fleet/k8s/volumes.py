"""What kubelets read of the objects behind volumes: claims, volumes, attachments, drivers."""

import enum
import hashlib
from typing import NamedTuple

from fleet.k8s.admission import NodeTerms, selects

CSI_PLUGIN = "kubernetes.io/csi/"
PVC_PROTECTION = "kubernetes.io/pvc-protection"


class ObjectData(NamedTuple):
    """A ConfigMap or Secret; nodes that have the same share one."""

    name: str
    resource_version: str
    keys: tuple[str, ...] = ()
    immutable: bool = False
    texts: tuple[str, ...] = ()  # by key; what is no UTF-8 is kept in surrogates


class ResizeStatus(enum.StrEnum):
    """How far a claim's volume has grown. Source: core/v1 ClaimResourceStatus."""

    NONE = ""
    CONTROLLER_IN_PROGRESS = "ControllerResizeInProgress"
    CONTROLLER_INFEASIBLE = "ControllerResizeInfeasible"
    NODE_PENDING = "NodeResizePending"
    NODE_IN_PROGRESS = "NodeResizeInProgress"
    NODE_INFEASIBLE = "NodeResizeInfeasible"


RESIZE_CONDITIONS = frozenset(
    ("FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError")
)
"""Source: pkg/volume/util/resize_util.go, knownResizeConditions."""
NODE_RESIZE_ERROR = "NodeResizeError"
NO_NODE_EXPANSION = "volume.kubernetes.io/node-expansion-not-required"
"""An annotation of a claim."""


class ClaimView(NamedTuple):
    """What is read of a PersistentVolumeClaim."""

    uid: str
    phase: str
    volume_name: str
    deleting: bool = False
    protected: bool = False  # has the finalizer kubernetes.io/pvc-protection
    owner_uid: str = ""  # of the controller, a pod for generic ephemeral volumes
    resource_version: str = ""
    requested: str = ""  # storage, as the next two
    capacity: str = ""  # of the status
    allocated: str | None = None  # allocatedResources, None from an older external resizer
    resize_status: str = ""  # allocatedResourceStatuses: a ResizeStatus
    conditions: tuple[str, ...] = ()  # their types
    is_shared: bool = False  # ReadWriteMany, and each node may have to expand it


SecretRef = tuple[str, str]
"""The namespace and the name of a Secret."""
NO_SECRET: SecretRef = ("", "")


class VolumeSecrets(NamedTuple):
    """The Secrets that a CSI driver is given, each with its call."""

    stage: SecretRef = NO_SECRET
    publish: SecretRef = NO_SECRET
    expand: SecretRef = NO_SECRET


NO_SECRETS = VolumeSecrets()
POD_SCOPED = frozenset(("hostPath", "nfs", "flexVolume"))
"""Plug-ins that mount no device: each pod mounts the volume by itself."""


class VolumeView(NamedTuple):
    """What is read of a PersistentVolume. `driver` and `handle` are "" unless it is a CSI one."""

    name: str
    claim_uid: str | None  # None without a claimRef
    mode: str = "Filesystem"
    driver: str = ""
    handle: str = ""
    access_modes: tuple[str, ...] = ()
    affinity: NodeTerms | None = None
    capacity: str = ""  # storage
    plugin: str = ""  # the API's field name of its source, "" of one that is not known
    has_mount_options: bool = False
    secrets: VolumeSecrets = NO_SECRETS

    @property
    def maps_blocks(self) -> bool:
        """Return whether its plug-in makes block devices. Source: FindMapperPluginBySpec."""
        return self.plugin not in POD_SCOPED

    @property
    def takes_mount_options(self) -> bool:
        """Return whether its plug-in knows mount options. Source: SupportsMountOption."""
        return self.plugin not in {"hostPath", "flexVolume"}

    @property
    def is_device(self) -> bool:
        """Return whether it is mounted once for all pods of a node that use it.

        Source: pkg/volume/util/util.go, GetUniqueVolumeNameFromSpecWithPod, of the others.
        """
        return self.plugin not in POD_SCOPED

    @property
    def unique_name(self) -> str:
        """Return the name in volumesInUse. Source: GetUniqueVolumeNameFromSpec."""
        if self.driver:
            return f"{CSI_PLUGIN}{self.driver}^{self.handle}"
        return f"kubernetes.io/pv/{self.name}"

    def fits(self, labels: dict[str, str]) -> bool:
        """Tell whether a node may mount it. Source: CheckNodeAffinity."""
        return self.affinity is None or selects(self.affinity, "", labels)


class AttachmentView(NamedTuple):
    """What is read of a VolumeAttachment."""

    attached: bool
    deleting: bool = False
    error: str = ""  # status.attachError
    is_exhausted: bool = False  # its errorCode is gRPC's ResourceExhausted


class CSIDriverView(NamedTuple):
    """What is read of a CSIDriver."""

    name: str
    resource_version: str
    attach_required: bool = True
    modes: tuple[str, ...] = ("Persistent",)  # volumeLifecycleModes
    allocatable_period_s: int = 0  # nodeAllocatableUpdatePeriodSeconds
    tokens: tuple[tuple[str, int], ...] = ()  # tokenRequests: audience and life, 0 if it has none
    requires_republish: bool = False


class ObjectTarget(NamedTuple):
    """Payload of the GETs of a ConfigMap or Secret; `volume` routes the answer, "" for no one's."""

    namespace: str
    name: str
    volume: str
    is_refresh: bool  # it was read before: the server may answer from its cache


class ClaimTarget(NamedTuple):
    """Payload of the GETs for the volumes of a pod; `volume` and `step` route the answer."""

    namespace: str
    name: str
    volume: str
    step: int


class ClaimStatusPatch(NamedTuple):
    """Payload of PATCH_CLAIM_STATUS: what changes of a claim as it was read.

    A new capacity ends a resize, and its conditions go. An error adds one, at any version.
    """

    namespace: str
    name: str
    volume: str  # of the pod: routes the answer
    old: ClaimView
    resize_status: str
    capacity: str = ""  # "": as it was
    error: str = ""
    now_s: int = 0  # wall


class CSINodeUpdate(NamedTuple):
    """Payload of UPDATE_CSINODE: the object as read, and the driver to add or replace."""

    base: bytes
    driver: str
    node_id: str
    topology_keys: tuple[str, ...]
    allocatable: int  # 0: no limit


def attachment_name(handle: str, driver: str, node: str) -> str:
    """Return the name of a VolumeAttachment. Source: csi_attacher.go, getAttachmentName."""
    return "csi-" + hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()
