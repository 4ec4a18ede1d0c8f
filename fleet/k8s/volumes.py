"""What kubelets read of the objects behind volumes: claims, volumes, attachments, drivers."""

import enum
import hashlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from fleet.k8s.objects import Owner, controller_uid
from fleet.k8s.schema import Keys, Presence, Record, Storage, Text, kind, member
from fleet.k8s.selectors import NodeTerms, node_terms, selects

CSI_PLUGIN = "kubernetes.io/csi/"
PVC_PROTECTION = "kubernetes.io/pvc-protection"


class ObjectData(NamedTuple):
    """A ConfigMap or Secret; nodes that have the same share one."""

    name: str
    resource_version: str
    keys: tuple[str, ...] = ()
    immutable: bool = False
    texts: tuple[str, ...] = ()  # by key; what is no UTF-8 is kept in surrogates
    binary: tuple[str, ...] = ()  # the keys of binaryData, of which no variable is made


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
NO_NODE_EXPANSION = "volume.kubernetes.io/node-expansion-not-required"  # an annotation of a claim


if TYPE_CHECKING:
    Types = tuple[str, ...]
else:
    Types = kind(lambda listed: tuple(sys.intern(each["type"]) for each in listed))


class ClaimView(Record, frozen=True):
    """What is read of a PersistentVolumeClaim."""

    uid: str = member("metadata/uid")
    phase: Text = member("status/phase", "")
    volume_name: str = member("spec/volumeName", "")
    deleting: Presence = member("metadata/deletionTimestamp", default=False)
    finalizers: tuple[str, ...] = member("metadata/finalizers", ())
    owners: tuple[Owner, ...] = member("metadata/ownerReferences", ())
    resource_version: str = member("metadata/resourceVersion", "")
    requested: Storage = member("spec/resources/requests", "")
    capacity: Storage = member("status/capacity", "")
    allocated: Storage | None = member("status/allocatedResources", None)
    """None from an older external resizer."""
    resize_status: Storage = member("status/allocatedResourceStatuses", "")  # a ResizeStatus
    conditions: Types = member("status/conditions", ())
    access_modes: tuple[str, ...] = member("spec/accessModes", ())
    annotations: Keys = member("metadata/annotations", frozenset())

    @property
    def protected(self) -> bool:
        """Return whether it has the finalizer kubernetes.io/pvc-protection."""
        return PVC_PROTECTION in self.finalizers

    @property
    def owner_uid(self) -> str:
        """Return the uid of the controller, a pod for generic ephemeral volumes."""
        return controller_uid(self.owners)

    @property
    def is_shared(self) -> bool:
        """Return whether each node that mounts it may have to expand it."""
        return "ReadWriteMany" in self.access_modes and NO_NODE_EXPANSION not in self.annotations


SecretRef = tuple[str, str]  # the namespace and the name of a Secret
NO_SECRET: SecretRef = ("", "")


class VolumeSecrets(NamedTuple):
    """The Secrets that a CSI driver is given, each with its call."""

    stage: SecretRef = NO_SECRET
    publish: SecretRef = NO_SECRET
    expand: SecretRef = NO_SECRET


NO_SECRETS = VolumeSecrets()
RESOURCE_EXHAUSTED = 8  # of gRPC
_ZONES = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
POD_SCOPED = frozenset(("hostPath", "nfs", "flexVolume"))
"""Plug-ins that mount no device: each pod mounts the volume by itself."""
_PLUGINS = ("csi", "hostPath", "nfs", "iscsi", "fc", "flexVolume", "local")
MIGRATED = {
    "awsElasticBlockStore": ("ebs.csi.aws.com", "volumeID"),
    "azureDisk": ("disk.csi.azure.com", "diskURI"),
    "cinder": ("cinder.csi.openstack.org", "volumeID"),
    "gcePersistentDisk": ("pd.csi.storage.gke.io", "pdName"),
    "portworxVolume": ("pxd.portworx.com", "volumeID"),
    "vsphereVolume": ("csi.vsphere.vmware.com", "volumePath"),
}
"""The CSI driver of what a plug-in had that is gone, and the member that names the volume."""
MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
"""An annotation of PersistentVolumes, before `mountOptions`."""


def _secrets(csi: dict[str, Any]) -> VolumeSecrets:
    refs = (csi.get(f"node{each}SecretRef", {}) for each in ("Stage", "Publish", "Expand"))
    return VolumeSecrets(*((each.get("namespace", ""), each.get("name", "")) for each in refs))


