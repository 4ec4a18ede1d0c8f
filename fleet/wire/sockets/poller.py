"""One epoll for all connections, behind a gate that the event loop watches.

    the loop --watches for good--> gate --watches once, when armed--> epoll --> the connections

    ARMED --something is ready: handle it--> RESTING --COALESCE_S: handle what came--> ARMED
    ARMED --requests were written (`rest`)--> RESTING
    the same, if the loop of the process lets it rest longer--> ASLEEP --`on_edge`: handle what
    came--> ASLEEP, or ARMED once nothing came

A wake-up of the process costs 50 us and more, as much as a request; so after a flush and after a
wake-up we rest for 2 ms, or until the next edge, and take together what came by then. The gate
makes arming cheap: to put an epoll into another, Linux walks all its descriptors (1.3 ms for
5,000), to modify it does not.

Where there is no epoll (macOS) `selectors` stands in, and a timer for the gate: ARMED looks every
COALESCE_S.
"""

import asyncio
import contextlib
import select
import selectors
from collections.abc import Callable

from fleet.clock import TICK_NS

COALESCE_S = 0.002
DRAIN_NS_MAX = 10_000_000  # then the loop's timers have their turn
EVENTS_MAX = 32  # handled between two looks at the clock
BEHIND_NS = 100_000_000  # data that waited this long: a server may have given up on us

READ = 1  # select.EPOLLIN
WRITE = 4  # select.EPOLLOUT
HAS_EPOLL = hasattr(select, "epoll")


class Selected:
    """What epoll does for the poller, by the best means that `selectors` finds."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self.closed = False

    def register(self, fd: int, mask: int) -> None:
        """Watch a descriptor, perhaps one whose number was another's before."""
        self.forget(fd)
        self._selector.register(fd, _selected(mask))

    def modify(self, fd: int, mask: int) -> None:
        """Watch it for other things."""
        self._selector.modify(fd, _selected(mask))

    def forget(self, fd: int) -> None:
        """Watch it no more, open or closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    unregister = forget

    def poll(self, timeout_s: float, events_max: int) -> list[tuple[int, int]]:
        """Return what is ready; what is left out is ready the next time."""
        found = self._selector.select(timeout_s)[:events_max]
        return [
            (key.fd, READ * bool(mask & selectors.EVENT_READ) | WRITE * (mask >> 1))
            for key, mask in found
        ]

    def close(self) -> None:
        """Give everything back."""
        self._selector.close()
        self.closed = True


def _selected(mask: int) -> int:
    return selectors.EVENT_READ * bool(mask & READ) | selectors.EVENT_WRITE * bool(mask & WRITE)


class Poller:
    """Calls `handle(fd, mask)` for what is ready, then `drained()` once."""

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
        self._gate = select.epoll() if HAS_EPOLL else None
        self._epoll = Selected() if self._gate is None else select.epoll()
        self._fileno = -1 if isinstance(self._epoll, Selected) else self._epoll.fileno()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._sleeps = False  # may rest until the next edge
        self._is_asleep = False  # the gate is shut, and no timer will open it
        self._limited = False  # the last drain left something
        self._limited_since_ns = 0
        self.behind_ns = 0  # when reading last lagged, 0 for never
        if self._gate is None:
            self._arm()
        else:
            self._gate.register(self._fileno, READ | select.EPOLLONESHOT)
            loop.add_reader(self._gate.fileno(), self._on_gate)

    def register(self, fd: int, mask: int) -> None:
        """Watch a descriptor."""
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        """Watch it for other things."""
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor that is about to be closed."""
        self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Forget a descriptor that is closed, as epoll has done already."""
        if isinstance(self._epoll, Selected):
            self._epoll.forget(fd)

    def close(self) -> None:
        """Give everything back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gate is not None:
            self._loop.remove_reader(self._gate.fileno())
            self._gate.close()
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
        """Remember when data last waited long: a late wake-up, or drains that hit their limit."""
        if self._due_ns and begun_ns - self._due_ns > BEHIND_NS:
            self.behind_ns = begun_ns
        if not self._limited:
            self._limited_since_ns = 0
        elif not self._limited_since_ns:
            self._limited_since_ns = begun_ns
        elif begun_ns - self._limited_since_ns > BEHIND_NS:
            self.behind_ns = begun_ns

    def rest(self) -> None:
        """Look again in COALESCE_S and not before: answers to a flush are on their way."""
        if self._timer is None and not self._is_asleep:
            if self._gate is not None:
                self._gate.modify(self._fileno, 0)
            self._pause()

    def on_edge(self, *, sleeps: bool) -> None:
        """Handle what came since the last edge, if nothing was read since; maybe sleep on."""
        self._sleeps = sleeps
        if not self._is_asleep:
            return
        self._is_asleep = False
        found = 0
        try:
            found = self.drain()
        finally:
            if self._limited:
                self._go_on(0)
            elif found and sleeps:
                self._fall_asleep()
            else:
                self._go_on(None)

    def _pause(self) -> None:
        if self._sleeps:
            self._fall_asleep()
        else:
            self._start_timer(COALESCE_S)

    def _fall_asleep(self) -> None:
        self._is_asleep = True
        self._due_ns = self._now_ns() + TICK_NS

    def _arm(self) -> None:
        if self._gate is None:
            self._start_timer(COALESCE_S)
        else:
            self._gate.modify(self._fileno, READ | select.EPOLLONESHOT)

    def _start_timer(self, pause_s: float) -> None:
        self._due_ns = self._now_ns() + int(pause_s * 1e9)
        self._timer = self._loop.call_later(pause_s, self._on_timer)

    def _on_gate(self) -> None:
        assert self._gate is not None, "only a gate calls"
        if self._gate.poll(0) and self._timer is None:  # the poll shuts the gate
            self._due_ns = 0
            try:
                self.drain()
            finally:  # a bug in one connection must not leave the others unread
                if self._sleeps and not self._limited:
                    self._fall_asleep()
                else:
                    self._go_on(COALESCE_S)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.drain()
        finally:
            self._go_on(None)

    def _go_on(self, pause_s: float | None) -> None:
        """Look again at once if something was left, else after a pause, else when woken."""
        if self._epoll.closed or self._timer is not None:
            return
        if self._limited:
            self._start_timer(0)
        elif pause_s is not None:
            self._start_timer(pause_s)
        else:
            self._arm()
