"""API objects from JSON: the records of `objects.py`, and the events of a watch.

What nobody reads is not parsed: of bookmarks only the version is found by a byte scan. Go writes
metadata first, so the first version in a body is its object's own.
Source: apimachinery/pkg/apis/meta/v1/watch.go, WatchEvent; types.go, ListMeta.
"""

import sys
from collections.abc import Callable
from typing import Any

import orjson
from msgspec import convert

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import WatchKind
from fleet.k8s.objects import RuntimeClassView
from fleet.k8s.pods import (
    CSINodeView,
    EventType,
    LeaseView,
    NodeCondition,
    NodeDetails,
    NodeReport,
    NodeView,
    ObjectMeta,
    ServiceAccountView,
    Token,
)
from fleet.k8s.schema import read_kind, share
from fleet.k8s.times import RENEW_TIME, parse_rfc3339, rfc3339_micro
from fleet.wire.api.decode_admission import node_state
from fleet.wire.api.decode_once import decoded_once
from fleet.wire.api.decode_pod import MANAGED_FIELDS, decode_pod, decode_pod_view, without_managers
from fleet.wire.api.decode_service import decode_service
from fleet.wire.api.decode_volumes import decode_config_map, decode_csi_driver, decode_secret
from fleet.wire.api.requests import decode_resource_slice
from fleet.wire.http2.messages import MALFORMED

__all__ = [
    "csinode_view",
    "decode_csinode",
    "decode_existing_node",
    "decode_lease",
    "decode_list",
    "decode_meta",
    "decode_node",
    "decode_pod",
    "decode_pod_view",
    "decode_status",
    "decode_token",
    "decode_watch_event",
]

VERSION = b'"resourceVersion":"'
UNREADABLE_EVENT = "a watch event that cannot be read"
UNREADABLE_LIST = "a LIST that cannot be read"
INITIAL_EVENTS_END = b'"k8s.io/initial-events-end":"true"'
EVENT_START = b'{"type":"'
OBJECT = b',"object":'
RUNTIME_CLASSES_MAX = 256
REPORTED = (
    *("capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo"),
    *("runtimeHandlers", "features", "declaredFeatures"),
)
"""Members of a Node's status."""
_TYPE_AT = len(EVENT_START)
_TYPES = {
    ord("A"): EventType.ADDED,
    ord("M"): EventType.MODIFIED,
    ord("D"): EventType.DELETED,
    ord("B"): EventType.BOOKMARK,
    ord("E"): EventType.ERROR,
}


def decode_watch_event(line: bytes, kind: WatchKind) -> tuple[EventType, str, object]:
    """Return type, version and record of one event of a watch.

    The record of an ERROR is the Status's code; a bookmark that ends the initial events is SYNCED.
    Raises RemoteProtocolError for what is no event.
    """
    try:
        return _decode_watch_event(line, kind)
    except MALFORMED as error:
        raise RemoteProtocolError(UNREADABLE_EVENT) from error


def _decode_watch_event(line: bytes, kind: WatchKind) -> tuple[EventType, str, object]:
    if not line.startswith(EVENT_START):
        raise RemoteProtocolError(UNREADABLE_EVENT)
    event = _TYPES[line[_TYPE_AT]]
    if event is EventType.BOOKMARK:
        if INITIAL_EVENTS_END in line:
            event = EventType.SYNCED
        return event, version_in(line), None
    if event is EventType.ERROR:
        return event, "", orjson.loads(line)["object"].get("code", 0)
    start = line.index(OBJECT) + len(OBJECT)
    record = _RECORDS[kind](line[start : line.rindex(b"}")])
    return event, checked_text(record.resource_version), record


def decode_list(body: bytes, kind: WatchKind) -> tuple[str, str, list[object]]:
    """Return version, continue token and records of one page of a LIST.

    Raises RemoteProtocolError for what is no LIST.
    """
    try:
        return _decode_list(body, kind)
    except MALFORMED as error:
        raise RemoteProtocolError(UNREADABLE_LIST) from error


def _decode_list(body: bytes, kind: WatchKind) -> tuple[str, str, list[object]]:
    obj = orjson.loads(body)
    meta = obj["metadata"]
    items = obj.get("items") or ()
    decode = _RECORDS[kind]
    records: list[object] = [decode(each) for each in items]
    version, token = meta.get("resourceVersion", ""), meta.get("continue", "")
    return checked_text(version), checked_text(token), records


def checked_text(value: object) -> str:
    """Return a text that goes into a later request. Raises TypeError if it is none."""
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value


def decode_status(body: bytes) -> tuple[str, str]:
    """Return reason and message of a refusal; a body that is no Status is its own message."""
    try:
        obj = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", body[:200].decode(errors="replace").strip()
    if not isinstance(obj, dict) or obj.get("kind") != "Status":
        return "", ""
    return str(obj.get("reason", "")), str(obj.get("message", ""))


