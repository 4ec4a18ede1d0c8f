"""How the simulated API server reads and writes: JSON, or protobuf as real kubelets have it.

Its store holds objects as JSON shows them; bodies are made of them with the messages of
fleet/wire/proto, by other code than the templates and readers that kubelets use for most of them.
"""

from functools import cache
from typing import NamedTuple, Protocol

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fleet.wire.api.codec import JSON, Codec, protobuf
from fleet.wire.api.framing import LENGTH_BYTES, MAGIC
from fleet.wire.api.protobuf import (
    INLINE,
    contents,
    envelope_head,
    enveloped,
    field,
    message_class,
    object_from_json,
    object_to_json,
)
from world.strategic_merge import Object

UNREAD = {"PodCertificateRequest": "RuntimeClass"}
"""Kinds that no kubelet reads, and the kind as which a bookmark of theirs is sent."""
NAMES = {"ResourceClaim": "AllocatedClaim"}
"""Messages that are called otherwise than their kind."""


def known(obj: Object, kind: Descriptor) -> Object:
    """Return what a message can hold of an object: readers skip the rest, and so it is not sent."""
    fields = fields_of(kind)
    found: Object = {}
    for key, value in obj.items():
        field_of = fields.get(key)
        if field_of is None:
            continue
        inner = field_of.message_type
        if inner is None or inner.GetOptions().map_entry:
            found[key] = value
        elif isinstance(value, dict):
            found[key] = known(value, inner)
        elif isinstance(value, list):
            found[key] = [known(each, inner) if isinstance(each, dict) else each for each in value]
        else:
            found[key] = value
    return found


@cache
def fields_of(kind: Descriptor) -> dict[str, FieldDescriptor]:
    """Return the fields of a message, inline ones among them, by their names in JSON."""
    found: dict[str, FieldDescriptor] = {}
    for each in kind.fields:
        if each.name.startswith(INLINE) and each.message_type is not None:
            found |= fields_of(each.message_type)
        else:
            found[each.name] = each
    return found


class Encoding(Protocol):
    """What a server answers in, and the codec of its clients."""

    @property
    def codec(self) -> Codec:
        """The codec of its clients."""
        ...

    def body(self, obj: Object) -> bytes:
        """Return an object as it is sent."""
        ...

    def read(self, body: bytes) -> Object:
        """Return the object of a request."""
        ...

    def event(self, kind: bytes, body: bytes) -> bytes:
        """Return an event of a watch around the bytes of its object."""
        ...

    def page(self, head: tuple[str, str], version: str, items: list[bytes]) -> bytes:
        """Return a list around the bytes of its items; `head`: apiVersion and kind of one."""
        ...


class JsonEncoding(NamedTuple):
    """One object or event a line."""

    codec: Codec = JSON

    def body(self, obj: Object) -> bytes:
        """Return an object as it is sent."""
        return b"%b" % orjson.dumps(obj)  # a copy without orjson's spare room, which nodes keep

    def read(self, body: bytes) -> Object:
        """Return the object of a request."""
        found: Object = orjson.loads(body)
        return found

    def event(self, kind: bytes, body: bytes) -> bytes:
        """Return an event of a watch around the bytes of its object."""
        return b'{"type":"%b","object":%b}\n' % (kind, body)

    def page(self, head: tuple[str, str], version: str, items: list[bytes]) -> bytes:
        """Return a list around the bytes of its items; `head`: apiVersion and kind of one."""
        del head
        return b'{"metadata":{"resourceVersion":"%b"},"items":[%b]}' % (
            version.encode(),
            b",".join(items),
        )


class ProtobufEncoding(NamedTuple):
    """Messages in their envelope, in a watch each after its length; patches are JSON here, too."""

    codec: Codec

    def body(self, obj: Object) -> bytes:
        """Return an object as it is sent."""
        kind = str(obj["kind"])
        kind = UNREAD.get(kind, kind)
        message = message_class(NAMES.get(kind, kind))
        head = {"kind": kind, "apiVersion": obj["apiVersion"]}
        return object_from_json({**head, **known(obj, message.DESCRIPTOR)})

    def read(self, body: bytes) -> Object:
        """Return the object of a request."""
        found: Object = object_to_json(body) if body.startswith(MAGIC) else orjson.loads(body)
        return found

    def event(self, kind: bytes, body: bytes) -> bytes:
        """Return an event of a watch around the bytes of its object."""
        frame = field(1, kind) + field(2, field(1, body))
        return len(frame).to_bytes(LENGTH_BYTES, "big") + frame

    def page(self, head: tuple[str, str], version: str, items: list[bytes]) -> bytes:
        """Return a list around the bytes of its items; `head`: apiVersion and kind of one."""
        api_version, kind = head
        meta = field(1, field(2, version.encode()))
        content = meta + b"".join(field(2, contents(each)) for each in items)
        return enveloped(envelope_head(api_version, f"{kind}List"), content)


ENCODINGS: dict[str, Encoding] = {
    "json": JsonEncoding(),
    "protobuf": ProtobufEncoding(protobuf()),
}
