"""Pods from JSON: slotted records with interned strings, never a dict.

Pods of one template share all that their specs say, and it is parsed once: the names of the node
and of the token volume, in which alone they differ, are cut out first. Rendered parts of a status
(`*_json`) have sorted keys, so that equal values are equal bytes wherever they come from.
"""

import sys
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from fleet.k8s.pods import (
    TOKEN_VOLUME,
    TOKEN_VOLUME_START,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EnvSource,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    PodUid,
    PodView,
    PortSpec,
    RunningState,
    TerminatedState,
    Toleration,
    WaitingState,
)
from fleet.k8s.times import parse_rfc3339
from fleet.k8s.well_known import MIRROR_ANNOTATION, OWN_PREFIX
from fleet.wire.api.decode_admission import admission_spec, with_claim_names
from fleet.wire.api.decode_lifecycle import container_lifecycle
from fleet.wire.api.decode_pod_network import pod_network
from fleet.wire.api.decode_probe import decode_probe
from fleet.wire.api.decode_script import container_script
from fleet.wire.api.decode_user import container_user
from fleet.wire.api.decode_volumes import decode_volumes
from fleet.wire.api.pod_resources import Demand, pod_resources, qos_class

KEPT_ANNOTATIONS = (OWN_PREFIX, MIRROR_ANNOTATION)
SHOWS_ANNOTATIONS = b"metadata.annotations"
"""The field path by which a pod does."""
SHARED_MAX = 8192
SPECS_MAX = 512
"""Values and whole specs that are kept once: pods of a template have the same ones. A full table is
begun anew, which costs a parse of each.
"""
SPECS_BYTES_MAX = 32 << 20
"""How long the keys of that table may be together: a hostile pod's spec has up to 1.5 MB."""
SPEC = b'},"spec":{'
STATUS = b'},"status":{'
MANAGED_FIELDS = b',"managedFields":['
NODE_NAME = b'"nodeName":"'
EMPTY_STATUS = PodStatus()
PATIENT_OWNERS = frozenset(
    (
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("v1", "ReplicationController"),
    )
)
"""Controllers that wait until a pod is gone, whatever its last status says. A Job does not."""

_T = TypeVar("_T")
_shared: dict[object, object] = {}
_intern = sys.intern


class SpecTable:
    """Whole specs by their bytes, a few and not too much."""

    __slots__ = ("_size", "_specs")

    def __init__(self) -> None:
        self._specs: dict[bytes, PodSpec] = {}
        self._size = 0

    def get(self, raw: bytes) -> PodSpec | None:
        """Return the spec of these bytes, None if it is not kept."""
        return self._specs.get(raw)

    def keep(self, raw: bytes, spec: PodSpec) -> PodSpec:
        """Keep a spec, and forget all others once they are too many."""
        if len(self._specs) >= SPECS_MAX or self._size + len(raw) > SPECS_BYTES_MAX:
            self._specs.clear()
            self._size = 0
        self._size += len(raw)
        self._specs[raw] = spec
        return spec

    def __len__(self) -> int:
        return len(self._specs)


_specs = SpecTable()


def decode_pod(body: bytes | dict[str, Any]) -> Pod:
    """Return the record of a Pod."""
    if not isinstance(body, bytes):
        body = orjson.dumps(body)
    body, suffix = _without_token_name(body)
    head, spec_json, status_json = _split(body)
    meta = orjson.loads(head)["metadata"]
    spec, node_name = _spec_of(spec_json)
    labels = share(pairs(meta.get("labels")))
    annotations = meta.get("annotations")
    notes = pairs(annotations) if annotations else ()
    owners = meta.get("ownerReferences") or ()
    status = orjson.loads(status_json) if status_json else {}
    if spec.admission.claims:
        spec = with_claims(spec, status)
    # By position: by name this call alone costs a microsecond more.
    return Pod(
        _intern(meta["namespace"]),
        meta["name"],
        PodUid(meta["uid"]),
        node_name,
        meta.get("resourceVersion", ""),
        meta.get("generation", 0),
        _seconds(meta.get("creationTimestamp") or ""),
        _seconds(meta.get("deletionTimestamp") or ""),
        meta.get("deletionGracePeriodSeconds"),
        labels,
        share(notes if SHOWS_ANNOTATIONS in spec_json else kept_annotations(notes)),
        share(digest(orjson.dumps((spec.digest, labels, notes)))),
        suffix,
        spec,
        _status(status) if status else EMPTY_STATUS,
        any(each.get("controller") for each in owners),
        bool(meta.get("finalizers")) or any(map(_waits_for_end, owners)),
    )


