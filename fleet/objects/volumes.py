"""What kubelets read of the objects behind volumes: claims, volumes, attachments, drivers."""

import hashlib
from typing import NamedTuple

from fleet.objects.admission import NodeTerms, selects

CSI_PLUGIN = "kubernetes.io/csi/"
PVC_PROTECTION = "kubernetes.io/pvc-protection"


class ObjectData(NamedTuple):
    """A ConfigMap or Secret; nodes that have the same share one."""

    name: str
    resource_version: str
    keys: tuple[str, ...] = ()
    immutable: bool = False
    texts: tuple[str, ...] = ()  # by key; what is no UTF-8 is kept in surrogates


class ClaimView(NamedTuple):
    """What is read of a PersistentVolumeClaim."""

    uid: str
    phase: str
    volume_name: str
    deleting: bool = False
    protected: bool = False  # has the finalizer kubernetes.io/pvc-protection
    owner_uid: str = ""  # of the controller, a pod for generic ephemeral volumes


class VolumeView(NamedTuple):
    """What is read of a PersistentVolume. `driver` and `handle` are "" unless it is a CSI one."""

    name: str
    claim_uid: str | None  # None without a claimRef
    mode: str = "Filesystem"
    driver: str = ""
    handle: str = ""
    access_modes: tuple[str, ...] = ()
    affinity: NodeTerms | None = None

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
    updates_allocatable: bool = False  # nodeAllocatableUpdatePeriodSeconds is set


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
