"""What crosses the seam between the reactor and the transport: requests out, responses in."""

import enum
from typing import NamedTuple

MALFORMED: tuple[type[Exception], ...] = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,  # of JSON that nests too deep
)
"""What reading raises of a body that is not what it should be."""


class ContentType(enum.IntEnum):
    """What a request body is; the transport holds the header value of each."""

    NONE = 0
    JSON = 1
    STRATEGIC_MERGE_PATCH = 2
    PROTOBUF = 3


class Failure(enum.IntEnum):
    """Why a request has no HTTP status; the value stands in `Response.failure`."""

    NONE = 0
    DIAL = 1  # nobody listens: the connection was refused
    LOST = 2  # the connection ended: reset, EOF, GOAWAY above our stream; also while it was made
    RESET = 3  # the server reset this stream, or its answer broke off
    TIMEOUT = 4  # no whole answer in the request's time
    CANCELLED = 5  # we gave the request up
    SILENT = 6  # the connection was given up: no answer to a ping
    UNREACHABLE = 7  # no connection or no TLS handshake in time
    UNUSABLE = 8  # no connection for another reason: TLS, no h2, host not found
    OVERSIZED = 9  # we gave the answer up: it is larger than any that we ask for
    OWN_LIMIT = 10  # it never left: fleet or its machine has no more connections, files or ports


class Cut(enum.IntEnum):
    """What a partition does to the connections of an identity."""

    RESET = 0  # those that are open end, new ones are refused
    INBOUND = 1  # nothing comes from the server
    OUTBOUND = 2  # nothing gets to the server
    BLACK_HOLE = 3  # nothing passes in either direction


def swallows_input(cut: Cut | None) -> bool:
    """Return whether what the server sends does not come."""
    return cut is Cut.INBOUND or cut is Cut.BLACK_HOLE


def swallows_output(cut: Cut | None) -> bool:
    """Return whether what is sent does not get to the server."""
    return cut is Cut.OUTBOUND or cut is Cut.BLACK_HOLE


class Request(NamedTuple):
    """One API request. `path` carries the query; `user` is impersonated on a shared connection."""

    method: bytes
    path: bytes
    body: bytes = b""
    content_type: ContentType = ContentType.NONE
    user: bytes = b""
    stream: bool = False  # a watch: chunks are delivered as they come
    timeout_ns: int = 0  # until the whole answer; 0 for none; for a stream until its headers


class Response(NamedTuple):
    """The answer, or why there is none. `code` is 0 unless `failure` is NONE."""

    code: int
    body: bytes
    sent_ns: int  # the flush that wrote the last byte of the request, as it began
    arrived_ns: int  # the read that brought the last byte of the answer
    retry_after_s: int = -1  # the header, -1 when absent
    failure: Failure = Failure.NONE
    detail: str = ""  # one line for people, on failures

    @property
    def took_us(self) -> int:
        """Return how long it was under way; 0 for a request that never left."""
        return (self.arrived_ns - self.sent_ns) // 1000 if self.sent_ns else 0


class StreamOpened(NamedTuple):
    """A watch was accepted: its 200 arrived. Chunks follow, then one `Response` ends it."""

    sent_ns: int
    arrived_ns: int

    @property
    def took_us(self) -> int:
        """Return how long it took until the server agreed."""
        return (self.arrived_ns - self.sent_ns) // 1000
