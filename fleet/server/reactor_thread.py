"""Calls of the servers' thread into the reactor's.

    call -> queue -> one wake-up of the reactor's loop -> at most BUDGET_S of calls -> one back

Kubelets know no locks: reads and changes of one happen in the reactor's thread. A flood
of calls delays a turn by `BUDGET_S` at most, so it never delays a lease by more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fleet.k8s.effects import NodeId, Outbox
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.reactor.reactor import Reactor

BUDGET_S = 0.002
T = TypeVar("T")


class NodeGoneError(Exception):
    """The kubelet that was asked does not run: its machine is off, or it was removed."""


class BugError(Exception):
    """The call failed in the reactor, which has reported it."""


class _Call(NamedTuple):
    node: NodeId
    act: Callable[[VirtualKubelet, int], object]
    answer: "asyncio.Future[object]"


class ReactorThread:
    """Made in the reactor's thread; `call` is for the servers' loop, everything else is not."""

    def __init__(self, reactor: Reactor, loop: asyncio.AbstractEventLoop) -> None:
        self._reactor = reactor
        self._loop = loop
        self._waiting: deque[_Call] = deque()
        self._is_called = False
        self.servers: asyncio.AbstractEventLoop | None = None  # known once their thread runs
        self.called = 0

    def is_alive(self, node: NodeId) -> bool:
        """Return whether the kubelet of a node runs just now. From any thread."""
        return self._reactor.entries[node].kubelet is not None

    async def call(self, node: NodeId, act: Callable[[VirtualKubelet, int], T]) -> T:
        """Let `act(kubelet, now_ns)` run in the reactor's thread and return what it returns.

        It must be short, and what it returns must not change any more. Raises NodeGoneError, and
        BugError for whatever it raises.
        """
        assert self.servers is not None
        answer: asyncio.Future[T] = self.servers.create_future()
        self._waiting.append(_Call(node, act, answer))  # type: ignore[arg-type]
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._answer)
        return await answer

    def on_bug(self, error: Exception) -> None:
        """Report a bug of the servers as one in the reactor. From their thread."""
        self._loop.call_soon_threadsafe(self._reactor.on_bug, error)

    def hit_limit(self, what: str) -> None:
        """Count that a limit of the servers was hit. From their thread."""
        self._loop.call_soon_threadsafe(self._reactor.counts.own_limits.update, (what,))

    def perform(self, out: Outbox) -> None:
        """Do what followed from a call. In the reactor's thread."""
        self._reactor.perform(out)

    def _answer(self) -> None:
        """Answer what waits, in the reactor's thread, as long as the budget lasts."""
        self._is_called = False
        until_s = time.monotonic() + BUDGET_S
        answers: list[tuple[asyncio.Future[object], object]] = []
        while self._waiting:
            call = self._waiting.popleft()
            if not call.answer.cancelled():
                answers.append((call.answer, self._answer_one(call)))
                self.called += 1
            if time.monotonic() > until_s:
                break
        if self._waiting and not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._answer)  # after what has come from the API server
        if answers and self.servers is not None and not self.servers.is_closed():
            self.servers.call_soon_threadsafe(_deliver, answers)

    def _answer_one(self, call: _Call) -> object:
        kubelet = self._reactor.entries[call.node].kubelet
        if kubelet is None:
            return NodeGoneError(call.node)
        try:
            return call.act(kubelet, self._reactor.clock.now_ns())
        except Exception as error:  # noqa: BLE001 - as the reactor does: one request, not the run
            self._reactor.on_bug(error)
            return BugError(repr(error))


def _deliver(answers: list[tuple["asyncio.Future[object]", object]]) -> None:
    for future, answer in answers:
        if future.done():
            continue  # the client went away
        if isinstance(answer, NodeGoneError | BugError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
