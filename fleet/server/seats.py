"""What goes on at once in the servers of a process: counted, and refused over its limit.

A seat is taken before anything begins, so that what is refused has cost one request.
"""

import contextlib
from collections.abc import Callable, Iterator

SESSIONS_MAX = 2_000
"""exec, attach, run and port-forward; each may hold 1 MB for a client that does not read."""
LOGS_MAX = 2_000
"""Logs that are being read; one that is followed stays until its client goes."""
FORWARDED_MAX = 10_000
"""Connections to ports of pods, of all clients that forward."""


class Seats:
    """So many of a kind at once; `on_full` learns of each that is refused."""

    __slots__ = ("_on_full", "most", "refused", "taken")

    def __init__(self, most: int, on_full: Callable[[], object] = lambda: None) -> None:
        self._on_full = on_full
        self.most = most
        self.taken = 0
        self.refused = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[bool]:
        """Hold a seat while the block runs; yields whether there was one."""
        if not self.take():
            yield False
            return
        try:
            yield True
        finally:
            self.give_back()

    def take(self) -> bool:
        """Take a seat; return whether there was one."""
        if self.taken >= self.most:
            self.refused += 1
            self._on_full()
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        """Leave a seat."""
        assert self.taken > 0, self
        self.taken -= 1
