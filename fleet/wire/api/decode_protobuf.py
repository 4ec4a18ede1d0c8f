"""API objects from protobuf: the records that `decode_json.py` makes, and the events of a watch.

What comes often (pods, Nodes, versions) is read field by field. What repeats over a fleet (the spec
of a template, labels, conditions, containers but for their ids and times) is looked up by its
bytes; at its first sight it is turned into the form of JSON and read as that is, as all the rest.
Source: apimachinery/pkg/runtime/serializer/protobuf; apis/meta/v1/watch.go, WatchEvent.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from sys import intern
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from msgspec import convert, structs

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s import pods
from fleet.k8s.admission import NodeState, extended_resources
from fleet.k8s.effects import WatchKind
from fleet.k8s.objects import CSINodeView, Owner
from fleet.k8s.pod_template import decode_spec
from fleet.k8s.schema import Rendered, read_kind, render, share
from fleet.k8s.times import rfc3339_micro
from fleet.k8s.well_known import HOSTNAME_LABEL, OWN_PREFIX, TTL_ANNOTATION
from fleet.wire.api import decode_json
from fleet.wire.api import decode_pod as json_pods
from fleet.wire.api.encode_protobuf import LEASE
from fleet.wire.api.framing import MAGIC
from fleet.wire.api.operations import Operation, Reader
from fleet.wire.api.protobuf import (
    BYTES,
    Json,
    contents,
    enveloped,
    message_class,
    object_to_json,
    skip,
    to_json,
)
from fleet.wire.http2.messages import MALFORMED as MALFORMED_BYTES

CACHED_MAX = 2048  # parts of objects, and objects that come to every node, by their bytes
STATUS_BYTES_MAX = 2048  # longer statuses are not cached; a pod of one container has up to 750
ONE_BYTE_MAX = 127  # what a varint, and so the length of a field, says in one byte
NAME, STATE = 1 << 3 | BYTES, 2 << 3 | BYTES  # fields of a container's status, as their tags
NO_LAST_STATE = bytes((3 << 3 | BYTES, 0))
CONTAINER_ID = bytes((8 << 3 | BYTES, 77)) + b"containerd://"
_T = TypeVar("_T")
Pairs = tuple[tuple[str, str], ...]
_POD_VIEW = message_class("PodView")
_STATUS_VIEW = message_class("StatusView")
_CONTAINER_STATUS_VIEW = message_class("ContainerStatusView")
_POD_SPEC = message_class("PodSpec")
_PAIR = message_class("Pair")
_TIME = message_class("Time")
SHARED_NOTES_BYTES_MAX = 16 << 10
"""Longer annotations of a pod are not kept for the next one: there may be 256 KiB of them."""
_specs = json_pods.SpecTable()


def decode_pod(raw: bytes) -> pods.Pod:
    """Return the record of a Pod; `raw` is without its envelope."""
    message = _POD_VIEW.FromString(raw)
    meta, spec_view = message.metadata, message.spec
    node_name = intern(spec_view.nodeName)
    spec_view.ClearField("nodeName")
    spec_bytes, token = _without_token_name(spec_view.SerializeToString())
    status = message.status.replace(token, pods.TOKEN_VOLUME) if token else message.status
    spec = _spec_of(spec_bytes)
    keeps_all = json_pods.SHOWS_ANNOTATIONS in spec_bytes
    notes = tuple(meta.annotations[:])
    read = _notes if sum(map(len, notes)) <= SHARED_NOTES_BYTES_MAX else _read_notes
    labels, kept, digested = read(tuple(meta.labels[:]), notes, keeps_all)
    owners = [part(Owner, "OwnerReference", each) for each in meta.ownerReferences]
    if spec.admission.claims:
        claims = _STATUS_VIEW.FromString(status).resourceClaimStatuses
        spec = json_pods.with_claims(
            spec, {"resourceClaimStatuses": [to_json(each) for each in claims]}
        )
    return pods.Pod(
        intern(meta.namespace),
        meta.name,
        pods.PodUid(meta.uid),
        node_name,
        meta.resourceVersion,
        meta.generation,
        seconds(meta.creationTimestamp),
        seconds(meta.deletionTimestamp),
        meta.deletionGracePeriodSeconds if meta.HasField("deletionGracePeriodSeconds") else None,
        labels,
        kept,
        share(digested ^ spec.digest),
        token[len(pods.TOKEN_VOLUME_START) :].decode(),
        spec,
        _status(status),
        any(each.controller for each in owners),
        bool(meta.finalizers) or any(map(json_pods.waits_for_end, owners)),
    )


def decode_pod_view(raw: bytes) -> pods.PodView:
    """Return what the status manager reads of a Pod."""
    message = _POD_VIEW.FromString(raw)
    meta, status = message.metadata, message.status
    token = _without_token_name(message.spec.SerializeToString())[1]
    if token:
        status = status.replace(token, pods.TOKEN_VOLUME)
    return pods.PodView(
        meta.uid, meta.resourceVersion, bool(meta.deletionTimestamp), _status(status)
    )


def _without_token_name(spec: bytes) -> tuple[bytes, bytes]:
    """Give the token volume the same name in all pods; see `decode_pod.py`."""
    at = spec.find(pods.TOKEN_VOLUME_START)
    if at < 0 or spec[at - 1] != len(pods.TOKEN_VOLUME):
        return spec, b""
    name = spec[at : at + len(pods.TOKEN_VOLUME)]
    return spec.replace(name, pods.TOKEN_VOLUME), name


def _spec_of(raw: bytes) -> pods.PodSpec:
    """Return the spec, decoded once per template."""
    spec = _specs.get(raw)
    if spec is None:
        found = decode_spec(to_json(_POD_SPEC.FromString(raw)), json_pods.digest(raw))
        spec = _specs.keep(raw, found)
    return spec


@lru_cache(maxsize=CACHED_MAX)
def pairs(entries: tuple[bytes, ...]) -> Pairs:
    """Return labels or annotations; Go sorts them by key."""
    return share(tuple(map(_pair, entries)))


@lru_cache(maxsize=CACHED_MAX)
def _notes(
    labels: tuple[bytes, ...],
    notes: tuple[bytes, ...],
    keeps_all: bool,  # noqa: FBT001 - cached
) -> tuple[Pairs, Pairs, int]:
    """Return labels, the annotations that a record keeps, and a digest."""
    labels_read, kept, digested = _read_notes(labels, notes, keeps_all)
    return labels_read, share(kept), digested


def _read_notes(
    labels: tuple[bytes, ...],
    notes: tuple[bytes, ...],
    keeps_all: bool,  # noqa: FBT001 - as `_notes`
) -> tuple[Pairs, Pairs, int]:
    is_long = sum(map(len, notes)) > SHARED_NOTES_BYTES_MAX
    found = tuple(map(_read_pair if is_long else _pair, notes))
    kept = found if keeps_all else json_pods.kept_annotations(found)
    return pairs(labels), kept, json_pods.digest(b"".join((*labels, b"|", *notes)))


def _read_pair(entry: bytes) -> tuple[str, str]:
    message = _PAIR.FromString(entry)
    return intern(message.key), intern(message.value)


_pair = lru_cache(CACHED_MAX)(_read_pair)


@lru_cache(maxsize=CACHED_MAX)
def seconds(raw: bytes) -> int:
    """Return an API time; 0 for an absent one."""
    return int(_TIME.FromString(raw).seconds)


@lru_cache(maxsize=CACHED_MAX)
def part(kind: type[_T], message: str, raw: bytes) -> _T:
    """Return a part of an object as its record, or as a kind of fleet.k8s.schema has it."""
    return convert(to_json(message_class(message).FromString(raw)), kind, dec_hook=read_kind)


def _status(raw: bytes) -> pods.PodStatus:
    """Return a status. Each comes by the watch, and by the GET before the next PATCH."""
    return _kept_status(raw) if len(raw) < STATUS_BYTES_MAX else _read_status(raw)


def _read_status(raw: bytes) -> pods.PodStatus:
    message = _STATUS_VIEW.FromString(raw)
    if not message.phase and not message.ListFields():
        return json_pods.EMPTY_STATUS
    inits, ephemeral = message.initContainerStatuses, message.ephemeralContainerStatuses
    allocated = tuple(message.allocatedResources)
    return pods.PodStatus(
        intern(message.phase or json_pods.EMPTY_STATUS.phase),
        intern(message.reason),
        message.message,
        share(tuple(part(pods.PodCondition, "PodCondition", each) for each in message.conditions)),
        _ips(message.hostIPs),
        _ips(message.podIPs),
        seconds(message.startTime),
        intern(message.qosClass),
        message.observedGeneration,
        tuple(map(_container_status, inits)) if inits else (),
        tuple(map(_container_status, message.containerStatuses[:])),
        tuple(map(_container_status, ephemeral)) if ephemeral else (),
        _rendered_amounts(allocated) if allocated else b"",
        _resources(message),
    )


_kept_status = lru_cache(CACHED_MAX)(_read_status)


def _resources(message: Any) -> bytes:
    if not message.HasField("resources"):
        return b""
    found: bytes = part(Rendered, "ResourceRequirements", message.resources)
    return found


def _ips(listed: Iterable[Any]) -> str:
    return intern(",".join([each.ip for each in listed]))


def _container_status(raw: bytes) -> pods.ContainerStatus:
    """Return the status of a container, looked up without its state and id if it runs so far well.

    Go writes name, state, lastState, ..., containerID, ...; what does not look so is read whole.
    """
    at = raw.find(CONTAINER_ID)
    begin = 2 + raw[1] if at > 0 else 0
    if begin + 1 >= at or raw[begin] != STATE or raw[begin + 1] > ONE_BYTE_MAX:
        return _read_container_status(raw)
    end = begin + 2 + raw[begin + 1]
    if end > at or not raw.startswith(NO_LAST_STATE, end):
        return _read_container_status(raw)
    id_end = at + 2 + raw[at + 1]
    alike = _alike(raw[:begin], raw[end:at], raw[id_end:])
    if alike is None:
        return _read_container_status(raw)
    state = part(pods.State, "ContainerState", raw[begin + 2 : end])
    container_id = raw[at + 2 : id_end].decode()
    return structs.replace(alike, state=state, container_id=container_id)


@lru_cache(maxsize=CACHED_MAX)
def _alike(head: bytes, middle: bytes, tail: bytes) -> pods.ContainerStatus | None:
    """Return a status but for state and id, which were cut out; None if the cuts are not seams."""
    if head[0] != NAME or _end_of(head) != len(head) or _end_of(middle) != len(middle):
        return None
    return _read_container_status(head + middle + tail)


def _end_of(fields: bytes) -> int:
    at = 0
    while at < len(fields):
        at = skip(fields, at)
    return at


def _read_container_status(raw: bytes) -> pods.ContainerStatus:
    message = _CONTAINER_STATUS_VIEW.FromString(raw)
    last = message.lastState
    allocated, mounts = tuple(message.allocatedResources), tuple(message.volumeMounts)
    devices = tuple(message.allocatedResourcesStatus)
    return pods.ContainerStatus(
        intern(message.name),
        part(pods.State, "ContainerState", message.state),
        part(pods.LastState, "ContainerState", last) if last else None,
        message.ready,
        message.started,
        message.restartCount,
        intern(message.image),
        intern(message.imageID),
        message.containerID,
        _rendered_amounts(allocated) if allocated else b"",
        _resources(message),
        _listed("VolumeMountStatus", mounts) if mounts else b"",
        part(Rendered, "ContainerUser", message.user) if message.HasField("user") else b"",
        _listed("ResourceStatus", devices) if devices else b"",
    )


@lru_cache(maxsize=CACHED_MAX)
def _rendered_amounts(entries: tuple[bytes, ...]) -> bytes:
    return share(render(_amounts(entries)))


@lru_cache(maxsize=CACHED_MAX)
def _listed(kind: str, entries: tuple[bytes, ...]) -> bytes:
    found = message_class(kind)
    return share(render([to_json(found.FromString(each)) for each in entries]))


MALFORMED: tuple[type[Exception], ...] = (*MALFORMED_BYTES, DecodeError)
INITIAL_EVENTS_END = b"k8s.io/initial-events-end"
_TYPES = {
    "ADDED": pods.EventType.ADDED,
    "MODIFIED": pods.EventType.MODIFIED,
    "DELETED": pods.EventType.DELETED,
    "BOOKMARK": pods.EventType.BOOKMARK,
    "ERROR": pods.EventType.ERROR,
}
_EVENT = message_class("WatchEvent")
_LIST = message_class("List")
_ANY = message_class("ObjectView")
_NODE = message_class("NodeView")
_STATUS = message_class("Status")


def decode_watch_event(frame: bytes, kind: WatchKind | None) -> tuple[pods.EventType, str, object]:
    """Return type, version and record of one event of a watch; see `decode_json.py`.

    Raises RemoteProtocolError for what is no event.
    """
    try:
        return _decode_watch_event(frame, kind)
    except MALFORMED as error:
        raise RemoteProtocolError(decode_json.UNREADABLE_EVENT) from error


def _decode_watch_event(frame: bytes, kind: WatchKind | None) -> tuple[pods.EventType, str, object]:
    message = _EVENT.FromString(frame)
    event = _TYPES[message.type]
    raw = contents(message.object.raw)
    if event is pods.EventType.BOOKMARK:
        if INITIAL_EVENTS_END in raw:
            event = pods.EventType.SYNCED
        return event, _version(raw), None
    if event is pods.EventType.ERROR:
        return event, "", _STATUS.FromString(raw).code
    if kind is None:
        return event, _version(raw), None
    record = _RECORDS[kind](raw)
    return event, record.resource_version, record


def decode_list(body: bytes, kind: WatchKind | None) -> tuple[str, str, list[object]]:
    """Return version, continue token and records of one page of a LIST.

    Raises RemoteProtocolError for what is no LIST.
    """
    try:
        message = _LIST.FromString(contents(body))
        records: list[object] = []
        if kind is not None:
            records = list(map(_RECORDS[kind], message.items))
        return message.metadata.resourceVersion, getattr(message.metadata, "continue"), records
    except MALFORMED as error:
        raise RemoteProtocolError(decode_json.UNREADABLE_LIST) from error


def decode_status(body: bytes) -> tuple[str, str]:
    """Return reason and message of a refusal; what is no protobuf is JSON or plain text."""
    if not body.startswith(MAGIC):
        return decode_json.decode_status(body)
    message = _STATUS.FromString(contents(body))
    return message.reason, message.message


def version_in(body: bytes) -> str:
    """Return the resourceVersion of an object in its envelope."""
    return _version(contents(body))


def _version(raw: bytes) -> str:
    version: str = _ANY.FromString(raw).metadata.resourceVersion
    return version


def decode_node(raw: bytes) -> pods.NodeView:
    """Return what is read of a Node; `raw` is without its envelope."""
    message = _NODE.FromString(raw)
    meta, spec, status = message.metadata, message.spec, message.status
    labels = pairs_of(meta.labels)
    cidrs = tuple(spec.podCIDRs) or ((spec.podCIDR,) if spec.podCIDR else ())
    taints = tuple(map(_taint, spec.taints))
    capacity, allocatable = tuple(status.capacity), tuple(status.allocatable)
    return pods.NodeView(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resourceVersion,
        deleting=bool(meta.deletionTimestamp),
        pod_cidrs=cidrs,
        labels=dict(labels),
        taints=taints,
        conditions=tuple(map(_node_condition, status.conditions)),
        volumes_attached=tuple(each.name for each in status.volumesAttached),
        volumes_in_use=tuple(status.volumesInUse),
        state=share(
            NodeState(
                unschedulable=spec.unschedulable,
                labels=tuple(
                    each for each in labels if each[0] != HOSTNAME_LABEL or each[1] != meta.name
                ),
                taints=tuple(each for each in taints if each[2] == "NoExecute"),
                extended=_extended(capacity, allocatable),
                annotations=tuple(
                    each
                    for each in pairs_of(meta.annotations)
                    if each[0] == TTL_ANNOTATION or each[0].startswith(OWN_PREFIX)
                ),
                lacks_hostname=all(key != HOSTNAME_LABEL for key, _ in labels),
            )
        ),
        report=pods.NodeReport(
            (
                capacity,
                allocatable,
                tuple(status.addresses),
                status.daemonEndpoints,
                status.nodeInfo,
                tuple(status.runtimeHandlers),
                status.features,
                tuple(status.declaredFeatures),
            ),
            _reported,
        ),
    )


def _reported(raw: Any) -> dict[str, object]:
    """Return what a Node reports, as members of its status; those that are empty are left out."""
    capacity, allocatable, addresses, endpoints, info, handlers, features, declared = raw
    found = {
        "capacity": _amounts(capacity),
        "allocatable": _amounts(allocatable),
        "addresses": [_shown("NodeAddress", each) for each in addresses],
        "daemonEndpoints": _shown("NodeDaemonEndpoints", endpoints),
        "nodeInfo": _shown("NodeSystemInfo", info),
        "runtimeHandlers": [_shown("NodeRuntimeHandler", each) for each in handlers],
        "features": _shown("NodeFeatures", features),
        "declaredFeatures": list(declared),
    }
    return {member: value for member, value in found.items() if value}


def _shown(name: str, raw: bytes) -> Json:
    """Read a part of a Node's status late; one that cannot be read is as if it were not there."""
    try:
        message = message_class(name).FromString(raw)
    except DecodeError:
        return {}
    shown: Json = to_json(message)
    return shown


