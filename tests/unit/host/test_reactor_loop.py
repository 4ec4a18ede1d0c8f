"""The driver against a loop whose time stands still."""

import asyncio
from collections.abc import Callable
from typing import cast

from world.sim_clock import SimClock

from fleet.clock import Draws
from fleet.host.reactor_loop import AFTER_S, TICK_S, ReactorLoop
from fleet.reactor.reactor import Reactor
from fleet.wire.api.watch import Wire


class Handle:
    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class StillLoop:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.edges: list[Handle] = []
        self.soon: list[Handle] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self.edges.append(Handle(when, callback))
        return self.edges[-1]

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        self.soon.append(Handle(0, callback))
        return self.soon[-1]


class CountedReactor(Reactor):
    def __init__(self) -> None:
        self.turns = 0
        self.more = 0
        self.timers: list[bool] = []  # whether they were taken, of each turn

    def turn(self, *, timers: bool = True) -> bool:
        self.turns += 1
        self.timers.append(timers)
        self.more -= 1
        return self.more >= 0


def make() -> tuple[ReactorLoop, CountedReactor, StillLoop]:
    reactor, loop = CountedReactor(), StillLoop()
    driver = ReactorLoop(reactor, cast("asyncio.AbstractEventLoop", loop))
    driver.start()
    return driver, reactor, loop


def test_it_turns_at_every_edge_of_the_grid() -> None:
    _, reactor, loop = make()
    for tick in range(1, 4):
        assert abs(loop.edges[-1].when - (100 + AFTER_S + (tick - 1) * TICK_S)) < 1e-9
        loop.now_s = loop.edges[-1].when
        loop.edges[-1].action()
        assert reactor.turns == tick


def test_a_slow_turn_does_not_move_later_edges() -> None:
    _, _, loop = make()
    loop.now_s += 3.3 * TICK_S
    loop.edges[-1].action()
    assert abs(loop.edges[-1].when - (100 + AFTER_S + 4 * TICK_S)) < 1e-9


def test_it_wakes_once_a_batch() -> None:
    driver, reactor, loop = make()
    driver.wake()
    driver.wake()
    assert len(loop.soon) == 1
    loop.soon.pop().action()
    assert reactor.turns == 1
    driver.wake()
    assert len(loop.soon) == 1


def test_it_goes_on_while_more_is_waiting() -> None:
    driver, reactor, loop = make()
    reactor.more = 3
    driver.wake()
    while loop.soon:
        loop.soon.pop().action()
    assert reactor.turns == 4


def test_answers_between_edges_take_no_timers() -> None:
    driver, reactor, loop = make()
    driver.wake()
    loop.soon.pop().action()
    assert reactor.timers == [False]
    loop.edges[-1].action()
    assert reactor.timers == [False, True]


def test_timers_that_an_edge_left_are_not_left_to_the_next_one() -> None:
    driver, reactor, loop = make()
    reactor.more = 2
    loop.edges[-1].action()
    while loop.soon:
        loop.soon.pop().action()
    assert reactor.timers == [True, True, True]
    driver.wake()
    loop.soon.pop().action()
    assert reactor.timers[3:] == [False]


def test_it_is_silent_after_stop() -> None:
    driver, _, loop = make()
    driver.wake()
    driver.stop()
    assert loop.edges[-1].cancelled
    assert loop.soon[-1].cancelled
    driver.wake()
    assert len(loop.soon) == 1


class BuggyWire:
    def __init__(self) -> None:
        self.flushes = 0

    def on_edge(self, *, rests: bool) -> None:
        pass

    def flush(self) -> None:
        self.flushes += 1
        if self.flushes == 1:
            raise LookupError

    def sweep(self, now_ns: int) -> None:
        """Do nothing: it is about flushes."""


def test_a_bug_marks_the_run_and_the_fleet_turns_on() -> None:
    reactor, loop, wire = Reactor(SimClock(), Draws(1)), StillLoop(), BuggyWire()
    reactor.wires.connect(nodes=cast("Wire", wire))
    ReactorLoop(reactor, cast("asyncio.AbstractEventLoop", loop)).start()
    loop.edges[-1].action()
    assert reactor.counts.bugs == 1
    loop.soon[-1].action()  # what the interrupted turn left is seen to at once
    loop.edges[-1].action()
    assert (wire.flushes, reactor.counts.bugs) == (3, 1)