def decode_node(body: bytes | dict[str, Any]) -> NodeView:
    """Return what is read of a Node."""
    obj = _object(body)
    meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
    cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else ())
    return NodeView(
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        deleting="deletionTimestamp" in meta,
        pod_cidrs=tuple(cidrs),
        labels=meta.get("labels", {}),
        taints=tuple(
            (each["key"], each.get("value", ""), each.get("effect", ""))
            for each in spec.get("taints", ())
        ),
        conditions=convert(
            status.get("conditions") or (), tuple[NodeCondition, ...], dec_hook=read_kind
        ),
        volumes_attached=tuple(each["name"] for each in status.get("volumesAttached", ())),
        volumes_in_use=tuple(status.get("volumesInUse", ())),
        state=share(node_state(obj)),
        report=NodeReport(
            orjson.dumps({member: status[member] for member in REPORTED if member in status}),
            orjson.loads,
        ),
    )


def decode_existing_node(body: bytes | dict[str, Any]) -> NodeView:
    """Return what is read of a Node, with all that a kubelet reports of it."""
    obj = _object(body)
    details = NodeDetails(obj["metadata"].get("annotations", {}), obj.get("status", {}))
    return decode_node(obj)._replace(details=details)


def decode_lease(body: bytes) -> LeaseView:
    """Return a Lease as it came, for the next PUT, which changes its renewTime in place."""
    if RENEW_TIME not in body:
        obj = orjson.loads(body)
        spec = obj.get("spec") or {}
        obj["spec"] = {**spec, "renewTime": rfc3339_micro(0).decode()}
        body = orjson.dumps(obj)
    return LeaseView(body)


def decode_found_lease(body: bytes) -> LeaseView:
    """Return a Lease as it came, and when it was renewed."""
    body = decode_lease(body).body
    at = body.rfind(RENEW_TIME) + len(RENEW_TIME)
    return LeaseView(body, body[at : body.index(b'"', at)])


def forget_managers(body: bytes) -> bytes:
    """Return a Lease whose next PUT clears its managedFields, if it has any.

    Go writes them last in the metadata, and the spec next: the bytes between are cut out. A parse
    would do, but leaves holes behind for each node, which nothing else fills.
    """
    body = decode_lease(body).body
    if b'"managedFields"' not in body:
        return body
    shorter = without_managers(body, b"%b{}]" % MANAGED_FIELDS)
    if shorter is not body:
        return shorter
    obj = orjson.loads(body)
    obj["metadata"]["managedFields"] = [{}]
    return orjson.dumps(obj)


def decode_csinode(body: bytes) -> CSINodeView:
    """Return the owner of a CSINode."""
    return csinode_view(orjson.loads(body), body)


def csinode_view(obj: dict[str, Any], body: bytes) -> CSINodeView:
    """Return the record of a CSINode; `body` is what a PUT begins with."""
    meta = obj["metadata"]
    owners = [each["uid"] for each in meta.get("ownerReferences", ()) if each["kind"] == "Node"]
    drivers = tuple(
        (
            each["name"],
            each.get("nodeID", ""),
            frozenset(each.get("topologyKeys") or ()),
            (each.get("allocatable") or {}).get("count") or 0,
        )
        for each in obj.get("spec", {}).get("drivers") or ()
    )
    return CSINodeView(meta["resourceVersion"], owners[0] if owners else "", body, drivers)


def decode_token(body: bytes) -> Token:
    """Return a service-account token, and until when it is good."""
    status = orjson.loads(body).get("status", {})
    return Token(parse_rfc3339(status.get("expirationTimestamp") or ""), status.get("token") or "")


def decode_service_account(body: bytes | dict[str, Any]) -> ServiceAccountView:
    """Return what is read of a ServiceAccount."""
    meta = _object(body)["metadata"]
    return ServiceAccountView(meta["uid"], frozenset(meta.get("annotations") or ()))


def decode_meta(body: bytes | dict[str, Any]) -> ObjectMeta:
    """Return name and version of any object."""
    meta = _object(body)["metadata"]
    return ObjectMeta(meta["name"], meta.get("resourceVersion", ""))


def _object(body: bytes | dict[str, Any]) -> dict[str, Any]:
    if isinstance(body, dict):
        return body
    obj: dict[str, Any] = orjson.loads(body)
    return obj


def version_in(line: bytes) -> str:
    """Return the first resourceVersion, "" if there is none: an object's own is before others."""
    start = line.find(VERSION)
    if start < 0:
        return ""
    start += len(VERSION)
    return line[start : line.index(b'"', start)].decode()


@decoded_once(RUNTIME_CLASSES_MAX)
def decode_runtime_class(obj: dict[str, Any]) -> RuntimeClassView:
    """Return what kubelets read of a RuntimeClass; the same bytes come to every node."""
    meta = obj["metadata"]
    return RuntimeClassView(
        meta["name"], meta.get("resourceVersion", ""), sys.intern(obj.get("handler", ""))
    )


_RECORDS: dict[WatchKind, Callable[[Any], Any]] = {
    WatchKind.NODE: decode_node,
    WatchKind.PODS: decode_pod,
    WatchKind.CSI_DRIVERS: decode_csi_driver,
    WatchKind.SERVICES: decode_service,
    WatchKind.RUNTIME_CLASSES: decode_runtime_class,
    WatchKind.RESOURCE_SLICES: decode_resource_slice,
    WatchKind.CONFIG_MAP: decode_config_map,
    WatchKind.SECRET: decode_secret,
}
