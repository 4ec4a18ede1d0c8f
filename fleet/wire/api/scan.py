"""What goes by in a watch that nobody reads: how many events, and up to which version.

Nothing is decoded. Of the last event of a chunk the version is found where Go's encoders put it;
of an event that has not wholly arrived its head is kept, and how much of it went by.

    JSON       one event a line: {"type":"ADDED","object":{...,"metadata":{...}}}
    protobuf   four bytes of length, then a WatchEvent: 1 type, 2 object { 1 raw }; raw is
               "k8s", a zero byte and an Unknown: 2 raw, whose field 1 is the metadata with
               6 resourceVersion

Source: apimachinery/pkg/apis/meta/v1/generated.proto, apimachinery/pkg/runtime/generated.proto,
apimachinery/pkg/util/framer.
"""

from typing import NamedTuple

import orjson

from fleet.wire.api.framing import LENGTH_BYTES, check_length
from fleet.wire.api.protobuf import BYTES, MAGIC, SHIFT_MAX

HEAD_MAX = 8192
"""Kept of an unfinished event: name, namespace and uid stand before the version, and in custom
resources, whose keys are sorted, annotations and managed fields too."""
_VERSION = b'"resourceVersion":"'
_CONTINUE = b'"continue":"'
_END = b"k8s.io/initial-events-end"
_BOOKMARK = b'{"type":"BOOKMARK"'
_ERROR = b'{"type":"ERROR"'
_FIXED64, _FIXED32 = 1, 5


class Passed(NamedTuple):
    """What went by in one chunk. `error` is the code of an ERROR event, -1 without one."""

    events: int = 0
    version: str = ""  # of the last event; "" if none was found
    is_synced: bool = False  # the initial events have ended
    error: int = -1


class Unfinished(NamedTuple):
    """The event that has not wholly arrived: its head, and how many bytes are not kept."""

    head: bytes = b""
    dropped: int = 0


NOTHING = Unfinished()


def scan_chunk(data: bytes, rest: Unfinished) -> tuple[Passed, Unfinished]:
    """Look at bytes of a stream; its encoding shows in the first byte of an event.

    Raises RemoteProtocolError for an event that a reader would give up.
    """
    first = rest.head or data
    if first[:1] == b"{":
        return _scan_lines(rest.head + data if rest.head else data, rest.dropped)
    return _scan_frames(data, rest)


def scan_list(body: bytes) -> tuple[str, str]:
    """Return the version of a LIST and the token of its next page."""
    if body.startswith(MAGIC):
        listed = _field(body, len(MAGIC), 2)
        meta = _field(body, listed[0], 1)
        return _text(body, meta[0], 2), _text(body, meta[0], 3)
    head = body[: body.find(b'"items":')] if b'"items":' in body else body
    return _quoted(head, _VERSION), _quoted(head, _CONTINUE)


def _scan_lines(data: bytes, dropped: int) -> tuple[Passed, Unfinished]:
    """Look at lines of JSON."""
    end = data.rfind(b"\n")
    if end < 0:
        check_length(len(data) + dropped)
        return Passed(), Unfinished(data[:HEAD_MAX], dropped + max(0, len(data) - HEAD_MAX))
    check_length(data.find(b"\n") + dropped)
    left = data[end + 1 :]
    rest = Unfinished(left[:HEAD_MAX], max(0, len(left) - HEAD_MAX)) if left else NOTHING
    start = data.rfind(b"\n", 0, end) + 1
    events = data.count(b"\n")
    last = data[start : min(end, start + HEAD_MAX)]
    if last.startswith(_ERROR):
        return Passed(events, error=_status_code(data[start:end])), rest
    is_synced = _END in data and any(
        line.startswith(_BOOKMARK) and _END in line for line in data[:end].split(b"\n")
    )
    return Passed(events, _quoted(last, _VERSION), is_synced), rest


def _scan_frames(data: bytes, rest: Unfinished) -> tuple[Passed, Unfinished]:
    """Look at frames of protobuf."""
    events, last, is_synced = 0, b"", False
    at = 0
    if rest.dropped:
        size = LENGTH_BYTES + int.from_bytes(rest.head[:LENGTH_BYTES], "big")
        missing = size - len(rest.head) - rest.dropped
        if len(data) < missing:
            return Passed(), Unfinished(rest.head, rest.dropped + len(data))
        events, last, at = 1, rest.head, missing
    elif rest.head:
        data = rest.head + data
    while len(data) - at >= LENGTH_BYTES:
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        check_length(size)
        end = at + LENGTH_BYTES + size
        if end > len(data):
            break
        last = data[at : min(end, at + HEAD_MAX)]
        is_synced = is_synced or (_END in last and _text(last, LENGTH_BYTES, 1) == "BOOKMARK")
        events += 1
        at = end
    left = len(data) - at
    rest = Unfinished(data[at : at + HEAD_MAX], max(0, left - HEAD_MAX)) if left else NOTHING
    if not events:
        return Passed(), rest
    if _text(last, LENGTH_BYTES, 1) == "ERROR":
        return Passed(events, error=_number(last, _object(last)[0], 6)), rest
    meta = _field(last, _object(last)[0], 1)
    return Passed(events, _text(last, meta[0], 6), is_synced), rest


def _object(frame: bytes) -> tuple[int, int]:
    """Return where the object of a WatchEvent begins and ends."""
    extension = _field(frame, LENGTH_BYTES, 2)
    raw = _field(frame, extension[0], 1)
    return _field(frame, raw[0] + len(MAGIC), 2)


def _field(data: bytes, at: int, wanted: int) -> tuple[int, int]:
    """Return where a length-delimited field begins and ends, looking from `at` on.

    Fields stand in order of their numbers; (len, len) when there is none of that number.
    """
    size = len(data)
    while at < size:
        tag, at = _varint(data, at)
        kind = tag & 7
        if tag >> 3 > wanted:
            break
        if kind == BYTES:
            length, at = _varint(data, at)
            if tag >> 3 == wanted:
                return at, at + length
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            _, at = _varint(data, at)
    return size, size


def _number(data: bytes, at: int, wanted: int) -> int:
    """Return a varint field, 0 when there is none."""
    size = len(data)
    while at < size:
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag >> 3 == wanted:
            return value
        if tag & 7 == BYTES:
            at += value
    return 0


def _text(data: bytes, at: int, wanted: int) -> str:
    start, end = _field(data, at, wanted)
    return data[start:end].decode(errors="replace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; cut off, or above ten digits, it is what came so far."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > SHIFT_MAX:
            break
    return value, at


def _quoted(line: bytes, key: bytes) -> str:
    start = line.find(key)
    if start < 0:
        return ""
    start += len(key)
    end = line.find(b'"', start)
    return line[start:end].decode(errors="replace") if end >= 0 else ""


def _status_code(line: bytes) -> int:
    try:
        code = orjson.loads(line)["object"]["code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return code if isinstance(code, int) else 0
