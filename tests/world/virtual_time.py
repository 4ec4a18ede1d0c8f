"""Virtual time: from one instant at which something is due to the next.

what is planned -> what arrives at servers and at nodes -> a turn of the reactor
"""

import heapq
from collections.abc import Callable, Sequence

from fleet.clock import NS_PER_S
from fleet.reactor.reactor import Reactor
from world.sim_clock import SimClock
from world.transport import SimTransport

TURNS_MAX = 1_000


def _never() -> bool:
    return False


class World:
    """One fleet and all that is planned in it. `edge_ns`: timers fire at multiples of this."""

    def __init__(
        self,
        clock: SimClock,
        reactor: Reactor,
        wires: Sequence[SimTransport],
        *,
        edge_ns: int = 1,
    ) -> None:
        self.clock = clock
        self.reactor = reactor
        self._wires = wires
        self._edge_ns = edge_ns
        self._plan: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something at a later instant."""
        self._planned += 1
        due_ns = self.clock.now_ns() + int(seconds * NS_PER_S)
        heapq.heappush(self._plan, (due_ns, self._planned, action))

    def run_until(self, end_ns: int, is_woken: Callable[[], bool] = _never) -> None:
        """Let time go by, less of it if somebody wakes up who waited for something to happen."""
        clock, plan, reactor = self.clock, self._plan, self.reactor
        while not is_woken():
            timer_ns = self._timer_ns()
            due_ns = end_ns + 1 if timer_ns is None else timer_ns
            if plan:
                due_ns = min(due_ns, plan[0][0])
            for wire in self._wires:
                next_ns = wire.next_ns()
                if next_ns is not None and next_ns < due_ns:
                    due_ns = next_ns
            if due_ns > end_ns:
                clock.advance_to(end_ns)
                return
            now_ns = clock.now_ns()
            if due_ns > now_ns:
                clock.advance_to(due_ns)
                now_ns = due_ns
            is_acted = False
            while plan and plan[0][0] <= now_ns:
                heapq.heappop(plan)[2]()
                is_acted = True
            for wire in self._wires:
                wire.advance()
            if is_acted or reactor.inbox or (timer_ns is not None and timer_ns <= now_ns):
                self.turn()

    def _timer_ns(self) -> int | None:
        """Return when the reactor turns next for its timers: at an edge, as in a real run."""
        due_ns = self.reactor.next_timer_ns()
        return None if due_ns is None else -(-due_ns // self._edge_ns) * self._edge_ns

    def turn(self) -> None:
        """Let the reactor do all that there is to do now."""
        for _ in range(TURNS_MAX):
            if not self.reactor.turn():
                return
        raise AssertionError(f"no rest at {self.clock.now_ns() / NS_PER_S} s")
