"""Pods from JSON: slotted records with interned strings, never a dict.

Rendered parts of a status (`*_json`) have sorted keys, so that what a spec asks for and what a
server shows are equal bytes when they are equal.
"""

import sys
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from fleet.objects import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EnvSource,
    Pod,
    PodCondition,
    PodStatus,
    PodUid,
    PodView,
    RunningState,
    TerminatedState,
    TokenSource,
    Toleration,
    VolumeSpec,
    WaitingState,
)
from fleet.wire.pod_resources import Demand, pod_resources, qos_class
from fleet.wire.times import parse_rfc3339

OWN_ANNOTATIONS = "fleet.emulator/"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
DEFAULT_TOKEN_S = 3600
SHARED_MAX = 8192
_SORTED = orjson.OPT_SORT_KEYS
_EMPTY_STATUS = PodStatus()

_T = TypeVar("_T")
_shared: dict[object, object] = {}
_intern = sys.intern


def decode_pod(body: bytes | dict[str, Any]) -> Pod:
    """Return the record of a Pod."""
    obj: dict[str, Any] = orjson.loads(body) if isinstance(body, bytes) else body
    meta = obj["metadata"]
    spec = obj["spec"]
    annotations = meta.get("annotations", {})
    containers = spec.get("containers", ())
    inits = spec.get("initContainers", ())
    demands = [_demand(each) for each in containers]
    init_demands = [_demand(each) for each in inits]
    own = _demand(spec) if "resources" in spec else None
    allocated, resources = pod_resources(demands, init_demands, spec.get("overhead", {}), own)
    status = obj.get("status", {})
    return Pod(
        namespace=_intern(meta["namespace"]),
        name=meta["name"],
        uid=PodUid(meta["uid"]),
        node_name=_intern(spec.get("nodeName", "")),
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation", 0),
        created_s=parse_rfc3339(meta.get("creationTimestamp") or ""),
        deletion_s=parse_rfc3339(meta.get("deletionTimestamp") or ""),
        deletion_grace_s=meta.get("deletionGracePeriodSeconds"),
        labels=_share(_pairs(meta.get("labels"))),
        annotations=_share(
            tuple(each for each in _pairs(annotations) if each[0].startswith(OWN_ANNOTATIONS))
        ),
        fingerprint=_fingerprint(spec, meta.get("labels"), annotations),
        is_mirror=MIRROR_ANNOTATION in annotations,
        containers=tuple(map(_container, containers)),
        init_containers=tuple(map(_container, inits)),
        ephemeral_containers=tuple(map(_container, spec.get("ephemeralContainers", ()))),
        volumes=tuple(map(_volume, spec.get("volumes", ()))),
        tolerations=_share(tuple(map(_toleration, spec.get("tolerations", ())))),
        restart_policy=_intern(spec.get("restartPolicy", "Always")),
        termination_grace_s=spec.get("terminationGracePeriodSeconds", 30),
        service_account=_intern(spec.get("serviceAccountName", "")),
        host_network=spec.get("hostNetwork", False),
        priority=spec.get("priority", 0),
        readiness_gates=_share(
            tuple(each["conditionType"] for each in spec.get("readinessGates", ()))
        ),
        pull_secrets=_share(tuple(each["name"] for each in spec.get("imagePullSecrets", ()))),
        qos_class=qos_class([own] if own else [*demands, *init_demands]),
        allocated_json=_share(allocated),
        resources_json=_share(resources),
        status=_status(status) if status else _EMPTY_STATUS,
    )


def decode_pod_view(body: bytes) -> PodView:
    """Return what the status manager reads of a Pod, without parsing the rest of it.

    Go writes metadata, spec, status in this order; managed fields end the metadata and are more
    than half of it. What does not look so is parsed whole.
    """
    spec_at = body.find(b'},"spec":{')
    status_at = body.rfind(b',"status":{', spec_at)
    fields_at = body.find(b',"managedFields":[', 0, spec_at)
    end = fields_at if fields_at > 0 else spec_at
    if spec_at < 0 or status_at < 0:
        obj = orjson.loads(body)
    else:
        obj = orjson.loads(b"%b}%b" % (body[:end], body[status_at:]))
    meta = obj["metadata"]
    return PodView(
        meta["uid"],
        meta.get("resourceVersion", ""),
        "deletionTimestamp" in meta,
        _status(obj.get("status", {})),
    )


