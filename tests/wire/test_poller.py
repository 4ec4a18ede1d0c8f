"""The poller on pipes, with a loop and a clock that the test turns by hand."""

import asyncio
import os
import selectors
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from fleet.wire.sockets import poller
from fleet.wire.sockets.poller import READ, WRITE, Poller, Selected

MS = 1_000_000


class Timer:
    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.call = call

    def cancel(self) -> None:
        self.delay_s = -1


class Loop:
    """The three calls of an event loop that the poller makes."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.timers: list[Timer] = []

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self.readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        del self.readers[fd]

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, call))
        return self.timers[-1]

    def wake(self) -> None:
        for call in list(self.readers.values()):
            call()

    def fire(self) -> float:
        (timer,) = self.timers
        self.timers.clear()
        timer.call()
        return timer.delay_s


class Scene:
    def __init__(self) -> None:
        self.loop = Loop()
        self.now_ns = MS
        self.step_ns = 0
        self.handled: list[int] = []
        self.drains = 0
        self.pipes = [os.pipe() for _ in range(2)]
        self.fails = False
        self.poller = Poller(
            cast("asyncio.AbstractEventLoop", self.loop), self.clock, self.handle, self.drained
        )
        for fd, _ in self.pipes:
            self.poller.register(fd, READ)

    def clock(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def handle(self, fd: int, mask: int) -> None:
        assert mask & READ
        if self.fails:
            raise AssertionError("a bug")
        if self.step_ns == 0:
            os.read(fd, 100)
        self.handled.append(fd)

    def drained(self) -> None:
        self.drains += 1

    def write(self, number: int = 0) -> None:
        os.write(self.pipes[number][1], b"x")

    def close(self) -> None:
        self.poller.close()
        for pair in self.pipes:
            for fd in pair:
                os.close(fd)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def test_the_first_is_handled_at_once_and_the_next_together(scene: Scene) -> None:
    scene.write()
    scene.loop.wake()
    assert (len(scene.handled), scene.drains) == (1, 1)
    scene.write(0)
    scene.write(1)
    scene.loop.wake()
    assert len(scene.handled) == 1  # the gate is shut
    assert scene.loop.fire() == poller.COALESCE_S
    assert (len(scene.handled), scene.drains) == (3, 2)
    scene.write()
    scene.loop.wake()  # armed again
    assert len(scene.handled) == 4


def test_no_wake_up_between_a_flush_and_its_answers(scene: Scene) -> None:
    scene.poller.rest()
    scene.poller.rest()
    scene.write()
    scene.loop.wake()
    assert scene.handled == []
    scene.loop.fire()
    assert len(scene.handled) == 1


def test_a_flood_leaves_the_loop_its_turn_and_is_lag_in_the_end(scene: Scene) -> None:
    scene.write()
    scene.step_ns = 11 * MS  # and nothing is read: it stays ready
    scene.loop.wake()
    assert len(scene.handled) == 1
    for _ in range(3):
        assert scene.loop.fire() == 0
    assert scene.poller.behind_ns == 0
    for _ in range(3):
        scene.loop.fire()
    assert scene.poller.behind_ns > 0


def test_a_late_wake_up_is_lag(scene: Scene) -> None:
    scene.poller.rest()
    scene.now_ns += 99 * MS
    scene.loop.fire()
    assert scene.poller.behind_ns == 0
    scene.poller.rest()
    scene.now_ns += 200 * MS
    scene.loop.fire()
    assert scene.poller.behind_ns == scene.now_ns


def test_a_bug_in_a_handler_leaves_the_others_read(scene: Scene) -> None:
    scene.fails = True
    scene.write()
    with pytest.raises(AssertionError, match="a bug"):
        scene.loop.wake()
    with pytest.raises(AssertionError, match="a bug"):
        scene.loop.fire()
    scene.fails = False
    scene.loop.wake()
    assert len(scene.handled) == 1


def test_a_process_that_may_sleep_reads_at_edges_only(scene: Scene) -> None:
    scene.poller.on_edge(sleeps=True)
    scene.poller.rest()
    assert scene.loop.timers == []
    for number in range(2):
        scene.write(number)
        scene.loop.wake()
    assert scene.handled == []
    scene.poller.on_edge(sleeps=True)
    assert (len(scene.handled), scene.drains) == (2, 1)
    scene.write()
    scene.loop.wake()  # something came at the last edge: it sleeps on
    assert len(scene.handled) == 2
    scene.poller.on_edge(sleeps=True)
    assert len(scene.handled) == 3
    scene.poller.on_edge(sleeps=True)  # nothing came
    scene.write()
    scene.loop.wake()
    assert len(scene.handled) == 4
    scene.write()
    scene.loop.wake()  # and asleep again
    assert len(scene.handled) == 4


def test_a_sleeper_that_is_needed_reads_at_once_and_stays_awake(scene: Scene) -> None:
    scene.poller.on_edge(sleeps=True)
    scene.poller.rest()
    scene.write()
    scene.poller.on_edge(sleeps=False)
    assert len(scene.handled) == 1
    scene.write()
    scene.loop.wake()
    assert len(scene.handled) == 2
    assert scene.loop.fire() == poller.COALESCE_S


def test_an_edge_that_comes_late_is_lag(scene: Scene) -> None:
    scene.poller.on_edge(sleeps=True)
    scene.poller.rest()
    scene.now_ns += 119 * MS
    scene.poller.on_edge(sleeps=True)
    assert scene.poller.behind_ns == 0
    scene.poller.rest()
    scene.now_ns += 121 * MS
    scene.poller.on_edge(sleeps=True)
    assert scene.poller.behind_ns == scene.now_ns


def test_a_flood_keeps_a_sleeper_awake(scene: Scene) -> None:
    scene.poller.on_edge(sleeps=True)
    scene.poller.rest()
    scene.write()
    scene.step_ns = 11 * MS
    scene.poller.on_edge(sleeps=True)
    assert scene.loop.fire() == 0
    assert len(scene.handled) == 2


def test_a_bug_at_an_edge_leaves_the_others_read(scene: Scene) -> None:
    scene.poller.on_edge(sleeps=True)
    scene.poller.rest()
    scene.fails = True
    scene.write()
    with pytest.raises(AssertionError, match="a bug"):
        scene.poller.on_edge(sleeps=True)
    scene.fails = False
    scene.loop.wake()
    assert len(scene.handled) == 1


def test_without_epoll_a_timer_opens_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: what is ready is read every 2 ms, by whatever `selectors` finds."""
    monkeypatch.setattr(poller, "HAS_EPOLL", False)
    monkeypatch.setattr("selectors.DefaultSelector", selectors.PollSelector)
    scene = Scene()
    assert not scene.loop.readers
    (first, end), (second, _) = scene.pipes
    os.write(end, b"x")
    assert scene.loop.fire() == poller.COALESCE_S
    assert scene.handled == [first]
    scene.poller.unregister(second)
    scene.poller.register(second, READ | WRITE)
    scene.poller.modify(second, READ)
    scene.poller.rest()
    scene.loop.fire()
    assert scene.handled == [first]
    scene.poller.forget(first)
    scene.poller.forget(first)
    scene.poller.close()


def test_what_is_left_out_of_a_poll_is_ready_the_next_time() -> None:
    selected = Selected(selectors.PollSelector())
    ends = [os.pipe() for _ in range(3)]
    for ours, theirs in ends:
        selected.register(ours, READ)
        os.write(theirs, b"x")
    selected.register(ends[0][1], READ | WRITE)
    assert len(selected.poll(0, 2)) == 2
    assert dict(selected.poll(0, 9)) == {ends[0][1]: WRITE} | {ours: READ for ours, _ in ends}
    selected.close()
    for fd in (fd for pair in ends for fd in pair):
        os.close(fd)
