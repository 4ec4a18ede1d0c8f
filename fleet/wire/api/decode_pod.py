"""Pods from JSON: slotted records with interned strings, never a dict.

Pods of one template share all that their specs say, and it is parsed once: the names of the node
and of the token volume, in which alone they differ, are cut out first. Rendered parts of a status
(`*_json`) have sorted keys, so that equal values are equal bytes wherever they come from.
"""

import sys
import zlib
from typing import Any

import msgspec
import orjson
from msgspec import convert, structs

from fleet.k8s.objects import Owner
from fleet.k8s.pods import (
    TOKEN_VOLUME,
    TOKEN_VOLUME_START,
    ContainerSpec,
    EnvSource,
    Pod,
    PodSpec,
    PodStatus,
    PodUid,
    PodView,
    PortSpec,
)
from fleet.k8s.schema import Record, Seconds, Text, decoder, member, read_kind, render, share
from fleet.k8s.selectors import Toleration
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
SPECS_MAX = 512
"""Whole specs that are kept once: pods of a template have the same one. A full table starts again,
which costs a parse of each."""
SPECS_BYTES_MAX = 32 << 20
"""How long the keys of that table may be together: a hostile pod's spec has up to 1.5 MB."""
MANAGED_FIELDS, SPEC = b',"managedFields":[', b'},"spec":{'
NODE_NAME = b'"nodeName":"'
EMPTY_STATUS, EMPTY_SPEC = PodStatus(), msgspec.Raw(b"{}")
PATIENT_OWNERS = frozenset(
    (
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("v1", "ReplicationController"),
    )
)
"""Controllers that wait until a pod is gone, whatever its last status says. A Job does not."""

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


class PodMeta(Record, frozen=True):
    """What is read of a Pod's metadata."""

    name: str
    uid: str
    namespace: Text = ""
    resource_version: str = ""
    generation: int = 0
    created_s: Seconds = member("creationTimestamp", 0)
    deletion_s: Seconds = member("deletionTimestamp", 0)
    deletion_grace_s: int | None = member("deletionGracePeriodSeconds", None)
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] = ()
    finalizers: tuple[str, ...] = ()


class PodObject(Record, frozen=True):
    """A Pod as it comes: its spec is read once per template, managed fields never."""

    metadata: PodMeta
    spec: msgspec.Raw = EMPTY_SPEC
    status: PodStatus = EMPTY_STATUS


_read_pod = decoder(PodObject)


def decode_pod(body: bytes | dict[str, Any]) -> Pod:
    """Return the record of a Pod."""
    if not isinstance(body, bytes):
        body = orjson.dumps(body)
    body, suffix = _without_token_name(without_managers(body))
    found = _read_pod(body)
    meta, spec_json = found.metadata, bytes(found.spec)
    spec, node_name = _spec_of(spec_json)
    labels, notes = share(pairs(meta.labels)), pairs(meta.annotations)
    if spec.admission.claims:
        spec = with_claims(spec, orjson.loads(body).get("status") or {})
    # By position: by name this call alone costs a microsecond more.
    return Pod(
        meta.namespace,
        meta.name,
        PodUid(meta.uid),
        node_name,
        meta.resource_version,
        meta.generation,
        meta.created_s,
        meta.deletion_s,
        meta.deletion_grace_s,
        labels,
        share(notes if SHOWS_ANNOTATIONS in spec_json else kept_annotations(notes)),
        share(digest(orjson.dumps((spec.digest, labels, notes)))),
        suffix,
        spec,
        _with_shared_parts(found.status),
        any(each.controller for each in meta.owner_references),
        bool(meta.finalizers) or any(map(waits_for_end, meta.owner_references)),
    )


def with_claims(spec: PodSpec, status: dict[str, Any]) -> PodSpec:
    """Return the spec of a pod whose status names the claims that were made for it."""
    return spec._replace(admission=with_claim_names(spec.admission, status))


def waits_for_end(owner: Owner) -> bool:
    """Return whether the owner waits for the last status of the pod."""
    return (owner.api_version, owner.kind) not in PATIENT_OWNERS


def kept_annotations(notes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the annotations that somebody may ask for, if the pod does not show them itself."""
    return tuple(each for each in notes if each[0].startswith(KEPT_ANNOTATIONS))


def decode_pod_view(body: bytes) -> PodView:
    """Return what the status manager reads of a Pod."""
    found = _read_pod(_without_token_name(without_managers(body))[0])
    meta = found.metadata
    return PodView(
        meta.uid, meta.resource_version, meta.deletion_s != 0, _with_shared_parts(found.status)
    )


def _with_shared_parts(status: PodStatus) -> PodStatus:
    """Keep one of each list of conditions: pods that start in one second have the same ones."""
    structs.force_setattr(status, "conditions", share(status.conditions))
    return status


def without_managers(body: bytes, instead: bytes = b"") -> bytes:
    """Return an object's JSON without its managed fields, the larger half of it.

    Go writes them last in the metadata, and the spec next. A quote within a string is escaped, so
    these seams cannot be inside one. What does not look so is left as it is.
    """
    at = body.find(MANAGED_FIELDS)
    end = body.find(SPEC, at)
    return body[:at] + instead + body[end:] if 0 < at < end else body


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
        tolerations=share(
            convert(spec.get("tolerations") or (), tuple[Toleration, ...], dec_hook=read_kind)
        ),
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


def _pull_secrets(spec: dict[str, Any]) -> tuple[str, ...]:
    """Return the pull secrets of a pod; the API takes some without a name, which kubelets skip.

    Source: kubelet_pods.go, getPullSecretsForPod (issue 99454).
    """
    names = (each.get("name") for each in spec.get("imagePullSecrets", ()))
    return tuple(name for name in names if name)


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
