"""One epoll for all connections, woken through one reader of the event loop.

    armed: the loop watches our epoll --something is ready--> draining --COALESCE_S--> draining ...
    draining finds nothing --> armed

While answers keep coming, the loop is woken every 2 ms and not for each of them; the first one
after a pause is handled at once. A reader of the loop per descriptor would cost a handle and a
closure each: 10,000 of them are 9 MB, and every answer would be a turn of the loop.
"""

import asyncio
import select
from collections.abc import Callable

COALESCE_S = 0.002
DRAIN_NS_MAX = 10_000_000  # then the loop's timers have their turn
EVENTS_MAX = 32  # handled between two looks at the clock
BEHIND_NS = 100_000_000  # data that waited this long: a server may have given up on us

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Poller:
    """Calls `handle(fd, mask)` for what is ready, then `drained()` once."""

    __slots__ = (
        "_armed",
        "_drained",
        "_due_ns",
        "_epoll",
        "_handle",
        "_limited",
        "_limited_since_ns",
        "_loop",
        "_now_ns",
        "_timer",
        "behind_ns",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        handle: Callable[[int, int], None],
        drained: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._handle = handle
        self._drained = drained
        self._epoll = select.epoll()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._limited = False  # the last drain left something
        self._limited_since_ns = 0
        self.behind_ns = 0  # when reading last lagged, 0 for never
        self._armed = False
        self._arm()

    def register(self, fd: int, mask: int) -> None:
        """Watch a descriptor."""
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        """Watch it for other things."""
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor that is about to be closed."""
        self._epoll.unregister(fd)

    def close(self) -> None:
        """Give everything back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._disarm()
        self._epoll.close()

    def drain(self) -> int:
        """Handle what is ready, for a limited time; return how many events there were.

        A handler reads little and relies on being called again, so ask until nothing is ready.
        """
        begun_ns = self._now_ns()
        handle, poll, found = self._handle, self._epoll.poll, 0
        self._limited = False
        while events := poll(0, EVENTS_MAX):
            for fd, mask in events:
                handle(fd, mask)
            found += len(events)
            if self._now_ns() - begun_ns > DRAIN_NS_MAX:
                self._limited = True
                break
        self._note_lag(begun_ns)
        if found:
            self._drained()
        return found

    def _note_lag(self, begun_ns: int) -> None:
        """Remember when data last waited long, by a late wake-up or by drains that hit the limit."""
        if self._due_ns and begun_ns - self._due_ns > BEHIND_NS:
            self.behind_ns = begun_ns
        if not self._limited:
            self._limited_since_ns = 0
        elif not self._limited_since_ns:
            self._limited_since_ns = begun_ns
        elif begun_ns - self._limited_since_ns > BEHIND_NS:
            self.behind_ns = begun_ns

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.add_reader(self._epoll.fileno(), self._wake)

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            self._loop.remove_reader(self._epoll.fileno())

    def _wake(self) -> None:
        self._disarm()
        self._due_ns = 0
        self._turn()

    def _turn(self) -> None:
        self._timer = None
        if self.drain() == 0:
            self._due_ns = 0
            self._arm()
        elif not self._epoll.closed:
            pause_s = 0 if self._limited else COALESCE_S
            self._due_ns = self._now_ns() + int(pause_s * 1e9)
            self._timer = self._loop.call_later(pause_s, self._turn)
