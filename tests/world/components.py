"""Which components of the simulated control plane work, and what each does with its time.

An API server that is down, or whose etcd is, is out of reach of kubelets and controllers alike; a
scheduler or controller-manager that stands still leaves its work undone until it goes on.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fleet.clock import SimClock
from fleet.faults.fault import PlaneComponent
from world.api_server import SimApiServer
from world.transport import SimTransport
from world.virtual_time import World

SILENT_S = 45.0
"""A connection to a server that stands still is given up: 30 s of silence, 15 s for a ping."""
AGAIN_S = 1.0
"""A controller that cannot write tries again after so long."""
ETCD = PlaneComponent.ETCD.value
APISERVER = PlaneComponent.APISERVER.value
SCHEDULER = PlaneComponent.SCHEDULER.value
CONTROLLER_MANAGER = PlaneComponent.CONTROLLER_MANAGER.value


class Asked(NamedTuple):
    """A request of a component, as the trace has it; `t_ns` is when it was made."""

    t_ns: int
    client: str
    verb: str
    path: str


class Components:
    """What all controllers stand on: the store, time, and whether they work at all."""

    def __init__(
        self,
        world: World,
        server: SimApiServer,
        wires: tuple[SimTransport, ...],
        record: Callable[[Asked], None],
    ) -> None:
        self.server = server
        self.clock: SimClock = world.clock
        self.after = world.after
        self.on_restart: list[Callable[[], None]] = []  # of a controller-manager that was killed
        self._wires = wires
        self._stalls = 0
        self._record = record
        self._out: dict[str, bool] = {}  # what does not work: whether it was killed

    def works(self, component: str) -> bool:
        """Return whether a scheduler or controller-manager runs and reaches the API server."""
        return not any(each in self._out for each in (APISERVER, ETCD, component))

    def asked(self, client: str, verb: str, path: str) -> None:
        """Note what a controller did."""
        self._record(Asked(self.clock.now_ns(), client, verb, path))

    def fail(self, component: str, *, is_killed: bool) -> None:
        """Let a component that works be killed, or stand still."""
        assert component not in self._out, component
        self._out[component] = is_killed
        for wire in self._wires:
            if component == ETCD:  # requests wait for it; watches are served from memory
                wire.silent.append(None)
            elif component == APISERVER and is_killed:
                wire.refusing.append(None)
                wire.drop()
            elif component == APISERVER:
                wire.silent.append(None)
                wire.stalled.append(None)
        if component == APISERVER and not is_killed:
            self._stalls += 1
            self.after(SILENT_S, partial(self._give_up, self._stalls))

    def _give_up(self, number: int) -> None:
        """Lose the connections to a server that stands still yet."""
        if number == self._stalls and self._out.get(APISERVER) is False:
            for wire in self._wires:
                wire.drop()

    def mend(self, component: str) -> None:
        """Have a component work again."""
        is_killed = self._out.pop(component)
        for wire in self._wires:
            if component == ETCD:
                wire.silent.remove(None)
            elif component == APISERVER and is_killed:
                wire.refusing.remove(None)
            elif component == APISERVER:
                wire.silent.remove(None)
                wire.stalled.remove(None)
        if component == CONTROLLER_MANAGER and is_killed:
            for act in self.on_restart:
                act()


class Work:
    """A queue of one controller: what it is to look at, each thing once, a little later."""

    __slots__ = ("_act", "_components", "_is_due", "_name", "_pause_s", "_waiting")

    def __init__(
        self, components: Components, name: str, pause_s: float, act: Callable[[object], None]
    ) -> None:
        self._components = components
        self._name = name
        self._pause_s = pause_s
        self._act = act
        self._waiting: dict[object, None] = {}
        self._is_due = False

    def add(self, item: object) -> None:
        """Look at something soon."""
        self._waiting[item] = None
        if not self._is_due:
            self._is_due = True
            self._components.after(self._pause_s, self._run)

    def _run(self) -> None:
        self._is_due = False
        if not self._waiting:
            return
        if not self._components.works(self._name):
            self._is_due = True
            self._components.after(AGAIN_S, self._run)
            return
        item = next(iter(self._waiting))
        del self._waiting[item]
        self._act(item)
        if self._waiting and not self._is_due:
            self._is_due = True
            self._components.after(self._pause_s, self._run)
