"""Kubernetes in protobuf: the wire format, envelopes of objects, messages by name and as JSON.

An object travels as `k8s`, a zero byte and a runtime.Unknown: apiVersion and kind, the object's
own bytes, and two empty strings that Go always writes. The messages come from proto/*.proto,
compiled; what these files leave out is skipped when it is read, and refused when it is to be sent.
Source: apimachinery/pkg/runtime/serializer/protobuf/protobuf.go; protobuf.dev, encoding;
apimachinery/pkg/{apis/meta/v1,api/resource,util/intstr}, MarshalJSON of each.
"""

import base64
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s.times import parse_rfc3339_nano, rfc3339, rfc3339_micro
from fleet.wire.api.framing import MAGIC

VARINT, BYTES = 0, 2
SHIFT_MAX = 63  # of the tenth and last digit of a number
TAIL = b"\x1a\x00\x22\x00"  # contentEncoding and contentType
NO_ENVELOPE = "an object without its envelope"
_ONE = tuple(bytes((size,)) for size in range(128))
_LEADS = tuple(bytes((number << 3 | BYTES,)) for number in range(16))


def varint(value: int) -> bytes:
    """Return a number in base 128, lowest digits first."""
    if value < 128:
        return _ONE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes, text or an embedded message; numbers are below 16."""
    size = len(content)
    if size < 128:
        return _LEADS[number] + _ONE[size] + content
    return _LEADS[number] + varint(size) + content


def number_field(number: int, value: int) -> bytes:
    """Return a field of a number that is not negative, or of a truth value."""
    return _ONE[number << 3 | VARINT] + varint(value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins there, and where it ends.

    Raises RemoteProtocolError and IndexError.
    """
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while True:
        digit = data[at]
        at += 1
        value |= (digit & 127) << shift
        if digit < 128:
            return value, at
        shift += 7
        if shift > SHIFT_MAX:
            raise RemoteProtocolError("a number in protobuf above 64 bits")


def skip(data: bytes, at: int) -> int:
    """Return where the field that begins there ends; of the types that Kubernetes uses."""
    tag, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return at + size if tag & 7 == BYTES else at


def envelope_head(api_version: str, kind: str) -> bytes:
    """Return what an enveloped object of a kind begins with, up to its length."""
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return MAGIC + field(1, type_meta) + b"\x12"


def enveloped(head: bytes, content: bytes) -> bytes:
    """Return an object in its envelope."""
    return b"%b%b%b%b" % (head, varint(len(content)), content, TAIL)


def contents(body: bytes) -> bytes:
    """Return the object's own bytes out of its envelope.

    Raises RemoteProtocolError and IndexError.
    """
    if not body.startswith(MAGIC):
        raise RemoteProtocolError(NO_ENVELOPE)
    size, at = read_varint(body, len(MAGIC) + 1)
    at += size
    if body[at] != 0x12:  # its length follows
        raise RemoteProtocolError(NO_ENVELOPE)
    size, at = read_varint(body, at + 1)
    return body[at : at + size]


def kind_of(body: bytes) -> tuple[str, str]:
    """Return apiVersion and kind of an enveloped object."""
    size, at = read_varint(body, len(MAGIC) + 1)
    end = at + size
    found = ["", ""]
    while at < end:
        which = (body[at] >> 3) - 1
        size, at = read_varint(body, at + 1)
        found[which] = body[at : at + size].decode()
        at += size
    return found[0], found[1]


FILE = Path(__file__).parent / "proto" / "kubernetes.binpb"
PACKAGE = "fleet."
INLINE = "inline_"
Json = dict[str, Any]


class UnknownFieldError(Exception):
    """A member of an object that proto/*.proto do not have: it can be sent as JSON only."""