def pairs_of(entries: Any) -> tuple[tuple[str, str], ...]:
    """Return labels or annotations of a message."""
    found = tuple(entries)
    return pairs(found) if found else ()


@lru_cache(maxsize=CACHED_MAX)
def _taint(raw: bytes) -> tuple[str, str, str]:
    message = message_class("Taint").FromString(raw)
    return intern(message.key), intern(message.value), intern(message.effect)


@lru_cache(maxsize=CACHED_MAX)
def _node_condition(raw: bytes) -> pods.NodeCondition:
    message = message_class("NodeCondition").FromString(raw)
    return pods.NodeCondition(
        intern(message.type),
        intern(message.status),
        message.lastHeartbeatTime.seconds,
        message.lastTransitionTime.seconds,
        intern(message.reason),
        intern(message.message),
    )


@lru_cache(maxsize=CACHED_MAX)
def _extended(
    capacity: tuple[bytes, ...], allocatable: tuple[bytes, ...]
) -> tuple[tuple[str, int, int], ...]:
    """Return the extended resources of a Node; most nodes of a profile have the same."""
    return extended_resources(_amounts(capacity), _amounts(allocatable))


def _amounts(entries: tuple[bytes, ...]) -> dict[str, str]:
    found = (message_class("Amount").FromString(each) for each in entries)
    return {each.key: each.value.string for each in found}


