"""API objects from protobuf: the records that `decode_json.py` makes, and the events of a watch.

What comes often (pods, Nodes, versions) is read field by field; the rest is turned into JSON's form
and decoded as that is, so that each object has one reader.
Source: apimachinery/pkg/runtime/serializer/protobuf; apis/meta/v1/watch.go, WatchEvent.
"""

from collections.abc import Callable
from functools import lru_cache
from sys import intern
from typing import Any

from google.protobuf.message import DecodeError

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s.admission import NodeState, extended_resources
from fleet.k8s.effects import WatchKind
from fleet.k8s.objects import CSINodeView
from fleet.k8s.pods import EventType, LeaseView, NodeCondition, NodeReport, NodeView, PodView
from fleet.k8s.schema import share
from fleet.k8s.times import rfc3339_micro
from fleet.k8s.well_known import HOSTNAME_LABEL, OWN_PREFIX, TTL_ANNOTATION
from fleet.wire.api import decode_json
from fleet.wire.api.decode_protobuf_pod import decode_pod, decode_pod_view, pairs
from fleet.wire.api.encode_protobuf import LEASE
from fleet.wire.api.kubernetes_messages import Json, message_class, object_to_json, to_json
from fleet.wire.api.operations import Operation, Reader
from fleet.wire.api.protobuf import MAGIC, contents, enveloped
from fleet.wire.http2.messages import MALFORMED as MALFORMED_BYTES

MALFORMED: tuple[type[Exception], ...] = (*MALFORMED_BYTES, DecodeError)
CACHED_MAX = 2048  # objects that come to every node as the same bytes
INITIAL_EVENTS_END = b"k8s.io/initial-events-end"
_TYPES = {
    "ADDED": EventType.ADDED,
    "MODIFIED": EventType.MODIFIED,
    "DELETED": EventType.DELETED,
    "BOOKMARK": EventType.BOOKMARK,
    "ERROR": EventType.ERROR,
}
_EVENT = message_class("WatchEvent")
_LIST = message_class("List")
_ANY = message_class("ObjectView")
_NODE = message_class("NodeView")
_STATUS = message_class("Status")


def decode_watch_event(frame: bytes, kind: WatchKind | None) -> tuple[EventType, str, object]:
    """Return type, version and record of one event of a watch; see `decode_json.py`.

    Raises RemoteProtocolError for what is no event.
    """
    try:
        return _decode_watch_event(frame, kind)
    except MALFORMED as error:
        raise RemoteProtocolError(decode_json.UNREADABLE_EVENT) from error


def _decode_watch_event(frame: bytes, kind: WatchKind | None) -> tuple[EventType, str, object]:
    message = _EVENT.FromString(frame)
    event = _TYPES[message.type]
    raw = contents(message.object.raw)
    if event is EventType.BOOKMARK:
        if INITIAL_EVENTS_END in raw:
            event = EventType.SYNCED
        return event, _version(raw), None
    if event is EventType.ERROR:
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
        return _decode_list(body, kind)
    except MALFORMED as error:
        raise RemoteProtocolError(decode_json.UNREADABLE_LIST) from error


def _decode_list(body: bytes, kind: WatchKind | None) -> tuple[str, str, list[object]]:
    message = _LIST.FromString(contents(body))
    records: list[object] = []
    if kind is not None:
        records = list(map(_RECORDS[kind], message.items))
    return message.metadata.resourceVersion, getattr(message.metadata, "continue"), records


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


def decode_node(raw: bytes) -> NodeView:
    """Return what is read of a Node; `raw` is without its envelope."""
    message = _NODE.FromString(raw)
    meta, spec, status = message.metadata, message.spec, message.status
    labels = pairs_of(meta.labels)
    cidrs = tuple(spec.podCIDRs) or ((spec.podCIDR,) if spec.podCIDR else ())
    taints = tuple(map(_taint, spec.taints))
    capacity, allocatable = tuple(status.capacity), tuple(status.allocatable)
    return NodeView(
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
        report=NodeReport(
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
    shown: Json = to_json(message_class(name).FromString(raw))
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
def _node_condition(raw: bytes) -> NodeCondition:
    message = message_class("NodeCondition").FromString(raw)
    return NodeCondition(
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


def _reply_node(body: bytes) -> NodeView:
    return decode_node(contents(body))


def _reply_pod(body: bytes) -> PodView:
    return decode_pod_view(contents(body))


def forget_managers(body: bytes) -> bytes:
    """Return a Lease whose next PUT clears its managedFields, if it has any."""
    lease = message_class("Lease").FromString(contents(body))
    if not lease.metadata.managedFields:
        return body
    del lease.metadata.managedFields[:]
    lease.metadata.managedFields.add()
    return enveloped(LEASE, lease.SerializeToString())


def _found_lease(body: bytes) -> LeaseView:
    renewed = message_class("Lease").FromString(contents(body)).spec.renewTime
    return LeaseView(body, rfc3339_micro(renewed.seconds * NS_PER_S + renewed.nanos))


_READERS: dict[Reader, Reader] = {
    decode_json.decode_node: _reply_node,
    decode_json.decode_csinode: _decode_csinode,
    decode_json.decode_lease: LeaseView,
    decode_json.decode_found_lease: _found_lease,
    decode_json.decode_pod_view: _reply_pod,
}
"""By what reads the same in JSON: those that come often, or want the bytes."""


def reader_of(row: Operation) -> Reader | None:
    """Return what reads the answer to a call; what comes seldom is read as JSON is."""
    read = row.read
    if read is None:
        return None
    return _READERS.get(read) or (lambda body: read(object_to_json(body)))