def _share(value: _T) -> _T:
    """Return the equal value that was seen before, so that a fleet keeps one of each."""
    found = _shared.setdefault(value, value)
    if len(_shared) > SHARED_MAX:
        _shared.clear()
    return found  # type: ignore[return-value] # keys and values are the same objects


def _pairs(obj: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    if not obj:
        return ()
    return tuple((_intern(key), _intern(value)) for key, value in obj.items())


def _fingerprint(*parts: object) -> int:
    """Return a stable 64-bit digest of what an UPDATE looks at."""
    data = orjson.dumps(parts, option=_SORTED)
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def _demand(obj: dict[str, Any]) -> Demand:
    resources = obj.get("resources") or {}
    return Demand(
        resources.get("requests", {}),
        resources.get("limits", {}),
        obj.get("restartPolicy") == "Always",
    )


def _container(obj: dict[str, Any]) -> ContainerSpec:
    resources = obj.get("resources") or {}
    requests = resources.get("requests")
    mounts = [_mount(each) for each in obj.get("volumeMounts", ())]
    return ContainerSpec(
        name=_intern(obj["name"]),
        image=_intern(obj.get("image", "")),
        pull_policy=_intern(obj.get("imagePullPolicy", "")),
        command=_share(tuple(obj.get("command", ()))),
        args=_share(tuple(obj.get("args", ()))),
        restart_policy=_intern(obj.get("restartPolicy", "")),
        requests_json=_share(orjson.dumps(requests, option=_SORTED)) if requests else b"",
        resources_json=_share(orjson.dumps(resources, option=_SORTED)) if resources else b"{}",
        volume_mounts_json=orjson.dumps(mounts) if mounts else b"",
        has_startup_probe="startupProbe" in obj,
        has_readiness_probe="readinessProbe" in obj,
        env_sources=_share(_env_sources(obj)),
    )


def _mount(obj: dict[str, Any]) -> dict[str, object]:
    """Source: kubelet_pods.go, convertToAPIContainerStatuses: recursive only where asked for."""
    mount: dict[str, object] = {"mountPath": obj["mountPath"], "name": obj["name"]}
    if obj.get("readOnly"):
        mount["readOnly"] = True
        wanted = obj.get("recursiveReadOnly", "Disabled")
        mount["recursiveReadOnly"] = "Disabled" if wanted == "Disabled" else "Enabled"
    return mount


def _env_sources(obj: dict[str, Any]) -> tuple[EnvSource, ...]:
    found = []
    for each in obj.get("envFrom", ()):
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in each:
                ref = each[field]
                found.append(EnvSource(kind, ref.get("name", ""), ref.get("optional", False)))
    for each in obj.get("env", ()):
        source = each.get("valueFrom", {})
        for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if field in source:
                ref = source[field]
                found.append(EnvSource(kind, ref.get("name", ""), ref.get("optional", False)))
    return tuple(found)


def _volume(obj: dict[str, Any]) -> VolumeSpec:
    kind = next((key for key in obj if key != "name"), "emptyDir")
    source = obj.get(kind) or {}
    config_maps: list[tuple[str, bool]] = []
    secrets: list[tuple[str, bool]] = []
    tokens: list[TokenSource] = []
    if kind == "configMap":
        config_maps.append((source.get("name", ""), source.get("optional", False)))
    elif kind == "secret":
        secrets.append((source.get("secretName", ""), source.get("optional", False)))
    elif kind == "projected":
        for each in source.get("sources", ()):
            if "configMap" in each:
                ref = each["configMap"]
                config_maps.append((ref.get("name", ""), ref.get("optional", False)))
            elif "secret" in each:
                ref = each["secret"]
                secrets.append((ref.get("name", ""), ref.get("optional", False)))
            elif "serviceAccountToken" in each:
                ref = each["serviceAccountToken"]
                seconds = ref.get("expirationSeconds", DEFAULT_TOKEN_S)
                tokens.append(TokenSource(ref.get("audience", ""), seconds, ref.get("path", "")))
    return VolumeSpec(
        obj["name"],
        _intern(kind),
        _share(tuple(config_maps)),
        _share(tuple(secrets)),
        _share(tuple(tokens)),
    )


def _toleration(obj: dict[str, Any]) -> Toleration:
    return Toleration(
        obj.get("key", ""),
        obj.get("operator", "Equal"),
        obj.get("value", ""),
        obj.get("effect", ""),
    )


def _status(obj: dict[str, Any]) -> PodStatus:
    return PodStatus(
        phase=_intern(obj.get("phase", "")),
        reason=_intern(obj.get("reason", "")),
        message=obj.get("message", ""),
        conditions=_share(tuple(map(_condition, obj.get("conditions") or ()))),
        host_ip=_intern(obj.get("hostIP", "")),
        pod_ip=obj.get("podIP", ""),
        start_time_s=parse_rfc3339(obj.get("startTime") or ""),
        qos_class=_intern(obj.get("qosClass", "")),
        observed_generation=obj.get("observedGeneration", 0),
        init_containers=_statuses(obj, "initContainerStatuses"),
        containers=_statuses(obj, "containerStatuses"),
        ephemeral_containers=_statuses(obj, "ephemeralContainerStatuses"),
        allocated_json=_rendered(obj, "allocatedResources"),
        resources_json=_rendered(obj, "resources"),
    )


def _statuses(obj: dict[str, Any], field: str) -> tuple[ContainerStatus, ...]:
    found = obj.get(field)
    return tuple(map(_container_status, found)) if found else ()


def _rendered(obj: dict[str, Any], field: str) -> bytes:
    found = obj.get(field)
    return b"" if found is None else _share(orjson.dumps(found, option=_SORTED))


def _condition(obj: dict[str, Any]) -> PodCondition:
    return PodCondition(
        _intern(obj["type"]),
        _intern(obj["status"]),
        _intern(obj.get("reason", "")),
        obj.get("message", ""),
        parse_rfc3339(obj.get("lastTransitionTime") or ""),
        obj.get("observedGeneration", 0),
    )


def _container_status(obj: dict[str, Any]) -> ContainerStatus:
    last = obj.get("lastState", {}).get("terminated")
    mounts = obj.get("volumeMounts")
    return ContainerStatus(
        name=_intern(obj["name"]),
        state=_container_state(obj.get("state", {})),
        last_state=_terminated(last) if last else None,
        ready=obj.get("ready", False),
        started=obj.get("started", False),
        restart_count=obj.get("restartCount", 0),
        image=_intern(obj.get("image", "")),
        image_id=_intern(obj.get("imageID", "")),
        container_id=obj.get("containerID", ""),
        allocated_json=_rendered(obj, "allocatedResources"),
        resources_json=_rendered(obj, "resources"),
        volume_mounts_json=orjson.dumps(mounts, option=_SORTED) if mounts else b"",
        has_user="user" in obj,
    )


def _container_state(obj: dict[str, Any]) -> ContainerState:
    for field, decode in _STATES.items():
        if field in obj:
            return decode(obj[field])
    return WaitingState("")


def _waiting(obj: dict[str, Any]) -> ContainerState:
    return WaitingState(_intern(obj.get("reason", "")), obj.get("message", ""))


def _running(obj: dict[str, Any]) -> ContainerState:
    return RunningState(parse_rfc3339(obj.get("startedAt") or ""))


def _terminated(obj: dict[str, Any]) -> TerminatedState:
    return TerminatedState(
        obj.get("exitCode", 0),
        _intern(obj.get("reason", "")),
        obj.get("message", ""),
        parse_rfc3339(obj.get("startedAt") or ""),
        parse_rfc3339(obj.get("finishedAt") or ""),
        obj.get("containerID", ""),
    )


_STATES: dict[str, Callable[[dict[str, Any]], ContainerState]] = {
    "running": _running,
    "waiting": _waiting,
    "terminated": _terminated,
}
