"""HPACK as a kubelet's connection needs it: repeated headers out, a status in.

Out: what every request of a connection repeats (authority, authorization, user agent, accept, the
impersonated user) is put into the peer's dynamic table by the first header block and named by one
byte each ever after. What does not fit the table goes as a literal each time. Nothing is ever
evicted, so the indices never move: that is the whole of the encoder's state.

In: we announce a table size of 0, so blocks carry no state from one to the next. Frequent
statuses are recognised by their first bytes; any other block, and every error that may carry a
Retry-After (429 and 5xx), is read by the `hpack` library.

Source: RFC 7541; golang.org/x/net/http2/hpack/encode.go for what a Go server chooses to send.
Differs: values go out without Huffman coding, which would cost more CPU than the bytes are worth.
"""

from functools import lru_cache

import hpack
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from fleet.errors import RemoteProtocolError
from fleet.wire.http2.messages import ContentType

TABLE_BYTES_DEFAULT = 4096
HEADER_LIST_BYTES_MAX = 65536
RETRY_AFTER_S_MAX = 3600
"""An API server says 1, and under load at most 32: dropped_requests_tracker.go, maxRetryAfter."""
RETRY_AFTER_DIGITS_MAX = 20  # Python refuses to read numbers of thousands
COMPRESSION_ERROR = 9
PROTOCOL_ERROR = 1
SIZE_UPDATE_ZERO = 0x20

_ENTRY_OVERHEAD = 32  # RFC 7541, 4.1
_STATIC_ENTRIES = 61
_STATIC_NAMES = {b":authority": 1, b"accept": 19, b"authorization": 23, b"user-agent": 58}

Field = tuple[bytes, bytes]


def encode_integer(value: int, prefix_bits: int, first: int) -> bytes:
    """Encode an integer below the flag bits of `first`. Source: RFC 7541, 5.1."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((first | value,))
    encoded = bytearray((first | limit,))
    value -= limit
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_string(value: bytes) -> bytes:
    """Encode a string without Huffman coding."""
    return encode_integer(len(value), 7, 0) + value


def encode_literal(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    """Encode a literal field, to be added to the peer's table or not."""
    bits, first = (6, 0x40) if indexed else (4, 0x00)
    if not indexed and name == b"authorization":
        first = 0x10  # never indexed, also not by a proxy
    number = _STATIC_NAMES.get(name)
    if number is None:
        return bytes((first,)) + encode_string(name) + encode_string(value)
    return encode_integer(number, bits, first) + encode_string(value)


_USER_LEAD = b"\x00" + encode_string(b"impersonate-user")


def _path_lead(length: int) -> bytes:
    return b"\x87\x04" + encode_integer(length, 7, 0)


# `:scheme: https` and the head of a literal `:path`, by the path's length.
_PATH_LEADS = tuple(_path_lead(length) for length in range(512))

