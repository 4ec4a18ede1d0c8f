"""Pods from protobuf: the records that `decode_pod.py` makes of JSON.

What repeats over a fleet (the spec of a template, labels, conditions, states of containers) is not
parsed but looked up by its bytes; at its first sight it is turned into JSON's form and decoded as
that is. So both encodings share one decoder of each part, and a pod of a known template costs two
system-independent things: one parse of the few fields that differ, and the record.
"""

from functools import lru_cache
from sys import intern
from typing import Any

from fleet.objects import (
    TOKEN_VOLUME,
    TOKEN_VOLUME_START,
    ContainerState,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    PodView,
    TerminatedState,
)
from fleet.wire.decode_admission import with_claim_names
from fleet.wire.decode_pod import (
    EMPTY_STATUS,
    KEPT_ANNOTATIONS,
    MIRROR_ANNOTATION,
    SPECS_MAX,
    PodSpec,
    condition,
    container_state,
    decode_spec,
    digest,
    make_pod,
    render,
    share,
    terminated,
)
from fleet.wire.kubernetes_messages import message_class, to_json

CACHED_MAX = 2048
Pairs = tuple[tuple[str, str], ...]
_POD_VIEW = message_class("PodView")
_POD_SPEC = message_class("PodSpec")
_PAIR = message_class("Pair")
_TIME = message_class("Time")
_specs: dict[bytes, PodSpec] = {}


def decode_pod(raw: bytes) -> Pod:
    """Return the record of a Pod; `raw` is without its envelope."""
    raw, suffix = _without_token_name(raw)
    message = _POD_VIEW.FromString(raw)
    meta, spec_view, status = message.metadata, message.spec, message.status
    node_name = intern(spec_view.nodeName)
    spec_view.ClearField("nodeName")
    spec = _spec_of(spec_view.SerializeToString())
    labels = tuple(meta.labels)
    notes = tuple(meta.annotations)
    kept, is_mirror = _kept(notes) if notes else ((), False)
    admission = spec.admission
    if admission.claims:
        names = [to_json(each) for each in status.resourceClaimStatuses]
        admission = with_claim_names(admission, {"resourceClaimStatuses": names})
    return make_pod(
        spec,
        intern(meta.namespace),
        meta.name,
        meta.uid,
        node_name,
        meta.resourceVersion,
        meta.generation,
        seconds(meta.creationTimestamp),
        seconds(meta.deletionTimestamp),
        meta.deletionGracePeriodSeconds if meta.HasField("deletionGracePeriodSeconds") else None,
        pairs(labels),
        kept,
        _digest(labels, notes) ^ spec.digest,
        is_mirror,
        suffix,
        admission,
        _status(status),
    )


def decode_pod_view(raw: bytes) -> PodView:
    """Return what the status manager reads of a Pod."""
    message = _POD_VIEW.FromString(_without_token_name(raw)[0])
    meta = message.metadata
    deleting = bool(meta.deletionTimestamp)
    return PodView(meta.uid, meta.resourceVersion, deleting, _status(message.status))


def _without_token_name(raw: bytes) -> tuple[bytes, str]:
    """Give the token volume the same name in all pods; see `decode_pod.py`."""
    at = raw.find(TOKEN_VOLUME_START)
    if at < 0 or raw[at - 1] != len(TOKEN_VOLUME):
        return raw, ""
    name = raw[at : at + len(TOKEN_VOLUME)]
    return raw.replace(name, TOKEN_VOLUME), name[len(TOKEN_VOLUME_START) :].decode()


def _spec_of(raw: bytes) -> PodSpec:
    """Return the spec, decoded once per template."""
    spec = _specs.get(raw)
    if spec is None:
        if len(_specs) >= SPECS_MAX:
            _specs.clear()
        spec = _specs[raw] = decode_spec(to_json(_POD_SPEC.FromString(raw)), digest(raw))
    return spec


@lru_cache(maxsize=CACHED_MAX)
def pairs(entries: tuple[bytes, ...]) -> Pairs:
    """Return labels or annotations; Go sorts them by key."""
    return share(tuple(map(_pair, entries)))


