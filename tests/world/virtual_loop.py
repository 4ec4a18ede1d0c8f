"""An event loop in virtual time: a sleep takes no longer than the simulation does.

Where another loop waits for sockets this one lets the world go on, until the next of its own timers
is due or something in the world wakes a task. So the code that plays a scenario is the same in a
real run and in a simulated one. There are no sockets in it.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from types import SimpleNamespace
from typing import Any

from fleet.clock import NS_PER_S, Draws
from fleet.reactor.reactor import Reactor
from world.sim_clock import SimClock
from world.virtual_time import World

_RESOLUTION_S = 1e-6
_STEP_NS = NS_PER_S // 20


class Worlds:
    """Several simulations, each with an API server of its own, in one virtual time."""

    def __init__(self) -> None:
        self.simulations: list[Any] = []  # `Simulation`, which makes loops of its own

    @property
    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(now_ns=lambda: self.now_ns)

    now_ns = 0

    def run_until(self, end_ns: int, is_woken: Callable[[], bool]) -> None:
        while self.now_ns < end_ns and not is_woken():
            self.now_ns = min(self.now_ns + _STEP_NS, end_ns)
            for each in self.simulations:
                each.world.run_until(self.now_ns)


class _Selector(selectors.BaseSelector):
    """Waits by letting time go by; what is registered (the loop's own pipe) says nothing."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        self._wait = wait
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._wait(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the top of this file."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_woken = False
        super().__init__(_Selector(self._wait))
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._world.clock.now_ns() / NS_PER_S

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Have the loop call something; the world stands still until it has."""
        self._is_woken = True
        return super().call_soon(callback, *args, context=context)

    def _wait(self, timeout: float | None) -> None:
        self._is_woken = False
        if timeout is None:
            raise RuntimeError("everybody waits for what no virtual time brings")
        if timeout > 0:
            end_ns = self._world.clock.now_ns() + round(timeout * NS_PER_S)
            self._world.run_until(end_ns, lambda: self._is_woken)


def in_virtual_time(story: Coroutine[Any, Any, None], world: World | None = None) -> None:
    """Run a story to its end, in the time of a world or of an empty one."""
    clock = SimClock()
    played = world or World(clock, Reactor(clock, Draws(1)), ())
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(played)) as runner:
        runner.run(story)
