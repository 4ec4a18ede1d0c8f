"""What kubelets send, in protobuf: the same requests as in `operations.py`, with other bodies.

Renewals and events are put together from byte templates, with the zero fields that Go writes, too;
the rest is built as JSON and turned into its message. Patches stay JSON, as a kubelet's do.
Source: k8s.io/api/*/generated.proto for the numbers of fields; generated.pb.go for their order.
Differs: what goes by way of JSON leaves zero fields out. A mirror pod with a field that
proto/*.proto do not have goes as JSON.
"""

from functools import lru_cache

import orjson

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import ApiCall, EventObject, LeaseRenewal, Op
from fleet.k8s.events import ObjectRef
from fleet.k8s.volumes import CSINodeUpdate
from fleet.wire.api import operations, protobuf, requests
from fleet.wire.http2.messages import ContentType, Request

LEASE = protobuf.envelope_head("coordination.k8s.io/v1", "Lease")
EVENT = protobuf.envelope_head("v1", "Event")
NO_LEASE = "a Lease that cannot be read"
SPEC_TAG = 0x12  # field 2 of a Lease, and field 4 of its spec: both of wire type 2, a length
RENEW_TIME_TAG = 0x22
RENEW_LEAD = 3  # that tag, the length, the tag of the seconds
PROTOBUF = ContentType.PROTOBUF


def _meta(name: bytes, namespace: bytes, annotations: bytes) -> bytes:
    """Return the metadata of an object that is to be created."""
    return protobuf.field(
        1,
        b"".join(
            (
                protobuf.field(1, name),
                b"\x12\x00",  # generateName
                protobuf.field(3, namespace),
                b"\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00",  # selfLink to creationTimestamp
                annotations,
            )
        ),
    )


@lru_cache(maxsize=64)
def _seconds(seconds: int) -> bytes:
    """Return the first half of a time; the nodes of a fleet share seconds."""
    return b"\x08%b\x10" % protobuf.varint(seconds)


def _time(number: int, seconds: int) -> bytes:
    return protobuf.field(number, _seconds(seconds) + b"\x00")


