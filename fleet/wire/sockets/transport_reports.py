"""What a transport tells of its connections: into the inbox, and as counters."""

from dataclasses import dataclass
from typing import NamedTuple

from fleet.wire.http2.messages import Failure


class ConnectionUp(NamedTuple):
    """A pool's connection is ready."""

    at_ns: int


class ConnectionDown(NamedTuple):
    """A pool's connection is gone, or a dial failed."""

    at_ns: int
    failure: Failure
    detail: str


@dataclass(slots=True)
class TransportStats:
    """What the transport did: plain counters."""

    connections: int = 0  # open now
    dials: int = 0
    dial_failures: int = 0
    goaways: int = 0
    resets: int = 0  # streams that the server reset
    retries: int = 0  # requests sent again, unseen by the server
    requests: int = 0
    pings_lost: int = 0
    breaches: int = 0  # connections that we closed because the server broke HTTP/2
    closed_slow: int = 0  # watches that the server ended early, much unread, our reading late
    bytes_in: int = 0
    bytes_out: int = 0
