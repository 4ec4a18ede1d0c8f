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
from msgspec import structs

from fleet.k8s import pods
from fleet.k8s.admission import with_claim_names
from fleet.k8s.objects import Owner
from fleet.k8s.pod_template import decode_spec
from fleet.k8s.schema import Record, Seconds, Text, decoder, member, share
from fleet.k8s.well_known import MIRROR_ANNOTATION, OWN_PREFIX

KEPT_ANNOTATIONS = (OWN_PREFIX, MIRROR_ANNOTATION)
SHOWS_ANNOTATIONS = b"metadata.annotations"  # the field path by which a pod does
SPECS_MAX = 512
"""Whole specs that are kept once: pods of a template have the same one. A full table starts again,
which costs a parse of each."""
SPECS_BYTES_MAX = 32 << 20
"""How long the keys of that table may be together: a hostile pod's spec has up to 1.5 MB."""
MANAGED_FIELDS, SPEC = b',"managedFields":[', b'},"spec":{'
NODE_NAME = b'"nodeName":"'
EMPTY_STATUS, EMPTY_SPEC = pods.PodStatus(), msgspec.Raw(b"{}")
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

    def __init__(self) -> None:
        self._specs: dict[bytes, pods.PodSpec] = {}
        self._size = 0

    def get(self, raw: bytes) -> pods.PodSpec | None:
        """Return the spec of these bytes, None if it is not kept."""
        return self._specs.get(raw)

    def keep(self, raw: bytes, spec: pods.PodSpec) -> pods.PodSpec:
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
    status: pods.PodStatus = EMPTY_STATUS


_read_pod = decoder(PodObject)


def decode_pod(body: bytes | dict[str, Any]) -> pods.Pod:
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
    return pods.Pod(
        meta.namespace,
        meta.name,
        pods.PodUid(meta.uid),
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


def with_claims(spec: pods.PodSpec, status: dict[str, Any]) -> pods.PodSpec:
    """Return the spec of a pod whose status names the claims that were made for it."""
    return spec._replace(admission=with_claim_names(spec.admission, status))


def waits_for_end(owner: Owner) -> bool:
    """Return whether the owner waits for the last status of the pod."""
    return (owner.api_version, owner.kind) not in PATIENT_OWNERS


def kept_annotations(notes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the annotations that somebody may ask for, if the pod does not show them itself."""
    return tuple(each for each in notes if each[0].startswith(KEPT_ANNOTATIONS))


def decode_pod_view(body: bytes) -> pods.PodView:
    """Return what the status manager reads of a Pod."""
    found = _read_pod(_without_token_name(without_managers(body))[0])
    meta = found.metadata
    return pods.PodView(
        meta.uid, meta.resource_version, meta.deletion_s != 0, _with_shared_parts(found.status)
    )


def _with_shared_parts(status: pods.PodStatus) -> pods.PodStatus:
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
    at = body.find(pods.TOKEN_VOLUME_START)
    end = at + len(pods.TOKEN_VOLUME)
    if at < 0 or body[end : end + 1] != b'"':
        return body, ""
    name = body[at:end]
    return body.replace(name, pods.TOKEN_VOLUME), name[len(pods.TOKEN_VOLUME_START) :].decode()


def _spec_of(json: bytes) -> tuple[pods.PodSpec, str]:
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


def pairs(obj: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return labels or annotations, interned."""
    if not obj:
        return ()
    return tuple((_intern(key), _intern(value)) for key, value in obj.items())


def digest(data: bytes) -> int:
    """Return a stable 64-bit digest."""
    return zlib.crc32(data) << 32 | zlib.adler32(data)
