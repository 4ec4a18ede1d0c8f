"""The requests of Events, as JSON."""

import orjson

from fleet.k8s.effects import ApiCall, EventObject
from fleet.k8s.pods import ObjectRef
from fleet.k8s.times import rfc3339
from fleet.wire.api.callers import CALL_TIMEOUT_NS, Caller
from fleet.wire.api.paths import event_namespace, events_path
from fleet.wire.http2.messages import ContentType, Request

EVENT_BODY = (
    b'{"kind":"Event","apiVersion":"v1","metadata":{"name":"%b","namespace":"%b"%b},'
    b'"involvedObject":{%b},"reason":"%b","message":%b,"source":{"component":"kubelet",'
    b'"host":"%b"},"firstTimestamp":"%b","lastTimestamp":"%b","count":%d,"type":"%b",'
    b'"eventTime":null,"reportingComponent":"%b","reportingInstance":"%b"}'
)
EVENT_PATCH_BODY = b'{"count":%d,"lastTimestamp":"%b","message":%b}'


def create_event(call: ApiCall, caller: Caller) -> Request:
    """Build the POST of an Event."""
    event = call.payload
    assert isinstance(event, EventObject), event
    notes = b""
    if event.annotations:
        notes = b',"annotations":' + orjson.dumps(dict(event.annotations))
    body = EVENT_BODY % (
        event.name.encode(),
        event_namespace(event),
        notes,
        _involved_object(event.about),
        event.reason.encode(),
        orjson.dumps(event.message),
        caller.name,
        rfc3339(event.first_s),
        rfc3339(event.last_s),
        event.times,
        b"Warning" if event.warning else b"Normal",
        event.reporter,
        caller.name if event.reporter else b"",
    )
    path = events_path(event)
    return Request(b"POST", path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _involved_object(about: ObjectRef) -> bytes:
    members = [b'"kind":"%b"' % about.kind.encode()]
    if about.namespace:
        members.append(b'"namespace":"%b"' % about.namespace.encode())
    members.append(b'"name":"%b"' % about.name.encode())
    if about.uid:
        members.append(b'"uid":"%b"' % about.uid.encode())
    members.append(b'"apiVersion":"v1"')
    if about.resource_version:
        members.append(b'"resourceVersion":"%b"' % about.resource_version.encode())
    if about.field_path:
        members.append(b'"fieldPath":"%b"' % about.field_path.encode())
    return b",".join(members)


def patch_event(call: ApiCall, caller: Caller) -> Request:
    """Build the PATCH of an Event that is told again."""
    del caller
    event = call.payload
    assert isinstance(event, EventObject), event
    path = b"%b/%b" % (events_path(event), event.name.encode())
    body = EVENT_PATCH_BODY % (event.times, rfc3339(event.last_s), orjson.dumps(event.message))
    return Request(
        b"PATCH", path, body, ContentType.STRATEGIC_MERGE_PATCH, timeout_ns=CALL_TIMEOUT_NS
    )