def read_pool(path: Path) -> descriptor_pool.DescriptorPool:
    """Read what protoc made of *.proto files, with --descriptor_set_out."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(path.read_bytes())
    for each in files.file:
        pool.Add(each)
    return pool


_POOL = read_pool(FILE)


@cache
def message_class(name: str) -> Any:
    """Return the class of a message of proto/*.proto."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(PACKAGE + name))


# ---- to JSON ----


def to_json(message: Any) -> Any:
    """Return a message as the API shows it in JSON; zero times are left out."""
    special = _SHOWN.get(message.DESCRIPTOR.name)
    if special is not None:
        return special(message)
    shown: Json = {}
    for each, value in message.ListFields():
        name, read = _reader(each)
        found = read(value)
        if found is None:
            continue
        if name is None:
            shown.update(found)
        else:
            shown[name] = found
    return shown


@cache
def _reader(field: FieldDescriptor) -> tuple[str | None, Callable[[Any], Any]]:
    """Return the name of a field in JSON, None for an inline one, and how to read it."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        read = _value_reader(kind.fields_by_name["value"])
        return field.name, lambda found: {key: read(found[key]) for key in sorted(found)}
    read = _value_reader(field)
    if field.is_repeated:
        return field.name, lambda found: list(map(read, found))
    return (None if field.name.startswith(INLINE) else field.name), read


def _value_reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return to_json
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda found: base64.b64encode(found).decode()
    return lambda found: found


def _time_shown(message: Any) -> str | None:
    return rfc3339(message.seconds).decode() if message.HasField("seconds") else None


def _micro_time_shown(message: Any) -> str | None:
    if not message.HasField("seconds"):
        return None
    return rfc3339_micro(message.seconds * NS_PER_S + message.nanos).decode()


_SHOWN: dict[str, Callable[[Any], Any]] = {
    "Quantity": lambda message: message.string,
    "Time": _time_shown,
    "MicroTime": _micro_time_shown,
    "IntOrString": lambda message: message.strVal if message.type else message.intVal,
    "FieldsV1": lambda message: orjson.loads(message.Raw),
    "ExtraValue": lambda message: list(message.items),
}


# ---- from JSON ----


def from_json(obj: Json, message: Any) -> Any:
    """Fill a message from an object, and return it. Raises UnknownFieldError."""
    for key, value in obj.items():
        if value is not None:
            _set(message, key, value)
    return message


def _set(message: Any, key: str, value: Any) -> None:
    path, field = _field_of(message.DESCRIPTOR, key)
    for each in path:
        message = getattr(message, each)
    kind = field.message_type
    if kind is None:
        if field.is_repeated:
            getattr(message, field.name).extend(value)
        else:
            binary = field.type == FieldDescriptor.TYPE_BYTES
            setattr(message, field.name, base64.b64decode(value) if binary else value)
    elif kind.GetOptions().map_entry:
        _set_map(getattr(message, field.name), kind.fields_by_name["value"], value)
    elif field.is_repeated:
        target = getattr(message, field.name)
        for each in value:
            _take(target.add(), each)
    else:
        _take(getattr(message, field.name), value)


def _set_map(target: Any, values: FieldDescriptor, found: Json) -> None:
    for name, each in found.items():
        if values.message_type is not None:
            _take(target[name], each)
        else:
            binary = values.type == FieldDescriptor.TYPE_BYTES
            target[name] = base64.b64decode(each) if binary else each


def _take(message: Any, value: Any) -> None:
    """Fill an embedded message, which is then there even if it is empty."""
    message.SetInParent()
    special = _TAKEN.get(message.DESCRIPTOR.name)
    if special is not None:
        special(message, value)
    else:
        from_json(value, message)


@cache
def _field_of(kind: Descriptor, key: str) -> tuple[tuple[str, ...], FieldDescriptor]:
    """Return the field of a member, and the inline messages on the way to it."""
    found = kind.fields_by_name.get(key)
    if found is not None:
        return (), found
    for each in kind.fields:
        if each.name.startswith(INLINE) and each.message_type is not None:
            try:
                path, found = _field_of(each.message_type, key)
            except UnknownFieldError:
                continue
            return (each.name, *path), found
    raise UnknownFieldError(f"{kind.name}.{key}")


def _take_quantity(message: Any, value: Any) -> None:
    message.string = str(value)


def _take_time(message: Any, value: str) -> None:
    message.seconds, message.nanos = divmod(parse_rfc3339_nano(value), NS_PER_S)


def _take_int_or_string(message: Any, value: int | str) -> None:
    message.type = int(isinstance(value, str))
    message.intVal = 0 if isinstance(value, str) else value
    message.strVal = value if isinstance(value, str) else ""


def _take_fields(message: Any, value: Any) -> None:
    message.Raw = orjson.dumps(value)


def _take_extra(message: Any, value: Any) -> None:
    message.items.extend(value)


_TAKEN: dict[str, Callable[[Any, Any], None]] = {
    "Quantity": _take_quantity,
    "Time": _take_time,
    "MicroTime": _take_time,
    "IntOrString": _take_int_or_string,
    "FieldsV1": _take_fields,
    "ExtraValue": _take_extra,
}


# ---- whole objects ----

_CLASSES = {"ResourceClaim": "AllocatedClaim"}  # kinds whose name is also that of a part of a Pod


def object_to_json(body: bytes) -> Json:
    """Return an enveloped object as JSON shows it."""
    api_version, kind = kind_of(body)
    message = message_class(_CLASSES.get(kind, kind)).FromString(contents(body))
    return {"kind": kind, "apiVersion": api_version, **to_json(message)}


def object_from_json(obj: Json) -> bytes:
    """Return an object in its envelope. Raises UnknownFieldError."""
    kind = obj["kind"]
    message = message_class(_CLASSES.get(kind, kind))()
    from_json({key: obj[key] for key in obj if key not in {"kind", "apiVersion"}}, message)
    head = envelope_head(obj["apiVersion"], kind)
    return enveloped(head, message.SerializeToString(deterministic=True))
