"""The protobuf wire format of Kubernetes: lengths, fields, and the envelope around objects.

An object travels as `k8s`, a zero byte and a runtime.Unknown: apiVersion and kind, the object's
own bytes, and two empty strings that Go always writes.
Source: apimachinery/pkg/runtime/serializer/protobuf/protobuf.go; protobuf.dev, encoding.
"""

from fleet.errors import RemoteProtocolError

MAGIC = b"k8s\x00"
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