def _kept(message: str, read: Callable[[Json], Any]) -> Callable[[bytes], Any]:
    """Return what reads objects that come to every node, each for the first one."""

    @lru_cache(maxsize=CACHED_MAX)
    def of_bytes(raw: bytes) -> Any:
        return read(to_json(message_class(message).FromString(raw)))

    return of_bytes


def _decode_csinode(body: bytes) -> CSINodeView:
    return decode_json.csinode_view(object_to_json(body), body)


_RECORDS: dict[WatchKind, Callable[[bytes], Any]] = {
    WatchKind.NODE: decode_node,
    WatchKind.PODS: decode_pod,
    **{
        kind: _kept(message, decode_json.RECORDS[kind])
        for kind, message in (
            (WatchKind.CSI_DRIVERS, "CSIDriver"),
            (WatchKind.SERVICES, "Service"),
            (WatchKind.RUNTIME_CLASSES, "RuntimeClass"),
            (WatchKind.RESOURCE_SLICES, "ResourceSlice"),
            (WatchKind.CONFIG_MAP, "ConfigMap"),
            (WatchKind.SECRET, "Secret"),
        )
    },
}


def _reply_node(body: bytes) -> pods.NodeView:
    return decode_node(contents(body))


def _reply_pod(body: bytes) -> pods.PodView:
    return decode_pod_view(contents(body))


def forget_managers(body: bytes) -> bytes:
    """Return a Lease whose next PUT clears its managedFields, if it has any."""
    lease = message_class("Lease").FromString(contents(body))
    if not lease.metadata.managedFields:
        return body
    del lease.metadata.managedFields[:]
    lease.metadata.managedFields.add()
    return enveloped(LEASE, lease.SerializeToString())


def _found_lease(body: bytes) -> pods.LeaseView:
    renewed = message_class("Lease").FromString(contents(body)).spec.renewTime
    return pods.LeaseView(body, rfc3339_micro(renewed.seconds * NS_PER_S + renewed.nanos))


_READERS: dict[Reader, Reader] = {
    decode_json.decode_node: _reply_node,
    decode_json.decode_csinode: _decode_csinode,
    decode_json.decode_lease: pods.LeaseView,
    decode_json.decode_found_lease: _found_lease,
    json_pods.decode_pod_view: _reply_pod,
}
"""By what reads the same in JSON: those that come often, or want the bytes."""


def reader_of(row: Operation) -> Reader | None:
    """Return what reads the answer to a call; what comes seldom is read as JSON is."""
    read = row.read
    if read is None:
        return None
    return _READERS.get(read) or (lambda body: read(object_to_json(body)))
