"""Objects of simulated storage, as the sidecars of a CSI driver make and read them."""

import hashlib
from typing import Any

from fleet.cluster.leftovers import PROVISIONED_BY, PROVISIONER_FINALIZER, STORAGE_OF, object_mark
from fleet.cluster.ownership import OWNER_ANNOTATION

Json = dict[str, Any]


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
    kind, reason, message = what
    return {
        "metadata": {"name": name},
        "involvedObject": {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def volume_of(attachment: Json) -> str:
    """Return the PersistentVolume that is attached, "" for an inline one."""
    return str(attachment["spec"].get("source", {}).get("persistentVolumeName") or "")


def finalizers_of(obj: Json) -> list[str]:
    """Return the finalizers of an object."""
    return list(obj["metadata"].get("finalizers") or ())


def is_deleting(obj: Json) -> bool:
    """Return whether a deletionTimestamp is set."""
    return "deletionTimestamp" in obj["metadata"]
