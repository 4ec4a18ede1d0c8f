"""Objects of simulated storage, as the sidecars of a CSI driver make and read them.

How far a claim's volume has grown, as an external resizer reads and writes it in the status:

    "" --asked for more--> ControllerResizeInProgress --+--> "" and the new capacity
                                                        +--> NodeResizePending, for the kubelet
    NodeResizeInfeasible, from the kubelet --> NodeResizePending: the node tries again

Source: external-resizer/pkg/controller/expand_and_recover.go, pkg/util/util.go; the same is in
kubernetes/pkg/volume/util/operationexecutor/operation_generator.go, expandAndRecoverFunction.
Differs: a claim that asks for less than a volume was to have while that is pending is left alone.
"""

import hashlib
from typing import Any

from fleet.cluster.leftovers import PROVISIONED_BY, PROVISIONER_FINALIZER, STORAGE_OF, object_mark
from fleet.cluster.ownership import OWNER_ANNOTATION
from fleet.k8s.events import ObjectRef, Report, event_json
from fleet.k8s.volumes import RESIZE_CONDITIONS, ResizeStatus
from fleet.quantity import parse_quantity

Json = dict[str, Any]
PENDING_TEXT = (
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
)


def persistent_volume(
    claim: Json, storage_class: Json, driver: str, topology: dict[str, str], run: str
) -> Json:
    """Return the PersistentVolume that a provisioner makes for a claim.

    Source: external-provisioner/pkg/controller/controller.go, Provision.
    """
    meta, wanted = claim["metadata"], claim["spec"]
    name = f"pvc-{meta['uid']}"
    parameters = storage_class.get("parameters") or {}
    spec: Json = {
        "accessModes": wanted.get("accessModes") or [],
        "capacity": {"storage": wanted["resources"]["requests"]["storage"]},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "csi": {
            "driver": driver,
            "volumeHandle": "vol-" + hashlib.sha256(name.encode()).hexdigest()[:17],
            "fsType": parameters.get("csi.storage.k8s.io/fstype", "ext4"),
            "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": driver},
        },
        "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
        "storageClassName": storage_class["metadata"]["name"],
        "volumeMode": wanted.get("volumeMode", "Filesystem"),
    }
    if storage_class.get("mountOptions"):
        spec["mountOptions"] = storage_class["mountOptions"]
    if topology:
        expressions = [
            {"key": key, "operator": "In", "values": [value]}
            for key, value in sorted(topology.items())
        ]
        terms = [{"matchExpressions": expressions}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {
            "name": name,
            "labels": {STORAGE_OF: run},
            "annotations": {PROVISIONED_BY: driver, OWNER_ANNOTATION: object_mark(run, "", name)},
            "finalizers": [PROVISIONER_FINALIZER],
        },
        "spec": spec,
    }


def claim_event(
    claim: Json, name: str, component: str, stamp: str, what: tuple[str, str, str]
) -> Json:
    """Return an event about a claim; `what` is its type, reason and message."""
    meta = claim["metadata"]
    about = ObjectRef(
        "PersistentVolumeClaim",
        meta["namespace"],
        meta["name"],
        meta["uid"],
        meta["resourceVersion"],
    )
    kind, reason, message = what
    report = Report(kind, reason, message, component, reporter=component)
    return event_json(name, about, report, (stamp, stamp, 1))


def volume_of(attachment: Json) -> str:
    """Return the PersistentVolume that is attached, "" for an inline one."""
    return str(attachment["spec"].get("source", {}).get("persistentVolumeName") or "")


def finalizers_of(obj: Json) -> list[str]:
    """Return the finalizers of an object."""
    return list(obj["metadata"].get("finalizers") or ())


def is_deleting(obj: Json) -> bool:
    """Return whether a deletionTimestamp is set."""
    return "deletionTimestamp" in obj["metadata"]


# ---- how far a volume has grown ----


def resize_status(claim: Json) -> str:
    """Return how far the resize of a claim is, "" if there is none."""
    found = claim.get("status", {}).get("allocatedResourceStatuses") or {}
    return str(found.get("storage", ""))


def is_infeasible_on_node(claim: Json) -> bool:
    """Return whether a kubelet gave up."""
    return resize_status(claim) == ResizeStatus.NODE_INFEASIBLE


def wants_resize(claim: Json) -> bool:
    """Return whether there is something to do; what waits for a kubelet is its business."""
    status = claim.get("status", {})
    if status.get("phase") != "Bound" or resize_status(claim) in (
        ResizeStatus.NODE_PENDING,
        ResizeStatus.NODE_IN_PROGRESS,
    ):
        return False
    if is_infeasible_on_node(claim):
        return True
    wanted = claim["spec"]["resources"]["requests"]["storage"]
    actual = status.get("capacity", {}).get("storage", "0")
    return parse_quantity(wanted).nano > parse_quantity(actual).nano


def in_progress(claim: Json, size: str, stamp: str) -> Json:
    """Return what changes when the driver is asked. Source: MarkControllerReisizeInProgress."""
    resizing = {"type": "Resizing", "status": "True", "lastTransitionTime": stamp}
    return {
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": ResizeStatus.CONTROLLER_IN_PROGRESS.value},
        "conditions": [*_others(claim), resizing],
    }


def pending_on_node(claim: Json, stamp: str = "") -> Json:
    """Return what changes when the node is to go on. Source: markForPendingNodeExpansion."""
    status: Json = {"allocatedResourceStatuses": {"storage": ResizeStatus.NODE_PENDING.value}}
    conditions = claim.get("status", {}).get("conditions") or []
    if stamp and not any(each["type"] == "FileSystemResizePending" for each in conditions):
        pending = {"type": "FileSystemResizePending", "status": "True", "message": PENDING_TEXT}
        pending["lastTransitionTime"] = stamp
        status["conditions"] = [*conditions, pending]
    return status


def grown(claim: Json, size: str) -> Json:
    """Return what changes when that is all. Source: MarkResizeFinished."""
    return {
        "capacity": {"storage": size},
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": None,
        "conditions": _others(claim) or None,
    }


def _others(claim: Json) -> list[Json]:
    """Return the conditions that are about something else. Source: MergeResizeConditionOnPVC."""
    found = claim.get("status", {}).get("conditions") or ()
    return [each for each in found if each["type"] not in RESIZE_CONDITIONS]
