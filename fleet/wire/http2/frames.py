"""HTTP/2 frames: their layout, the constants, and the limits we set. Source: RFC 9113."""

import enum
import struct

from fleet.errors import RemoteProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20
STREAMS_DEFAULT = 100  # until the peer's SETTINGS say otherwise, as Go's client assumes
STREAM_ID_MAX = 2**31 - 1
WINDOW_DEFAULT = 65535
WINDOW_MAX = 2**31 - 1
CONNECTION_WINDOW_GAIN = 2**30
FRAME_BYTES_DEFAULT = 16384  # also what we accept: we announce no other
HEADER_BLOCK_BYTES_MAX = 65536
BODY_BYTES_MAX = 2**28
"""Of one answer. The largest that fleet asks for is a LIST: one at version 0 comes whole out of the
API server's cache, whatever its limit; 5,000 Nodes of 10 to 20 KB are 50 to 100 MB.
Go's clients take any size (client-go/rest/request.go, transformResponse)."""
OVERSIZED = f"an answer above {BODY_BYTES_MAX >> 20} MiB"
OUT_BYTES_MAX = 2**20  # of replies to a peer that asks and does not read

HEAD = struct.Struct(">BHBBL")
SETTING = struct.Struct(">HL")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


OPENING = (
    PREFACE
    + frame(
        SETTINGS,
        0,
        0,
        SETTING.pack(1, 0) + SETTING.pack(2, 0) + SETTING.pack(4, WINDOW_MAX),
    )
    + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", CONNECTION_WINDOW_GAIN))
)


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends. Source: RFC 9113, 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def error_name(code: int) -> str:
    """Name an error code, also an unknown one."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def unpad(payload: memoryview) -> memoryview:
    """Return what a padded frame carries."""
    if len(payload) == 0 or payload[0] >= len(payload):
        raise RemoteProtocolError("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def check_size(payload: bytes, size: int) -> None:
    """Refuse a frame whose size is not the only one allowed."""
    if len(payload) != size:
        raise RemoteProtocolError("frame of wrong size", ErrorCode.FRAME_SIZE_ERROR)