METHODS = {b"GET": b"\x82", b"POST": b"\x83"} | {
    method: b"\x02" + encode_string(method)
    for method in (b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS")
}

_CONTENT_LENGTH = encode_integer(28, 4, 0)
_CONTENT_TYPES = (
    b"",
    encode_integer(31, 4, 0) + encode_string(b"application/json"),
    encode_integer(31, 4, 0) + encode_string(b"application/strategic-merge-patch+json"),
    encode_integer(31, 4, 0) + encode_string(b"application/vnd.kubernetes.protobuf"),
)
assert len(_CONTENT_TYPES) == len(ContentType)


def path_lead(length: int) -> bytes:
    """Return what stands between the method and a path of that length."""
    return _PATH_LEADS[length] if length < len(_PATH_LEADS) else _path_lead(length)


@lru_cache(maxsize=1024)  # Leases are of few lengths
def content_fields(content_type: ContentType, length: int) -> bytes:
    """Encode content-type and content-length of a request body."""
    digits = b"%d" % length
    return b"%b%b%c%b" % (_CONTENT_TYPES[content_type], _CONTENT_LENGTH, len(digits), digits)


class HeaderPlan:
    """What every request repeats: shared by all connections, the user differs on each."""

    __slots__ = ("_fields", "_group", "_group_literal", "_tails")

    def __init__(
        self,
        authority: bytes,
        authorization: bytes | None,
        user_agent: bytes,
        accept: bytes,
        group: bytes = b"",
    ) -> None:
        fields = [(b":authority", authority)]
        if authorization is not None:
            fields.append((b"authorization", authorization))
        self._fields: tuple[Field, ...] = (
            *fields,
            (b"user-agent", user_agent),
            (b"accept", accept),
        )
        self._group = group
        self._group_literal = encode_literal(b"impersonate-group", group) if group else b""
        self._tails: dict[bytes, bytes] = {}

    def user_fields(self, user: bytes) -> tuple[Field, ...]:
        """Return the impersonation headers of a user; of none, nothing."""
        if not user:
            return ()
        if not self._group:
            return ((b"impersonate-user", user),)
        return ((b"impersonate-user", user), (b"impersonate-group", self._group))

    def literal_user(self, user: bytes) -> bytes:
        """Encode the impersonation of one request on a shared connection."""
        if not user:
            return b""
        return b"".join((_USER_LEAD, encode_string(user), self._group_literal))

    def encode(self, user: bytes, table_bytes: int) -> tuple[bytes, bytes]:
        """Return the fields as the first block carries them, and as all later ones do."""
        fields = self._fields + self.user_fields(user)
        fitting = _fitting(fields, table_bytes)
        index = _STATIC_ENTRIES + len(fitting)
        first, later = [], []
        for place, (name, value) in enumerate(fields):
            if place in fitting:
                first.append(encode_literal(name, value, indexed=True))
                later.append(encode_integer(index, 7, 0x80))
                index -= 1
            else:
                literal = encode_literal(name, value)
                first.append(literal)
                later.append(literal)
        tail = b"".join(later)
        if len(fitting) == len(fields):
            tail = self._tails.setdefault(tail, tail)  # one object for all connections
        return b"".join(first), tail


def _fitting(fields: tuple[Field, ...], table_bytes: int) -> frozenset[int]:
    """Choose the places that fit the table together, the largest first: they save most."""
    sizes = [len(name) + len(value) + _ENTRY_OVERHEAD for name, value in fields]
    chosen = set()
    for place in sorted(range(len(fields)), key=sizes.__getitem__, reverse=True):
        if sizes[place] <= table_bytes:
            table_bytes -= sizes[place]
            chosen.add(place)
    return frozenset(chosen)


def clear_table(table_bytes: int) -> bytes:
    """Encode the size updates that empty the peer's table and set its size again."""
    return bytes((SIZE_UPDATE_ZERO,)) + encode_integer(table_bytes, 5, 0x20)


OK = 0x88
_INDEXED = {OK: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404}
_HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def _status_prefixes() -> dict[bytes, int]:
    """Map the four bytes a status below 400 begins with to it; a plain one lacks its digit."""
    prefixes = {}
    for status in (201, 202):
        coded = _HUFFMAN.encode(b"%d" % status)
        for kind in (0x00, 0x10, 0x40):  # without, never, and with indexing
            for name in range(8, 15):  # each index of `:status`; Go's server names the last
                prefixes[bytes((kind | name, 0x80 | len(coded))) + coded] = status
    return prefixes


_PREFIXES = _status_prefixes()
assert all(len(prefix) == 4 for prefix in _PREFIXES)


_DECODER = hpack.Decoder(max_header_list_size=HEADER_LIST_BYTES_MAX)
_DECODER.max_allowed_table_size = _DECODER.header_table_size = 0  # it keeps nothing


def read_block(block: bytes) -> tuple[int, int]:
    """Return status and Retry-After in seconds (-1: none) of a response's header block.

    Raises RemoteProtocolError for a block that is no valid response.
    """
    at = 0
    while block[at : at + 1] == b"\x20":
        at += 1
    status = _INDEXED.get(block[at]) if at < len(block) else None
    if status is None:
        status = _PREFIXES.get(block[at : at + 4])
    if status is not None:
        return status, -1
    return _read_with_library(block)


def _read_with_library(block: bytes) -> tuple[int, int]:
    try:
        fields = _DECODER.decode(block, raw=True)
    except hpack.HPACKError as error:
        raise RemoteProtocolError(f"header block: {error}", COMPRESSION_ERROR) from error
    status, retry_after_s = b"", b""
    for name, value in fields:
        if name == b":status":
            status = value
        elif name == b"retry-after":
            retry_after_s = value
    if len(status) != 3 or not status.isdigit() or status < b"100":
        raise RemoteProtocolError(f"response with status {status[:9]!r}", PROTOCOL_ERROR)
    return int(status), seconds_of(retry_after_s)


def seconds_of(retry_after: bytes) -> int:
    """Return what a Retry-After asks for, -1 if that is nothing: a date, a sign, a time too long.

    Source: client-go/rest/request.go, retryAfterSeconds, which takes what strconv.Atoi does.
    Differs: below 0 it asks again at once, and it would wait for years; both are ignored here.
    """
    if not retry_after.isdigit() or len(retry_after) > RETRY_AFTER_DIGITS_MAX:
        return -1
    seconds = int(retry_after)
    return seconds if seconds <= RETRY_AFTER_S_MAX else -1
