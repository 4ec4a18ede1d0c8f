"""What a server in a container is: the ports it listens on, what it answers, what is kept of it.

    server_of(container) -> Server -> answer(Site, port, HttpRequest) -> HttpReply

What one was told and said is kept in a `ServerRecord` from its first request on, as long as its
container is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.runtime.http_message import HttpReply, HttpRequest

LINES_MAX = 10_000
"""What is kept of what a server said; then the older half goes, as a rotated log does."""


@dataclass(slots=True, eq=False)
class ServerRecord:
    """What a server said since its start, and what it was told."""

    lines: list[tuple[int, str]] = field(default_factory=list)  # since when it runs, and the text
    dropped: int = 0
    values: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def say(self, after_ns: int, text: str) -> None:
        """Write a line."""
        self.lines.append((after_ns, text))
        if len(self.lines) > LINES_MAX:
            del self.lines[: LINES_MAX // 2]
            self.dropped += LINES_MAX // 2


class ServerRecords:
    """Those of a node, by pod, container and attempt."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], ServerRecord] = {}

    def of(self, uid: str, container: str, attempt: int) -> ServerRecord:
        """Return the record of a container, made by its first request.

        That of the container before stays, for its log.
        """
        found = self._found.get((uid, container, attempt))
        if found is None:
            found = self._found[uid, container, attempt] = ServerRecord()
            self._found.pop((uid, container, attempt - 2), None)
        return found

    def known(self, uid: str, container: str, attempt: int) -> ServerRecord | None:
        """Return the record of a container, None if nobody asked it for anything."""
        return self._found.get((uid, container, attempt))

    def forget(self, uid: str) -> None:
        """Drop those of a pod."""
        for key in [key for key in self._found if key[0] == uid]:
            del self._found[key]


class Site(NamedTuple):
    """What a server finds around it when it is asked."""

    hostname: str
    record: ServerRecord
    after_ns: int  # since its container started
    wall_ns: int
    read: Callable[[str], str | None]
    run: Callable[[str], tuple[str, int]]
    """Run a script; return what it prints and its exit code."""

    def log(self, text: str) -> None:
        """Write a line into the container's log."""
        self.record.say(self.after_ns, text)


Answer = Callable[[Site, int, HttpRequest], HttpReply]


class Server(NamedTuple):
    """What listens in a container."""

    answer: Answer
    tcp: tuple[int, ...]
    raw: bool = False  # says its host name to whoever connects, and hangs up
    greeting: tuple[str, ...] = ()  # what its log begins with
