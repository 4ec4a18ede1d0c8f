"""Turns a reactor on the asyncio loop: at 20 ms edges, and whenever the inbox fills.

The edges are just after the multiples of 20 ms of the clock by which timers are due, so that what
is due at a full tenth of a second (`kubelet/node/node_lease.py`) is taken when it is.

Timers are taken at edges only, so that those of 20 ms leave in one write a connection. Were they
taken with each batch of answers too, a renewal's answer would send the next renewal, and that one's
the next, with a wake-up of the process for each.

Nothing else in the process runs per node: one timer handle, one `call_soon` per batch.
"""

import asyncio

from fleet.clock import TICK_NS
from fleet.reactor.reactor import Reactor

TICK_S = TICK_NS / 1e9
AFTER_S = 0.002
"""An edge is so much later than a multiple: the loop's timers know milliseconds only."""


class ReactorLoop:
    """Binds one reactor to the running loop until `stop`."""

    def __init__(self, reactor: Reactor, loop: asyncio.AbstractEventLoop) -> None:
        self._reactor = reactor
        self._loop = loop
        self._edge: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._started_s = 0.0
        self._ticks = 0
        self._is_running = False
        self._is_behind = False  # the last turn that took timers may have left some

    def start(self) -> None:
        self._is_running = True
        self._started_s = (self._loop.time() // TICK_S - 1) * TICK_S + AFTER_S
        self._arm()

    def stop(self) -> None:
        self._is_running = False
        for handle in (self._edge, self._soon):
            if handle is not None:
                handle.cancel()
        self._edge = self._soon = None

    def wake(self) -> None:
        """Turn soon: the inbox has something. Called by the transport, once a batch."""
        if self._soon is None and self._is_running:
            self._soon = self._loop.call_soon(self._on_ready)

    def _on_ready(self) -> None:
        self._soon = None
        self._turn(timers=self._is_behind)

    def _on_edge(self) -> None:
        self._turn(timers=True)
        self._arm()

    def _turn(self, *, timers: bool) -> None:
        more = self._reactor.turn(timers=timers)
        if self._soon is not None and not self._reactor.inbox:
            self._soon.cancel()  # what woke us came during this turn, which has seen to it
            self._soon = None
        if timers:
            self._is_behind = more
        if more:
            self.wake()

    def _arm(self) -> None:
        """Aim at the next edge of the grid, so that a slow turn does not move all later ones."""
        now_s = self._loop.time()
        self._ticks = max(self._ticks + 1, int((now_s - self._started_s) / TICK_S) + 1)
        self._edge = self._loop.call_at(self._started_s + self._ticks * TICK_S, self._on_edge)
