"""Volumes of a pod, and the objects behind them, from JSON."""

import sys
from collections.abc import Iterator
from typing import Any

import orjson

from fleet.k8s.pods import (
    READ_ONLY_MODE,
    DownwardFile,
    ObjectSource,
    TokenSource,
    VolumeSpec,
)
from fleet.quantity import parse_quantity
from fleet.wire.api.decode_script import env_reference

DEFAULT_MODE = 0o644
HUGE_PAGES = "HugePages"  # a medium; with "-2Mi" it names the size
HUGE_PAGES_RESOURCE = "hugepages-"
NO_QUANTITY = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
DEFAULT_TOKEN_S = 3600  # core/v1/defaults.go, SetDefaults_ServiceAccountTokenProjection
RESOURCE_EXHAUSTED = 8  # of gRPC
_intern = sys.intern
_PLUGINS = ("csi", "hostPath", "nfs", "iscsi", "fc", "flexVolume", "local")
_SECRET_PLUGINS = frozenset(
    ("csi", "cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
)
MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
"""An annotation of PersistentVolumes, before `mountOptions`."""
OBJECTS_MAX = 1024  # claims and volumes, by their bytes: replicas ask for the same ones


def decode_volumes(spec: dict[str, Any]) -> tuple[VolumeSpec, ...]:
    """Return the volumes of a pod's spec, and whether a container uses each.

    Source: pkg/volume/util/util.go, GetPodVolumeNames.
    """
    mounts: set[str] = set()
    devices: set[str] = set()
    for container in _containers(spec):
        mounts.update(each["name"] for each in container.get("volumeMounts") or ())
        devices.update(each["name"] for each in container.get("volumeDevices") or ())
    return tuple(
        _volume(
            each,
            mounted=each["name"] in mounts | devices,
            block=each["name"] in devices,
            flaw=_medium_flaw((each.get("emptyDir") or {}).get("medium") or "", spec),
        )
        for each in spec.get("volumes") or ()
    )


def _medium_flaw(medium: str, spec: dict[str, Any]) -> str:
    """Return why an emptyDir cannot be made of its medium, "" if it can.

    Source: pkg/volume/emptydir/empty_dir.go, SetUpAt.
    """
    if medium in {"", "Memory"}:
        return ""
    if medium != HUGE_PAGES and not medium.startswith(f"{HUGE_PAGES}-"):
        return f"unknown storage medium {orjson.dumps(medium).decode()}"
    try:
        return _huge_pages_flaw(medium, spec)
    except ValueError:
        return NO_QUANTITY


def _huge_pages_flaw(medium: str, spec: dict[str, Any]) -> str:
    """Source: pkg/volume/emptydir/empty_dir.go, getPageSizeMountOption."""
    asking = (spec, *(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    sizes = {
        parse_quantity(name.removeprefix(HUGE_PAGES_RESOURCE)).nano
        for each in asking
        for name in (each.get("resources") or {}).get("requests") or ()
        if name.startswith(HUGE_PAGES_RESOURCE)
    }
    if medium == HUGE_PAGES and len(sizes) > 1:
        return f"medium: {medium} can't be used if container requests multiple huge page sizes"
    if medium != HUGE_PAGES:
        sizes &= {parse_quantity(medium.removeprefix(f"{HUGE_PAGES}-")).nano}
    if sizes:
        return ""
    return (
        f"medium {medium}: hugePages storage requested, but there is no resource request "
        "for huge pages"
    )


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def _volume(obj: dict[str, Any], *, mounted: bool, block: bool, flaw: str) -> VolumeSpec:
    kind = next((key for key in obj if key != "name"), "emptyDir")
    source = obj.get(kind) or {}
    config_maps: list[ObjectSource] = []
    secrets: list[ObjectSource] = []
    tokens: list[TokenSource] = []
    mode = source.get("defaultMode") or DEFAULT_MODE
    if kind == "persistentVolumeClaim" and source.get("readOnly"):
        mode = READ_ONLY_MODE
    downward = list(_downward(source)) if kind == "downwardAPI" else []
    if kind == "configMap":
        config_maps.append(_source(source, "name"))
    elif kind == "secret":
        secrets.append(_source(source, "secretName"))
    elif kind == "projected":
        for each in source.get("sources") or ():
            if "configMap" in each:
                config_maps.append(_source(each["configMap"], "name"))
            elif "secret" in each:
                secrets.append(_source(each["secret"], "name"))
            elif "downwardAPI" in each:
                downward += _downward(each["downwardAPI"])
            elif "serviceAccountToken" in each:
                ref = each["serviceAccountToken"]
                seconds = ref.get("expirationSeconds", DEFAULT_TOKEN_S)
                tokens.append(TokenSource(ref.get("audience", ""), seconds, ref.get("path", "")))
    return VolumeSpec(
        obj["name"],
        _intern(kind),
        tuple(config_maps),
        tuple(secrets),
        tuple(tokens),
        claim=source.get("claimName", "") if kind == "persistentVolumeClaim" else "",
        driver=source.get("driver", "") if kind == "csi" else "",
        mounted=mounted,
        block=block,
        host_path=source.get("path", "") if kind == "hostPath" else "",
        host_type=_intern(source.get("type") or "") if kind == "hostPath" else "",
        size_limit=_intern(source.get("sizeLimit") or "") if kind == "emptyDir" else "",
        in_memory=kind == "emptyDir" and source.get("medium") == "Memory",
        downward=tuple(downward),
        mode=mode,
        image=source.get("reference", "") if kind == "image" else "",
        pull_policy=source.get("pullPolicy", "") if kind == "image" else "",
        secret=_volume_secret(kind, source),
        flaw=flaw,
    )


def _volume_secret(kind: str, source: dict[str, Any]) -> str:
    """Return the Secret that a plug-in is given. Source: pod/util.go, VisitPodSecretNames."""
    if kind == "azureFile":
        return str(source.get("secretName") or "")
    ref = source.get("nodePublishSecretRef" if kind == "csi" else "secretRef")
    return str((ref or {}).get("name", "")) if kind in _SECRET_PLUGINS else ""


def _source(ref: dict[str, Any], field: str) -> ObjectSource:
    items = ref.get("items") or ()
    keys = tuple(_intern(each["key"]) for each in items)
    paths = tuple(each.get("path", each["key"]) for each in items)
    modes = tuple(each.get("mode") for each in items)
    modes = modes if any(modes) else ()
    return ObjectSource(ref.get(field, ""), ref.get("optional", False), keys, paths, modes)


def _downward(ref: dict[str, Any]) -> Iterator[DownwardFile]:
    for each in ref.get("items") or ():
        yield DownwardFile(each.get("path", ""), env_reference(each), each.get("mode"))
