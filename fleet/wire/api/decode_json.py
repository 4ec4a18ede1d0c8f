"""API objects from JSON: the records of fleet.k8s, and the events of a watch.

What nobody reads is not parsed: of bookmarks only the version is found by a byte scan. Go writes
metadata first, so the first version in a body is its object's own.
Source: apimachinery/pkg/apis/meta/v1/watch.go, WatchEvent; types.go, ListMeta.
"""

import base64
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec import convert

from fleet.errors import RemoteProtocolError
from fleet.k8s import pods
from fleet.k8s.admission import ResourceClaimView, ResourceSliceView, node_state
from fleet.k8s.effects import WatchKind
from fleet.k8s.objects import CSINodeView, RuntimeClassView, ServiceView
from fleet.k8s.schema import Record, decoder, member, read, read_kind, share
from fleet.k8s.times import RENEW_TIME, rfc3339_micro
from fleet.k8s.volumes import AttachmentView, ClaimView, CSIDriverView, ObjectData, VolumeView
from fleet.wire.api.decode_pod import MANAGED_FIELDS, decode_pod, without_managers
from fleet.wire.http2.messages import MALFORMED

VERSION = b'"resourceVersion":"'
UNREADABLE_EVENT = "a watch event that cannot be read"
UNREADABLE_LIST = "a LIST that cannot be read"
INITIAL_EVENTS_END = b'"k8s.io/initial-events-end":"true"'
EVENT_START = b'{"type":"'
OBJECT = b',"object":'
OBJECTS_MAX = 1024  # of ConfigMaps and of Secrets: replicas ask for the same ones
SERVICES_MAX = 4096
_R = TypeVar("_R")
Json = dict[str, Any]
REPORTED = (
    *("capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo"),
    *("runtimeHandlers", "features", "declaredFeatures"),
)
"""Members of a Node's status."""
_TYPE_AT = len(EVENT_START)
_TYPES = {
    ord("A"): pods.EventType.ADDED,
    ord("M"): pods.EventType.MODIFIED,
    ord("D"): pods.EventType.DELETED,
    ord("B"): pods.EventType.BOOKMARK,
    ord("E"): pods.EventType.ERROR,
}


def decode_watch_event(line: bytes, kind: WatchKind | None) -> tuple[pods.EventType, str, object]:
    """Return type, version and record of one event of a watch; without a kind nothing is read.

    The record of an ERROR is the Status's code; a bookmark that ends the initial events is SYNCED.
    Raises RemoteProtocolError for what is no event.
    """
    return read_event(line, RECORDS[kind] if kind is not None else None)


def read_event(
    line: bytes, read_object: Callable[[bytes], _R] | None
) -> tuple[pods.EventType, str, _R | int | None]:
    """Return type and version of one event, and what is made of its object's JSON."""
    try:
        if not line.startswith(EVENT_START):
            raise RemoteProtocolError(UNREADABLE_EVENT)
        event = _TYPES[line[_TYPE_AT]]
        if event is pods.EventType.ERROR:
            return event, "", int(orjson.loads(line)["object"].get("code", 0))
        version = version_in(line)
        if event is pods.EventType.BOOKMARK:
            return pods.EventType.SYNCED if INITIAL_EVENTS_END in line else event, version, None
        if not version:
            raise RemoteProtocolError(UNREADABLE_EVENT)
        if read_object is None:
            return event, version, None
        start = line.index(OBJECT) + len(OBJECT)
        return event, version, read_object(line[start : line.rindex(b"}")])
    except MALFORMED as error:
        raise RemoteProtocolError(UNREADABLE_EVENT) from error


class ListMeta(Record, frozen=True):
    """Source: meta/v1 ListMeta."""

    resource_version: str = ""
    token: str = member("continue", "")


class Listed(Record, frozen=True):
    """One page of a LIST, its items not read yet."""

    metadata: ListMeta
    items: tuple[msgspec.Raw, ...] = ()


_read_list = decoder(Listed)


def decode_list(body: bytes, kind: WatchKind | None) -> tuple[str, str, list[object]]:
    """Return version, continue token and records of one page of a LIST; none without a kind."""
    return read_list(body, RECORDS[kind] if kind is not None else None)


def read_list(body: bytes, read_object: Callable[[bytes], _R] | None) -> tuple[str, str, list[_R]]:
    """Return version and continue token of one page, and what is made of each object's JSON.

    Raises RemoteProtocolError for what is no LIST.
    """
    try:
        page = _read_list(body)
        records = [read_object(bytes(each)) for each in page.items] if read_object else []
    except MALFORMED as error:
        raise RemoteProtocolError(UNREADABLE_LIST) from error
    return page.metadata.resource_version, page.metadata.token, records


def decode_status(body: bytes) -> tuple[str, str]:
    """Return reason and message of a refusal; a body that is no Status is its own message."""
    try:
        obj = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", body[:200].decode(errors="replace").strip()
    if not isinstance(obj, dict) or obj.get("kind") != "Status":
        return "", ""
    return str(obj.get("reason", "")), str(obj.get("message", ""))


class _NodeMeta(Record, frozen=True):
    name: str
    uid: str
    resource_version: str
    deletion_timestamp: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Taint(Record, frozen=True):
    key: str
    value: str = ""
    effect: str = ""