@lru_cache(maxsize=CACHED_MAX)
def _digest(labels: tuple[bytes, ...], notes: tuple[bytes, ...]) -> int:
    return digest(b"".join((*labels, b"|", *notes)))


@lru_cache(maxsize=CACHED_MAX)
def _pair(entry: bytes) -> tuple[str, str]:
    message = _PAIR.FromString(entry)
    return intern(message.key), intern(message.value)


@lru_cache(maxsize=CACHED_MAX)
def _kept(entries: tuple[bytes, ...]) -> tuple[Pairs, bool]:
    """Return the annotations that a record keeps, and whether the pod is a mirror."""
    found = tuple(map(_pair, entries))
    kept = share(tuple(each for each in found if each[0].startswith(KEPT_ANNOTATIONS)))
    return kept, any(key == MIRROR_ANNOTATION for key, _ in found)


@lru_cache(maxsize=CACHED_MAX)
def seconds(raw: bytes) -> int:
    """Return an API time; 0 for an absent one."""
    return int(_TIME.FromString(raw).seconds)


def _status(message: Any) -> PodStatus:
    phase = message.phase
    if not phase and not message.ListFields():
        return EMPTY_STATUS
    conditions = tuple(message.conditions)
    inits, ephemeral = message.initContainerStatuses, message.ephemeralContainerStatuses
    allocated = tuple(message.allocatedResources)
    return PodStatus(
        intern(phase),
        intern(message.reason),
        message.message,
        _conditions(conditions) if conditions else (),
        intern(message.hostIP),
        message.podIP,
        seconds(message.startTime),
        intern(message.qosClass),
        message.observedGeneration,
        tuple(map(_container_status, inits)) if inits else (),
        tuple(map(_container_status, message.containerStatuses)),
        tuple(map(_container_status, ephemeral)) if ephemeral else (),
        _amounts(allocated) if allocated else b"",
        _shown("ResourceRequirements", message.resources) if message.HasField("resources") else b"",
    )


@lru_cache(maxsize=CACHED_MAX)
def _conditions(entries: tuple[bytes, ...]) -> tuple[PodCondition, ...]:
    return share(tuple(map(_condition, entries)))


@lru_cache(maxsize=CACHED_MAX)
def _condition(raw: bytes) -> PodCondition:
    return condition(to_json(message_class("PodCondition").FromString(raw)))


def _container_status(message: Any) -> ContainerStatus:
    last = message.lastState
    allocated, mounts = tuple(message.allocatedResources), tuple(message.volumeMounts)
    devices = tuple(message.allocatedResourcesStatus)
    return ContainerStatus(
        intern(message.name),
        _state(message.state),
        _last_state(last) if last else None,
        message.ready,
        message.started,
        message.restartCount,
        intern(message.image),
        intern(message.imageID),
        message.containerID,
        _amounts(allocated) if allocated else b"",
        _shown("ResourceRequirements", message.resources) if message.HasField("resources") else b"",
        _listed("VolumeMountStatus", mounts) if mounts else b"",
        _shown("ContainerUser", message.user) if message.HasField("user") else b"",
        _listed("ResourceStatus", devices) if devices else b"",
    )


@lru_cache(maxsize=CACHED_MAX)
def _state(raw: bytes) -> ContainerState:
    return container_state(to_json(message_class("ContainerState").FromString(raw)))


@lru_cache(maxsize=CACHED_MAX)
def _last_state(raw: bytes) -> TerminatedState | None:
    found = to_json(message_class("ContainerState").FromString(raw)).get("terminated")
    return terminated(found) if found else None


@lru_cache(maxsize=CACHED_MAX)
def _amounts(entries: tuple[bytes, ...]) -> bytes:
    found = (message_class("Amount").FromString(each) for each in entries)
    return share(render({each.key: each.value.string for each in found}))


@lru_cache(maxsize=CACHED_MAX)
def _shown(kind: str, raw: bytes) -> bytes:
    return share(render(to_json(message_class(kind).FromString(raw))))


@lru_cache(maxsize=CACHED_MAX)
def _listed(kind: str, entries: tuple[bytes, ...]) -> bytes:
    found = message_class(kind)
    return share(render([to_json(found.FromString(each)) for each in entries]))