@lru_cache(maxsize=16)
def _micro_time(wall_ns: int) -> bytes:
    """Return a field renewTime; the renewals of one turn share it."""
    seconds, rest = divmod(wall_ns, NS_PER_S)
    time = _seconds(seconds) + protobuf.varint(rest // 1000 * 1000)
    return b"\x22%c%b" % (len(time), time)


def _renew_lease(call: ApiCall, caller: requests.Caller) -> Request:
    """Build the renewal of one node's Lease: a PUT of the last seen object, without a GET.

    Source: component-helpers/apimachinery/lease/controller.go, retryUpdateLease.
    """
    payload = call.payload
    assert isinstance(payload, LeaseRenewal), payload
    return requests.renewal(renewed(payload.base, payload.renew_ns), PROTOBUF, caller)


def renewed(base: bytes, renew_ns: int) -> bytes:
    """Return an enveloped Lease with another renewTime, and all else as it was.

    Go writes the fields of a message by their numbers: metadata, then spec, and there the renewTime
    last unless the Lease has been coordinated. If it stays as long as it was, no length changes.
    Raises RemoteProtocolError for what is no Lease: answers to renewals are read only here.
    """
    if not base.startswith(LEASE):
        raise RemoteProtocolError(NO_LEASE)
    time = _micro_time(renew_ns)
    at = len(base) - len(time) - len(protobuf.TAIL)
    if base[at : at + RENEW_LEAD] == time[:RENEW_LEAD] and base.endswith(protobuf.TAIL):
        return base[:at] + time + protobuf.TAIL
    try:
        return _with_renew_time(base, time)
    except IndexError as error:
        raise RemoteProtocolError(NO_LEASE) from error


def _with_renew_time(base: bytes, time: bytes) -> bytes:
    """Put a renewTime wherever it belongs."""
    _, meta_at = protobuf.read_varint(base, len(LEASE))
    size, at = protobuf.read_varint(base, meta_at + 1)
    spec_at = at + size
    if base[spec_at] != SPEC_TAG:
        raise RemoteProtocolError(NO_LEASE)
    size, at = protobuf.read_varint(base, spec_at + 1)
    end = at + size
    begin = at
    while at < end and base[at] != RENEW_TIME_TAG:
        at = protobuf.skip(base, at)
    after = protobuf.skip(base, at) if at < end else at
    spec = b"%b%b%b" % (base[begin:at], time, base[after:end])
    return protobuf.enveloped(LEASE, base[meta_at:spec_at] + protobuf.field(2, spec))


def _update_csinode(call: ApiCall, caller: requests.Caller) -> Request:
    update = call.payload
    assert isinstance(update, CSINodeUpdate), update
    base = orjson.dumps(protobuf.object_to_json(update.base))
    as_json = call._replace(payload=update._replace(base=base))
    return _from_json(operations.OPERATIONS[call.op].build(as_json, caller))


def _create_event(call: ApiCall, caller: requests.Caller) -> Request:
    event = call.payload
    assert isinstance(event, EventObject), event
    notes = b"".join(
        protobuf.field(12, protobuf.field(1, key.encode()) + protobuf.field(2, value.encode()))
        for key, value in sorted(event.annotations)
    )
    body = b"".join(
        (
            _meta(event.name.encode(), requests.event_namespace(event), notes),
            _involved_object(event.about),
            protobuf.field(3, event.reason.encode()),
            protobuf.field(4, event.message.encode()),
            protobuf.field(5, b"\x0a\x07kubelet" + protobuf.field(2, caller.name)),
            _time(6, event.first_s),
            _time(7, event.last_s),
            protobuf.number_field(8, event.times),
            b"\x4a\x07Warning" if event.warning else b"\x4a\x06Normal",
            b"\x52\x00\x62\x00",  # eventTime, action
            protobuf.field(14, event.reporter),
            protobuf.field(15, caller.name if event.reporter else b""),
        )
    )
    path = requests.events_path(event)
    return Request(
        operations.POST,
        path,
        protobuf.enveloped(EVENT, body),
        PROTOBUF,
        timeout_ns=requests.CALL_TIMEOUT_NS,
    )


def _involved_object(about: ObjectRef) -> bytes:
    return protobuf.field(
        2,
        b"".join(
            (
                protobuf.field(1, about.kind.encode()),
                protobuf.field(2, about.namespace.encode()),
                protobuf.field(3, about.name.encode()),
                protobuf.field(4, about.uid.encode()),
                protobuf.field(5, about.api_version.encode()),
                protobuf.field(6, about.resource_version.encode()),
                protobuf.field(7, about.field_path.encode()),
            )
        ),
    )


def _from_json(request: Request) -> Request:
    """Return a request with its body as protobuf, if all of it can be said so."""
    try:
        body = protobuf.object_from_json(orjson.loads(request.body))
    except protobuf.UnknownFieldError:
        return request
    return request._replace(body=body, content_type=PROTOBUF)


def _translated(call: ApiCall, caller: requests.Caller) -> Request:
    """Build what is seldom sent by way of JSON."""
    return _from_json(operations.OPERATIONS[call.op].build(call, caller))


_BUILDERS: dict[Op, operations.Builder] = {
    Op.RENEW_LEASE: _renew_lease,
    Op.UPDATE_CSINODE: _update_csinode,
    Op.CREATE_EVENT: _create_event,
}
"""What is sent most often, or is made of an answer."""


def builder_of(op: Op, row: operations.Operation) -> operations.Builder:
    """Return what builds a call: patches stay JSON, and a GET has no body."""
    if row.verb in {"GET", "PATCH"}:
        return row.build
    return _BUILDERS.get(op, _translated)
