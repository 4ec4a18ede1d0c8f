"""How the events of a watch follow each other in its stream, wherever chunks are cut.

Source: apimachinery/pkg/util/framer/framer.go: JSON values one a line, or a length of four bytes
before each protobuf message.
"""

from collections.abc import Callable

LENGTH_BYTES = 4

Split = Callable[[bytes], tuple[list[bytes], bytes]]
"""Return the whole events in what came so far, and the beginning of one that is not whole."""


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Split a stream of JSON."""
    if data.endswith(b"\n") and data.count(b"\n") == 1:
        return [data], b""
    *lines, rest = data.split(b"\n")
    return lines, rest


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Split a stream of protobuf."""
    frames = []
    at, end = 0, len(data)
    while end - at >= LENGTH_BYTES:
        begin = at + LENGTH_BYTES
        stop = begin + int.from_bytes(data[at:begin], "big")
        if stop > end:
            break
        frames.append(data[begin:stop])
        at = stop
    return frames, data[at:]
