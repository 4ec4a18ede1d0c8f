"""A pool: the connections of one identity, normally one, and what waits for room on them."""

from collections import deque

from fleet.wire.http2.streams import Stream
from fleet.wire.sockets.connection import Connection, TlsContext

WAITING_MAX = 10_000  # requests of one pool that have no connection yet
CONNECTIONS_MAX = 64  # of one pool; beyond it requests wait


class Pool:
    """Like Go's client: a further connection only when the others are full or going away."""

    __slots__ = (
        "connections",
        "context",
        "dialing",
        "failures",
        "number",
        "retry_ns",
        "user",
        "waiting",
    )

    def __init__(self, number: int, user: bytes, context: TlsContext) -> None:
        self.number = number
        self.user = user
        self.context = context
        self.connections: tuple[Connection, ...] = ()  # those that are up, also draining ones
        self.dialing: Connection | None = None
        self.waiting: deque[Stream] | tuple[()] = ()
        self.failures = 0
        self.retry_ns = 0

    def with_room(self) -> Connection | None:
        """Return a connection that takes one more stream."""
        for connection in self.connections:
            if connection.http2.has_room():
                return connection
        return None

    def wait(self, stream: Stream) -> bool:
        """Queue a request; False if too many wait."""
        if not self.waiting:
            self.waiting = deque((stream,))
            return True
        if len(self.waiting) >= WAITING_MAX:
            return False
        self.waiting.append(stream)
        return True

    def next_waiting(self) -> Stream | None:
        """Take the oldest request that is still wanted."""
        while self.waiting:
            stream = self.waiting.popleft()
            if not stream.done:
                return stream
        self.waiting = ()
        return None

    def find(self, token: object) -> Stream | None:
        """Return the open or waiting request of a token."""
        for stream in self.requests():
            if stream.token == token and not stream.done:
                return stream
        return None

    def requests(self) -> list[Stream]:
        """Return what is open and what waits."""
        found = [*self.waiting]
        for connection in self.connections:
            found += connection.http2.streams.values()
        return found
