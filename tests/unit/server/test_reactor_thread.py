"""ReactorThread from one thread, answered in another."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from fleet.k8s.effects import NodeId
from fleet.reactor.reactor import Reactor
from fleet.server.reactor_thread import BUDGET_S, BugError, NodeGoneError, ReactorThread

NODE, GONE = NodeId(0), NodeId(1)


class Fake:
    """What of a reactor is asked, and what it is told of."""

    def __init__(self) -> None:
        self.entries = [SimpleNamespace(kubelet="kubelet"), SimpleNamespace(kubelet=None)]
        self.clock = SimpleNamespace(now_ns=lambda: 42)
        self.bugs: list[Exception] = []
        self.turns = 0

    def on_bug(self, error: Exception) -> None:
        self.bugs.append(error)


def play(asking: Callable[[ReactorThread], Awaitable[None]], reactor: Fake) -> ReactorThread:
    """Run a loop as the reactor's, and another one in a thread that asks."""
    failures: list[BaseException] = []

    async def main() -> ReactorThread:
        reactor_thread = ReactorThread(cast("Reactor", reactor), asyncio.get_running_loop())

        async def serve() -> None:
            reactor_thread.servers = asyncio.get_running_loop()
            await asyncio.wait_for(asking(reactor_thread), 60)

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            reactor.turns += 1
            await asyncio.sleep(0)
        return reactor_thread

    reactor_thread = asyncio.run(main())
    if failures:
        raise failures[0]
    return reactor_thread


def test_it_is_answered_in_the_reactors_thread() -> None:
    threads = []

    async def asking(reactor_thread: ReactorThread) -> None:
        def act(kubelet: object, now_ns: int) -> tuple[object, int]:
            threads.append(threading.current_thread())
            return kubelet, now_ns

        assert await reactor_thread.call(NODE, act) == ("kubelet", 42)

    play(asking, Fake())
    assert threads == [threading.main_thread()]


def test_a_node_that_is_gone_and_a_bug_are_told() -> None:
    reactor = Fake()

    async def asking(reactor_thread: ReactorThread) -> None:
        with pytest.raises(NodeGoneError):
            await reactor_thread.call(GONE, lambda _kubelet, _now_ns: 1)
        with pytest.raises(BugError, match="division"):
            await reactor_thread.call(NODE, lambda _kubelet, _now_ns: 1 // 0)
        assert await reactor_thread.call(NODE, lambda _kubelet, _now_ns: 2) == 2

    play(asking, reactor)
    assert isinstance(reactor.bugs[0], ZeroDivisionError)


def test_a_flood_leaves_the_reactor_its_turns() -> None:
    """What takes 400 ms in all is answered in parts, between which the reactor's loop turns."""
    reactor = Fake()
    turns: list[int] = []

    async def asking(reactor_thread: ReactorThread) -> None:
        def act(_kubelet: object, _now_ns: int) -> None:
            turns.append(reactor.turns)
            until_s = time.monotonic() + 0.001
            while time.monotonic() < until_s:
                pass

        await asyncio.gather(*(reactor_thread.call(NODE, act) for _ in range(400)))

    assert play(asking, reactor).called == 400
    assert len(set(turns)) >= 400 * 0.001 / BUDGET_S / 4


def test_whoever_went_away_is_not_answered() -> None:
    called = []

    async def asking(reactor_thread: ReactorThread) -> None:
        task = asyncio.ensure_future(
            reactor_thread.call(NODE, lambda _kubelet, _now_ns: called.append(1))
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await reactor_thread.call(NODE, lambda _kubelet, _now_ns: None)

    play(asking, Fake())
    assert called == []
