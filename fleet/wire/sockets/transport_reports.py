"""What a transport tells of its connections: into the inbox, and as counters."""

import errno
import socket
from collections import Counter
from dataclasses import dataclass, field
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


STREAMS = "streams to the API server"
QUEUE = "requests that wait for a connection"
OPEN_FILES = "open files"
LOCAL_PORTS = "local ports"
SOCKET_MEMORY = "memory for sockets"
_LIMITS = {
    errno.EMFILE: OPEN_FILES,
    errno.ENFILE: OPEN_FILES,
    errno.EADDRNOTAVAIL: LOCAL_PORTS,
    errno.ENOBUFS: SOCKET_MEMORY,
    errno.ENOMEM: SOCKET_MEMORY,
}


def own_limit(error: BaseException | None, family: int = socket.AF_INET) -> str:
    """Return which limit of this machine an error is, "" if it is none.

    Of IPv6, "cannot assign requested address" may also mean that the machine has no such address.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None or (number == errno.EADDRNOTAVAIL and family != socket.AF_INET):
        return ""
    return _LIMITS.get(number, "")


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
    own_limits: Counter[str] = field(default_factory=Counter)
    """How often a limit of fleet or of its machine was hit: the server had no part in it."""
