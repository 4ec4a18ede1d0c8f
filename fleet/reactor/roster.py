"""What the parts of the reactor share: who is in the fleet, its wires, time and counters."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet.clock import Clock, Draws, TimerWheel
from fleet.k8s.effects import NodeId
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.metrics import FleetCounts
from fleet.reactor.calm import Calm
from fleet.reactor.client_tally import ClientColumns, ClientTally
from fleet.wire.api.codec import Codec
from fleet.wire.api.requests import Caller
from fleet.wire.api.watch import Reflector, Wire

NOBODY = NodeId(-1)
"""The owner of watches and timers that belong to no single kubelet."""
STORY_MAX = 1_000


@dataclass(slots=True, eq=False)
class Entry:
    """What the reactor keeps of one kubelet."""

    kubelet: VirtualKubelet | None  # None once quarantined or removed
    caller: Caller
    pool: int
    reflectors: tuple[Reflector, ...] = ()
    story: deque[str] | None = None
    client: ClientTally = field(default_factory=ClientTally)  # since the kubelet was started
    watch_pool: int = -1
    """Of its list-watches, where many nodes share connections: they take no stream of a call's."""

    def __post_init__(self) -> None:
        if self.watch_pool < 0:
            self.watch_pool = self.pool


@dataclass(slots=True, eq=False)
class Roster:
    """The entries of one process by node, and the nodes by name. Numbers are never used again."""

    entries: list[Entry] = field(default_factory=list)
    by_name: dict[str, NodeId] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Add a kubelet under the next number, which must be its own."""
        kubelet = entry.kubelet
        assert kubelet is not None
        assert kubelet.node == len(self.entries), (kubelet.node, len(self.entries))
        self.entries.append(entry)
        self.by_name[kubelet.name] = kubelet.node

    def living(self) -> Iterator[tuple[Entry, VirtualKubelet]]:
        """Return the kubelets that run."""
        for entry in self.entries:
            if entry.kubelet is not None:
                yield entry, entry.kubelet

    def pods_by_phase(self) -> dict[str, int]:
        """Return how many pods the kubelets have, by the phases that a pod can have."""
        phases = dict.fromkeys(("Pending", "Running", "Succeeded", "Failed"), 0)
        for _, kubelet in self.living():
            for phase, count in kubelet.pods.phases().items() if kubelet.pods else ():
                if phase in phases:
                    phases[phase] += count
        return phases


class Wires:
    """The connections of a process. They are set before the first kubelet starts."""

    __slots__ = ("_nodes", "_observer", "all", "authority")

    def __init__(self) -> None:
        self.authority = ""  # the server's host and port
        self._nodes: Wire | None = None
        self._observer: Wire | None = None
        self.all: list[Wire] = []  # those two, and what others add: each turn flushes them

    def connect(self, *, nodes: Wire | None = None, observer: Wire | None = None) -> None:
        """Set what the kubelets use, and fleet's own: Ready counts, shared watches."""
        others = [each for each in self.all if each not in (self._nodes, self._observer)]
        self._nodes = nodes or self._nodes
        self._observer = observer or self._observer
        self.all[:] = [each for each in (self._nodes, self._observer) if each is not None] + others

    def on_edge(self, *, rests: bool) -> None:
        """Take what was left unread until now; with `rests`, leave what comes until the next."""
        for wire in self.all:
            wire.on_edge(rests=rests)

    def flush(self) -> None:
        """Write what was queued."""
        for wire in self.all:
            wire.flush()

    @property
    def nodes(self) -> Wire:
        """Return the kubelets' own connections."""
        assert self._nodes is not None, "no wire yet"
        return self._nodes

    @property
    def observer(self) -> Wire:
        """Return fleet's own connection."""
        assert self._observer is not None, "no observer yet"
        return self._observer


class Process:
    """What there is once in a process; each part of the reactor holds it."""

    __slots__ = (
        *("calm", "clients", "clock", "codec", "counts", "draws", "roster", "unregistered"),
        *("wheel", "wires"),
    )

    def __init__(self, clock: Clock, draws: Draws, codec: Codec) -> None:
        self.clock = clock
        self.draws = draws
        self.codec = codec
        self.wheel = TimerWheel()
        self.roster = Roster()
        self.wires = Wires()
        self.counts = FleetCounts()
        self.clients = ClientColumns()
        self.calm = Calm()
        self.unregistered: dict[NodeId, str] = {}  # why, of those that tried and were refused