def _waits_for_end(owner: dict[str, Any]) -> bool:
    return (owner.get("apiVersion"), owner.get("kind")) not in PATIENT_OWNERS


def kept_annotations(notes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the annotations that somebody may ask for, if the pod does not show them itself."""
    return tuple(each for each in notes if each[0].startswith(KEPT_ANNOTATIONS))


def with_claims(spec: PodSpec, status: dict[str, Any]) -> PodSpec:
    """Return the spec of a pod whose status names the claims that were made for it."""
    return spec._replace(admission=with_claim_names(spec.admission, status))


def decode_pod_view(body: bytes) -> PodView:
    """Return what the status manager reads of a Pod, without parsing the rest of it."""
    body, _ = _without_token_name(body)
    head, _, status_json = _split(body)
    meta = orjson.loads(head)["metadata"]
    return PodView(
        meta["uid"],
        meta.get("resourceVersion", ""),
        "deletionTimestamp" in meta,
        _status(orjson.loads(status_json)) if status_json else EMPTY_STATUS,
    )


def _without_token_name(body: bytes) -> tuple[bytes, str]:
    """Give the token volume the same name in all pods, and return the suffix that it had.

    Admission names it kube-api-access-xxxxx; nothing else would differ between pods of a template.
    Source: plugin/pkg/admission/serviceaccount/admission.go, ServiceAccountVolumeName.
    """
    at = body.find(TOKEN_VOLUME_START)
    end = at + len(TOKEN_VOLUME)
    if at < 0 or body[end : end + 1] != b'"':
        return body, ""
    name = body[at:end]
    return body.replace(name, TOKEN_VOLUME), name[len(TOKEN_VOLUME_START) :].decode()


def _split(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Return metadata (wrapped, without managed fields), spec and status, each as JSON.

    Go writes them in this order, and the managed fields, more than half of the metadata, last in
    it. A quote within a string is escaped, so the seams cannot be inside one. What does not look
    so is parsed whole.
    """
    spec_at = body.find(SPEC)
    status_at = body.rfind(STATUS)
    if spec_at < 0 or status_at < spec_at:
        obj = orjson.loads(body)
        status = obj.get("status")
        return (
            orjson.dumps({"metadata": obj["metadata"]}),
            orjson.dumps(obj.get("spec", {})),
            orjson.dumps(status) if status else b"",
        )
    fields_at = body.find(MANAGED_FIELDS, 0, spec_at)
    head = body[: fields_at if fields_at > 0 else spec_at]
    end = body.rindex(b"}")
    return (
        head + b"}}",
        body[spec_at + len(SPEC) - 1 : status_at + 1],
        body[status_at + len(STATUS) - 1 : end],
    )


def _spec_of(json: bytes) -> tuple[PodSpec, str]:
    """Return the spec, parsed once per template, and the name of the node."""
    at = json.find(NODE_NAME)
    node_name = ""
    if at >= 0:
        end = json.index(b'"', at + len(NODE_NAME)) + 1
        node_name = _intern(json[at + len(NODE_NAME) : end - 1].decode())
        json = (
            json[: at - 1] + json[end:]
            if json[at - 1 : at] == b","
            else json[:at] + json[end + 1 :]
        )
    spec = _specs.get(json)
    if spec is None:
        spec = _specs.keep(json, decode_spec(orjson.loads(json), digest(json)))
    return spec, node_name


def decode_spec(spec: dict[str, Any], spec_digest: int) -> PodSpec:
    """Return what a spec says; the digest is of the bytes that it came from."""
    containers = spec.get("containers", ())
    inits = spec.get("initContainers", ())
    security = spec.get("securityContext") or {}
    links = spec.get("enableServiceLinks", True)
    demands = [_demand(each) for each in containers]
    init_demands = [_demand(each) for each in inits]
    own_resources = spec.get("resources")
    own = _demand(spec) if own_resources else None
    whole = pod_resources(demands, init_demands, spec.get("overhead", {}), own)
    return PodSpec(
        containers=share(tuple(_container(each, security, links=links) for each in containers)),
        init_containers=share(tuple(_container(each, security, links=links) for each in inits)),
        ephemeral_containers=share(
            tuple(
                _container(each, security, links=links)
                for each in spec.get("ephemeralContainers", ())
            )
        ),
        volumes=share(decode_volumes(spec)),
        tolerations=share(tuple(map(_toleration, spec.get("tolerations", ())))),
        restart_policy=_intern(spec.get("restartPolicy", "Always")),
        termination_grace_s=spec.get("terminationGracePeriodSeconds", 30),
        active_deadline_s=spec.get("activeDeadlineSeconds", 0),
        service_account=_intern(spec.get("serviceAccountName", "")),
        host_network=spec.get("hostNetwork", False),
        shares_pids=bool(spec.get("hostPID") or spec.get("shareProcessNamespace")),
        hostname=_intern(spec.get("hostname", "")),
        runtime_class=_intern(spec.get("runtimeClassName", "")),
        host_aliases=share(
            tuple((each["ip"], *each.get("hostnames", ())) for each in spec.get("hostAliases", ()))
        ),
        network=share(pod_network(spec)),
        priority=spec.get("priority", 0),
        readiness_gates=share(
            tuple(each["conditionType"] for each in spec.get("readinessGates", ()))
        ),
        pull_secrets=share(_pull_secrets(spec)),
        qos_class=qos_class([own] if own else [*demands, *init_demands]),
        allocated_json=share(whole.allocated),
        resources_json=share(whole.asked),
        running_json=share(whole.running),
        ended_json=share(whole.ended),
        own_json=share(render(own_resources)) if own_resources else b"",
        admission=share(admission_spec(spec, whole.allocated)),
        digest=spec_digest,
    )


@lru_cache(maxsize=4096)
def _seconds(text: str) -> int:
    """Return an API time; objects of one second share it."""
    return parse_rfc3339(text)


def _pull_secrets(spec: dict[str, Any]) -> tuple[str, ...]:
    """Return the pull secrets of a pod; the API takes some without a name, which kubelets skip.

    Source: kubelet_pods.go, getPullSecretsForPod (issue 99454).
    """
    names = (each.get("name") for each in spec.get("imagePullSecrets", ()))
    return tuple(name for name in names if name)


def share(value: _T) -> _T:
    """Return the equal value that was seen before, so that a fleet keeps one of each."""
    found = _shared.setdefault(value, value)
    if len(_shared) > SHARED_MAX:
        _shared.clear()
    return found  # type: ignore[return-value] # keys and values are the same objects


def render(value: object) -> bytes:
    """Render with sorted keys. A copy: orjson hands out its buffer, several times too large."""
    return b"%b" % orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def pairs(obj: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return labels or annotations, interned."""
    if not obj:
        return ()
    return tuple((_intern(key), _intern(value)) for key, value in obj.items())


def digest(data: bytes) -> int:
    """Return a stable 64-bit digest."""
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def _demand(obj: dict[str, Any]) -> Demand:
    resources = obj.get("resources") or {}
    return Demand(
        resources.get("requests", {}),
        resources.get("limits", {}),
        obj.get("restartPolicy") == "Always",
    )


def _container(obj: dict[str, Any], security: dict[str, Any], *, links: bool) -> ContainerSpec:
    resources = obj.get("resources") or {}
    requests = resources.get("requests")
    mounts = [_mount(each) for each in obj.get("volumeMounts", ())]
    return ContainerSpec(
        name=_intern(obj["name"]),
        image=_intern(obj.get("image", "")),
        pull_policy=_intern(obj.get("imagePullPolicy", "")),
        command=share(tuple(obj.get("command", ()))),
        args=share(tuple(obj.get("args", ()))),
        restart_policy=_intern(obj.get("restartPolicy", "")),
        requests_json=share(render(requests)) if requests else b"",
        resources_json=share(render(resources)) if resources else b"{}",
        volume_mounts_json=render(mounts) if mounts else b"",
        env_sources=share(_env_sources(obj)),
        life=share(container_lifecycle(obj)),
        startup_probe=decode_probe(obj, "startupProbe"),
        readiness_probe=decode_probe(obj, "readinessProbe"),
        liveness_probe=decode_probe(obj, "livenessProbe"),
        user=share(container_user(obj, security)),
        script=share(container_script(obj, has_service_links=links)),
        ports=share(_ports(obj)),
        target=_intern(obj.get("targetContainerName", "")),
    )


def _ports(obj: dict[str, Any]) -> tuple[PortSpec, ...]:
    return tuple(
        PortSpec(
            each.get("containerPort", 0),
            _intern(each.get("protocol", "TCP")),
            each.get("name", ""),
            each.get("hostPort", 0),
            _intern(each.get("hostIP", "")),
        )
        for each in obj.get("ports", ())
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
                optional = ref.get("optional", False)
                found.append(EnvSource(kind, ref.get("name", ""), optional, _intern(ref["key"])))
    return tuple(found)


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
        conditions=share(tuple(map(condition, obj.get("conditions") or ()))),
        host_ips=_intern(_ips(obj, "hostIP", "hostIPs")),
        pod_ips=_ips(obj, "podIP", "podIPs"),
        start_time_s=_seconds(obj.get("startTime") or ""),
        qos_class=_intern(obj.get("qosClass", "")),
        observed_generation=obj.get("observedGeneration", 0),
        init_containers=_statuses(obj, "initContainerStatuses"),
        containers=_statuses(obj, "containerStatuses"),
        ephemeral_containers=_statuses(obj, "ephemeralContainerStatuses"),
        allocated_json=_rendered(obj, "allocatedResources"),
        resources_json=_rendered(obj, "resources"),
    )


def _ips(obj: dict[str, Any], first: str, all_of_them: str) -> str:
    """Return addresses as fleet.k8s.addresses has them; the server holds that both agree."""
    listed = obj.get(all_of_them) or ()
    ip: str = obj.get(first, "")
    return ip if len(listed) < 2 else ",".join(each["ip"] for each in listed)


def _statuses(obj: dict[str, Any], field: str) -> tuple[ContainerStatus, ...]:
    found = obj.get(field)
    return tuple(map(_container_status, found)) if found else ()


def _rendered(obj: dict[str, Any], field: str) -> bytes:
    found = obj.get(field)
    return b"" if found is None else share(render(found))


def condition(obj: dict[str, Any]) -> PodCondition:
    """Return a condition of a pod's status."""
    return PodCondition(
        _intern(obj["type"]),
        _intern(obj["status"]),
        _intern(obj.get("reason", "")),
        obj.get("message", ""),
        _seconds(obj.get("lastTransitionTime") or ""),
        obj.get("observedGeneration", 0),
        _seconds(obj.get("lastProbeTime") or ""),
    )


def _container_status(obj: dict[str, Any]) -> ContainerStatus:
    last = obj.get("lastState", {}).get("terminated")
    mounts = obj.get("volumeMounts")
    return ContainerStatus(
        name=_intern(obj["name"]),
        state=container_state(obj.get("state", {})),
        last_state=terminated(last) if last else None,
        ready=obj.get("ready", False),
        started=obj.get("started", False),
        restart_count=obj.get("restartCount", 0),
        image=_intern(obj.get("image", "")),
        image_id=_intern(obj.get("imageID", "")),
        container_id=obj.get("containerID", ""),
        allocated_json=_rendered(obj, "allocatedResources"),
        resources_json=_rendered(obj, "resources"),
        volume_mounts_json=render(mounts) if mounts else b"",
        user_json=_rendered(obj, "user"),
        devices_json=_rendered(obj, "allocatedResourcesStatus"),
    )


def container_state(obj: dict[str, Any]) -> ContainerState:
    """Return the state of a container; one that says nothing waits."""
    for field, decode in _STATES.items():
        if field in obj:
            return decode(obj[field])
    return WaitingState("")


def _waiting(obj: dict[str, Any]) -> ContainerState:
    return WaitingState(_intern(obj.get("reason", "")), obj.get("message", ""))


def _running(obj: dict[str, Any]) -> ContainerState:
    return _running_since(_seconds(obj.get("startedAt") or ""))


@lru_cache(maxsize=4096)
def _running_since(started_s: int) -> RunningState:
    return RunningState(started_s)


def terminated(obj: dict[str, Any]) -> TerminatedState:
    """Return how a container ended."""
    return TerminatedState(
        obj.get("exitCode", 0),
        _intern(obj.get("reason", "")),
        obj.get("message", ""),
        _seconds(obj.get("startedAt") or ""),
        _seconds(obj.get("finishedAt") or ""),
        obj.get("containerID", ""),
    )


_STATES: dict[str, Callable[[dict[str, Any]], ContainerState]] = {
    "running": _running,
    "waiting": _waiting,
    "terminated": terminated,
}