class _NodeSpec(Record, frozen=True):
    pod_cidr: str = member("podCIDR", "")
    pod_cidrs: tuple[str, ...] = member("podCIDRs", ())
    taints: tuple[_Taint, ...] = ()


def decode_node(body: bytes | dict[str, Any]) -> pods.NodeView:
    """Return what is read of a Node."""
    obj = _object(body)
    meta, status = convert(obj["metadata"], _NodeMeta), obj.get("status", {})
    spec = convert(obj.get("spec", {}), _NodeSpec)
    return pods.NodeView(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        deleting=bool(meta.deletion_timestamp),
        pod_cidrs=spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ()),
        labels=meta.labels,
        taints=tuple((each.key, each.value, each.effect) for each in spec.taints),
        conditions=convert(
            status.get("conditions") or (), tuple[pods.NodeCondition, ...], dec_hook=read_kind
        ),
        volumes_attached=tuple(each["name"] for each in status.get("volumesAttached", ())),
        volumes_in_use=tuple(status.get("volumesInUse", ())),
        state=share(node_state(obj)),
        report=pods.NodeReport(
            orjson.dumps({member: status[member] for member in REPORTED if member in status}),
            orjson.loads,
        ),
    )


def decode_existing_node(body: bytes | dict[str, Any]) -> pods.NodeView:
    """Return what is read of a Node, with all that a kubelet reports of it."""
    obj = _object(body)
    details = pods.NodeDetails(obj["metadata"].get("annotations", {}), obj.get("status", {}))
    return decode_node(obj)._replace(details=details)


def decode_lease(body: bytes) -> pods.LeaseView:
    """Return a Lease as it came, for the next PUT, which changes its renewTime in place."""
    if RENEW_TIME not in body:
        obj = orjson.loads(body)
        spec = obj.get("spec") or {}
        obj["spec"] = {**spec, "renewTime": rfc3339_micro(0).decode()}
        body = orjson.dumps(obj)
    return pods.LeaseView(body)


def decode_found_lease(body: bytes) -> pods.LeaseView:
    """Return a Lease as it came, and when it was renewed."""
    body = decode_lease(body).body
    at = body.rfind(RENEW_TIME) + len(RENEW_TIME)
    return pods.LeaseView(body, body[at : body.index(b'"', at)])


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
    return read(CSINodeView, obj)._replace(body=body)


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


def _reader(of: Callable[[Json], _R], kept: int = 0) -> Callable[[bytes | Json], _R]:
    """Return what reads objects of a kind, whole or as JSON; that many are kept by their bytes.

    Those that come to every node are the same bytes, and are read for the first one.
    """

    def of_bytes(body: bytes) -> _R:
        return of(orjson.loads(body))

    found = lru_cache(maxsize=kept)(of_bytes) if kept else of_bytes

    def of_both(body: bytes | Json) -> _R:
        return found(body) if isinstance(body, bytes) else of(body)

    return of_both


def _config_map(obj: Json) -> ObjectData:
    return _object_data(obj, {**(obj.get("data") or {}), **_binary(obj.get("binaryData"))})


def _secret(obj: Json) -> ObjectData:
    return _object_data(obj, _binary(obj.get("data")))


def _binary(values: dict[str, str] | None) -> dict[str, str]:
    """Return values of base64 as text; what is no UTF-8 is kept in surrogates."""
    return {
        key: base64.b64decode(text).decode("utf-8", "surrogateescape")
        for key, text in (values or {}).items()
    }


def _object_data(obj: Json, texts: dict[str, str]) -> ObjectData:
    meta, immutable = obj["metadata"], obj.get("immutable") or False
    version, binary = meta.get("resourceVersion", ""), tuple(obj.get("binaryData") or ())
    return ObjectData(meta["name"], version, tuple(texts), immutable, tuple(texts.values()), binary)


decode_attachment = _reader(partial(read, AttachmentView))
decode_claim = _reader(partial(read, ClaimView))
decode_persistent_volume = _reader(partial(read, VolumeView))
decode_resource_claim = _reader(partial(read, ResourceClaimView))
decode_resource_slice = _reader(partial(read, ResourceSliceView))
decode_service_account = _reader(partial(read, pods.ServiceAccountView))
decode_token = _reader(partial(read, pods.Token))
decode_csi_driver = _reader(partial(read, CSIDriverView), 256)
decode_runtime_class = _reader(partial(read, RuntimeClassView), 256)
decode_service = _reader(partial(read, ServiceView), SERVICES_MAX)
decode_config_map = _reader(_config_map, OBJECTS_MAX)
decode_secret = _reader(_secret, OBJECTS_MAX)


RECORDS: dict[WatchKind, Callable[[Any], Any]] = {
    WatchKind.NODE: decode_node,
    WatchKind.PODS: decode_pod,
    WatchKind.CSI_DRIVERS: decode_csi_driver,
    WatchKind.SERVICES: decode_service,
    WatchKind.RUNTIME_CLASSES: decode_runtime_class,
    WatchKind.RESOURCE_SLICES: decode_resource_slice,
    WatchKind.CONFIG_MAP: decode_config_map,
    WatchKind.SECRET: decode_secret,
}
