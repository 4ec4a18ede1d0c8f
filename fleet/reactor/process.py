"""What the parts of the reactor share: kubelets, connections, time and counters of one process.

IdleDetector says whether a process may rest from one edge to the next:
    BUSY --a second with nothing but heartbeats--> IDLE --anything else--> BUSY
    IDLE: prompt in the first tenth of each second, else resting
A wake-up costs a process as much as a renewal does, and a server's answers come one by one. A
process that rests reads at edges only, where its timers fire: what is due, what was answered and
what its watches brought take one wake-up together. Nobody waits for that: a renewal is next due in
ten seconds, and a pod that comes is seen at the next edge, from which on the process is busy.
How long an answer took is then known to 20 ms only. So a tenth of each second is prompt, and the
quick answers of the rest are counted as taking what the last one took that was timed there.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet.clock import NS_PER_MS, NS_PER_S, Clock, Draws, TimerWheel
from fleet.k8s.effects import Milestone, NodeId, Op, Report
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node.node_status import RegistrationPhase
from fleet.metrics import FleetCounts
from fleet.wire.api.codec import Codec
from fleet.wire.api.requests import Caller
from fleet.wire.api.watch import Reflector, Wire

BUSY_NS = NS_PER_S
PROMPT_NS = 100 * NS_PER_MS
TIMED_NS = 60 * NS_PER_MS
"""What is sent so early in the second is as a rule answered while the process is prompt."""
HEARTBEATS = frozenset((Op.RENEW_LEASE, Op.GET_NODE_HEARTBEAT, Op.PATCH_NODE_STATUS_HEARTBEAT))


class IdleDetector:
    """See the top of this file. One for a process."""

    def __init__(self) -> None:
        self._busy_until_ns = 0

    def note_activity(self, now_ns: int) -> None:
        """Note that more than heartbeats is under way."""
        self._busy_until_ns = now_ns + BUSY_NS

    def may_rest(self, now_ns: int) -> bool:
        """Return whether nothing needs to be read before the next edge."""
        return now_ns >= self._busy_until_ns and now_ns % NS_PER_S >= PROMPT_NS

    def is_timed(self, sent_ns: int) -> bool:
        """Return whether it is known when the answer came to what was sent then."""
        return sent_ns < self._busy_until_ns or sent_ns % NS_PER_S < TIMED_NS


NOBODY = NodeId(-1)  # the owner of watches and timers that belong to no single kubelet
STORY_MAX = 1_000


@dataclass(slots=True, eq=False)
class Entry:
    """What the reactor keeps of one kubelet."""

    kubelet: VirtualKubelet | None  # None once quarantined or removed
    caller: Caller
    pool: int
    reflectors: tuple[Reflector, ...] = ()
    story: deque[str] | None = None
    watch_pool: int = -1
    """Of its list-watches, where many nodes share connections: they take no stream of a call's."""

    def __post_init__(self) -> None:
        if self.watch_pool < 0:
            self.watch_pool = self.pool


@dataclass(slots=True, eq=False)
class KubeletRegistry:
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

    def __init__(self) -> None:
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

    def __init__(self, clock: Clock, draws: Draws, codec: Codec) -> None:
        self.clock = clock
        self.draws = draws
        self.codec = codec
        self.wheel = TimerWheel()
        self.kubelets = KubeletRegistry()
        self.wires = Wires()
        self.counts = FleetCounts()
        self.idle = IdleDetector()
        self.unregistered: dict[NodeId, str] = {}  # why, of those that tried and were refused


_COUNTERS = {milestone: milestone.name.lower() for milestone in Milestone} | {
    Milestone.POD_ADDED: "pods_added",
    Milestone.POD_RUNNING: "pods_running",
    Milestone.POD_FAILED: "pods_failed",
    Milestone.POD_REMOVED: "pods_removed",
    Milestone.EVENT_DROPPED: "events_dropped",
}
"""The counters of `FleetCounts`."""


def count_report(counts: FleetCounts, report: Report) -> None:
    """Count one report, and how long it took where the report says so."""
    counter = _COUNTERS[report.milestone]
    setattr(counts, counter, getattr(counts, counter) + 1)
    if report.milestone is Milestone.REGISTERED:
        counts.node_start.record(report.value_ns // 1000)
    elif report.milestone is Milestone.POD_RUNNING:
        counts.pod_start.record(report.value_ns // 1000)
        rest_ns = report.value_ns - report.simulated_ns
        counts.pod_start_sli.record(rest_ns // 1000)
        counts.pod_start_api.record(report.api_ns // 1000)
        counts.pod_start_fleet.record((rest_ns - report.api_ns) // 1000)
        counts.pod_start_simulated.record(report.simulated_ns // 1000)


def uncount_reports(counts: FleetCounts, kubelet: VirtualKubelet) -> None:
    """Take back what the next kubelet of a node will report once more."""
    counts.registered -= kubelet.status.phase is RegistrationPhase.REGISTERED
    if kubelet.pods is not None:
        counts.pods_added -= sum(1 for _ in kubelet.pods)
