"""How the events of a watch follow each other in its stream, wherever chunks are cut.

What has come of an unfinished event is kept as it grows, and looked at once: each byte is copied
and searched a fixed number of times, however small the chunks are.
Source: apimachinery/pkg/util/framer/framer.go: JSON values one a line, or a length of four bytes
before each protobuf message. apimachinery/pkg/runtime/serializer/streaming/streaming.go, NewDecoder
and ErrObjectTooLarge, for the longest event.
"""

from collections.abc import Callable

from fleet.errors import RemoteProtocolError

MAGIC = b"k8s\x00"  # what an object in protobuf begins with
LENGTH_BYTES = 4  # big-endian, before each frame
EVENT_BYTES_MAX = 16 * 2**20  # streaming.go, NewDecoder: maxBytes; ErrObjectTooLarge beyond
TOO_LONG = f"a watch event above {EVENT_BYTES_MAX >> 20} MiB"

Partial = bytes | bytearray
"""The beginning of an event that is not whole: b"" between events, so that nothing is held then."""

Split = Callable[[Partial, bytes], tuple[list[bytes], Partial]]
"""Return the events that a chunk completes, and the beginning of the next one.

The first argument is what the call before left; it may be changed. Raises RemoteProtocolError for
an event that is too long.
"""


def split_lines(rest: Partial, data: bytes) -> tuple[list[bytes], Partial]:
    """Split a stream of JSON."""
    if rest:
        end = data.find(b"\n")
        if end < 0:
            return [], _grown(rest, data)
        check_length(len(rest) + end)
        first = b"".join((rest, data[: end + 1]))
        lines, rest = split_lines(b"", data[end + 1 :])
        return [first, *lines], rest
    if data.endswith(b"\n") and data.count(b"\n") == 1:
        return [data], b""
    *lines, left = data.split(b"\n")
    return lines, left


def split_frames(rest: Partial, data: bytes) -> tuple[list[bytes], Partial]:
    """Split a stream of protobuf."""
    frames = []
    at = 0
    if len(rest) >= LENGTH_BYTES:
        at = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big") - len(rest)
        if at > len(data):
            return [], _grown(rest, data)
        frames.append(b"".join((rest[LENGTH_BYTES:], data[:at])))
    elif rest:
        data = b"".join((rest, data))
    end = len(data)
    while end - at >= LENGTH_BYTES:
        begin = at + LENGTH_BYTES
        size = int.from_bytes(data[at:begin], "big")
        check_length(size)
        if begin + size > end:
            break
        at = begin + size
        frames.append(data[begin:at])
    return frames, data[at:]


def check_length(size: int) -> None:
    """Refuse an event that is too long, as soon as its length is known."""
    if size > EVENT_BYTES_MAX:
        raise RemoteProtocolError(TOO_LONG)


def _grown(rest: Partial, data: bytes) -> bytearray:
    check_length(len(rest) + len(data) - LENGTH_BYTES)
    if isinstance(rest, bytes):
        rest = bytearray(rest)
    rest += data
    return rest