class VolumeSource(NamedTuple):
    """What a PersistentVolume is of. `driver` and `handle` are "" unless a CSI driver has it."""

    plugin: str = ""  # the API's field name, "" of one that is not known
    driver: str = ""
    handle: str = ""


def _source(spec: dict[str, Any]) -> VolumeSource:
    """Source: TranslateInTreePVToCSI of csi-translation-lib/plugins/*.go.

    Differs: node affinity by zones stays; a volume of azureFile is no driver's.
    """
    plugin = next((each for each in (*_PLUGINS, *MIGRATED) if each in spec), "")
    found = spec.get(plugin, {})
    if plugin == "csi":
        return VolumeSource(plugin, found.get("driver", ""), found.get("volumeHandle", ""))
    driver, field = MIGRATED.get(plugin, ("", ""))
    handle = found.get(field, "")
    if handle.startswith("aws://"):  # the zone and the volume
        handle = handle.rpartition("/")[2]
    return VolumeSource(plugin, driver, handle)


if TYPE_CHECKING:
    Affinity = NodeTerms | None
    Source = VolumeSource
    Secrets = VolumeSecrets
else:
    Affinity = kind(node_terms)
    Source = kind(_source)
    Secrets = kind(_secrets)


class VolumeView(Record, frozen=True):
    """What is read of a PersistentVolume."""

    name: str = member("metadata/name")
    claim: Owner | None = member("spec/claimRef", None)
    mode: str = member("spec/volumeMode", "Filesystem")
    access_modes: tuple[str, ...] = member("spec/accessModes", ())
    affinity: Affinity = member("spec/nodeAffinity/required", None)
    capacity: Storage = member("spec/capacity", "")
    source: Source = member("spec", VolumeSource())
    labels: dict[str, str] | None = member("metadata/labels", None)
    mount_options: tuple[str, ...] = member("spec/mountOptions", ())
    annotations: dict[str, str] | None = member("metadata/annotations", None)
    secrets: Secrets = member("spec/csi", NO_SECRETS)

    @property
    def plugin(self) -> str:
        """Return the API's field name of its source, "" of one that is not known."""
        return self.source.plugin

    @property
    def driver(self) -> str:
        """Return its CSI driver, "" if it has none."""
        return self.source.driver

    @property
    def handle(self) -> str:
        """Return what its driver calls it. Source: gce_pd.go, TranslateInTreePVToCSI."""
        if self.plugin != "gcePersistentDisk":
            return self.source.handle
        found = map((self.labels or {}).get, _ZONES)
        zone, *others = (next(filter(None, found), None) or "UNSPECIFIED").split("__")
        where = f"regions/{zone.rpartition('-')[0]}" if others else f"zones/{zone}"
        return f"projects/UNSPECIFIED/{where}/disks/{self.source.handle}"

    @property
    def claim_uid(self) -> str | None:
        """Return the uid of its claim, None without a claimRef."""
        return self.claim.uid if self.claim else None

    @property
    def has_mount_options(self) -> bool:
        """Return whether it is mounted with options. Source: MountOptionFromSpec."""
        noted = (self.annotations or {}).get(MOUNT_OPTIONS)
        return any(self.mount_options) if noted is None else bool(noted)

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


class AttachmentView(Record, frozen=True):
    """What is read of a VolumeAttachment."""

    attached: bool = member("status/attached", default=False)
    deleting: Presence = member("metadata/deletionTimestamp", default=False)
    error: str = member("status/attachError/message", "")
    error_code: int = member("status/attachError/errorCode", 0)

    @property
    def is_exhausted(self) -> bool:
        """Return whether the driver says that the node takes no more volumes."""
        return self.error_code == RESOURCE_EXHAUSTED


if TYPE_CHECKING:
    TokenRequests = tuple[tuple[str, int], ...]
else:
    TokenRequests = kind(
        lambda listed: tuple(
            (each.get("audience", ""), each.get("expirationSeconds", 0)) for each in listed
        )
    )


class CSIDriverView(Record, frozen=True):
    """What is read of a CSIDriver."""

    name: str = member("metadata/name")
    resource_version: str = member("metadata/resourceVersion", "")
    attach_required: bool = member("spec/attachRequired", default=True)
    modes: tuple[str, ...] = member("spec/volumeLifecycleModes", ("Persistent",))
    allocatable_period_s: int = member("spec/nodeAllocatableUpdatePeriodSeconds", 0)
    tokens: TokenRequests = member("spec/tokenRequests", ())  # audience and life, 0 if it has none
    requires_republish: bool = member("spec/requiresRepublish", default=False)


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
