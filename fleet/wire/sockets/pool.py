"""A pool: the connections of one identity, normally one, and what waits for room on them."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from fleet.wire.http2.messages import Failure
from fleet.wire.http2.streams import Message, Stream
from fleet.wire.sockets.connection import Connection, TlsContext


class PoolLimits(NamedTuple):
    """How much one pool may have; whoever lets many nodes share a pool gives it more."""

    connections: int = 64
    """Of `STREAMS_DEFAULT` streams each, more of fewer; beyond it requests wait."""
    waiting: int = 10_000
    """Requests that have no connection yet; beyond it they fail."""


DEFAULT_LIMITS = PoolLimits()


@dataclass(slots=True, eq=False)
class Pool:
    """Like Go's client: a further connection only when the others are full or going away."""

    number: int
    user: bytes
    context: TlsContext
    limits: PoolLimits = DEFAULT_LIMITS
    connections: tuple[Connection, ...] = ()  # those that are up, also draining ones
    dialing: Connection | None = None
    waiting: deque[Stream] | tuple[()] = ()
    delayed: tuple[tuple[int, Stream], ...] = ()  # and when each is to be sent again
    failures: int = 0
    retry_ns: int = 0

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
        if len(self.waiting) >= self.limits.waiting:
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

    def take_delayed(self, now_ns: int) -> list[Stream]:
        """Take what is to be sent again by now and still wanted."""
        due = [stream for at_ns, stream in self.delayed if at_ns <= now_ns and not stream.done]
        self.delayed = tuple(each for each in self.delayed if each[0] > now_ns and not each[1].done)
        return due

    def fail_waiting(self, failure: Failure, detail: str, now_ns: int) -> list[Message]:
        """Give up what waits; return the answers to it."""
        answers = []
        while (stream := self.next_waiting()) is not None:
            answers.append(stream.fail(failure, detail, now_ns))
        return answers

    def find(self, token: object) -> Stream | None:
        """Return the open or waiting request of a token."""
        for stream in self.requests():
            if stream.token == token and not stream.done:
                return stream
        return None

    def requests(self) -> list[Stream]:
        """Return what is open, what waits, and what is to be sent again."""
        found = [*self.waiting, *(stream for _, stream in self.delayed)]
        for connection in self.connections:
            found += connection.http2.streams.values()
        return found
