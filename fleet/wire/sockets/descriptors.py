"""The open descriptors: whose each is, what epoll watches it for, and when to look at it."""

from collections.abc import Iterator

from fleet.wire.sockets.connection import Connection
from fleet.wire.sockets.deadlines import Deadlines
from fleet.wire.sockets.poller import Poller


class Descriptors:
    """Those of all connections of a transport, also of those that are being made."""

    __slots__ = ("_deadlines", "by_fd", "poller")

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.by_fd: dict[int, Connection] = {}
        self._deadlines = Deadlines()

    def add(self, connection: Connection) -> None:
        """Take a connection whose dial has begun; it is looked at when that should be over."""
        self.by_fd[connection.fd] = connection
        self.look_at(connection, connection.limit_ns)

    def look_at(self, connection: Connection, due_ns: int) -> None:
        """Look at a connection then, and not when it was due before."""
        connection.look_s = self._deadlines.set(connection.fd, due_ns)

    def due(self, now_ns: int) -> Iterator[Connection]:
        """Yield those that are to be looked at."""
        for second, fds in self._deadlines.due(now_ns):
            for fd in fds:
                connection = self.by_fd.get(fd)
                if connection is not None and connection.look_s == second:
                    yield connection

    def discard(self, connection: Connection) -> None:
        """Close a descriptor; epoll forgets it with that."""
        self.by_fd.pop(connection.fd, None)
        connection.close()
