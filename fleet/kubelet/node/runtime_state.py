"""RuntimeState: what a kubelet knows of its runtime's health, and when that changes.

Nothing ticks. The runtime's outages are known from the profile; which status check (every 5 s) and
which relist (every 1 s) last went well follows from them and the phase. The one timer that is set
is for the next instant at which an answer changes. Only nodes whose profile declares outages have
one of these.

    runtime answers no more -> 30 s after the last good check "container runtime is down"
    relist hangs            -> 3 min after the last one "PLEG is not healthy: ..."
    answers NetworkReady=false or RuntimeReady=false -> at the next check

While there are runtime errors the sync loop is not run: what the pods watch says is held back, and
so are the timers of pods; it goes on within 5 s after the errors are over.
Source: pkg/kubelet/runtime.go, runtimeErrors; kubelet.go, updateRuntimeUp, syncLoop;
pkg/kubelet/pleg/generic.go, Healthy.
Differs: pod workers that are at work when the errors begin wait as well.
"""

from typing import NamedTuple

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.effects import NodeId, Timer, WatchEvent
from fleet.kubelet.events import Reason
from fleet.kubelet.turn import Turn
from fleet.profile.machine import Happening, Outage, OutageKind
from fleet.profile.node_model import NodeModel
from fleet.quantity import format_duration
from fleet.runtime.containers import NEVER

CHECK_NS = 5 * NS_PER_S  # kubelet.go, Run: updateRuntimeUp runs so often
RUNTIME_THRESHOLD_NS = 30 * NS_PER_S  # maxWaitForContainerRuntime
CONTAINER_GC_NS = 60 * NS_PER_S  # ContainerGCPeriod
IMAGE_GC_NS = 300 * NS_PER_S  # ImageGCPeriod
RELIST_NS = 1 * NS_PER_S  # genericPlegRelistPeriod
RELIST_THRESHOLD_NS = 180 * NS_PER_S  # genericPlegRelistThreshold
LOOK_AHEAD_NS = 3600 * NS_PER_S  # an outage that comes again may have no end that a check sees
SKIP_MAX_NS = 5 * NS_PER_S  # syncLoop sleeps 100 ms, doubling to this, before it looks again
UNAVAILABLE = (
    'rpc error: code = Unavailable desc = connection error: desc = "transport: Error while '
    'dialing: dial unix /run/containerd/containerd.sock: connect: connection refused"'
)
NOT_CHECKED = "container runtime status check may not have completed yet"
DOWN = "container runtime is down"
NETWORK_UNKNOWN = "network state unknown"
_STREAM_SHARE = 0x54A2E
_STREAM_FROM = 0xF203
_STREAM_FOR = 0xF02
_STREAM_SKIP = 0x5C1B
_UNANSWERED = frozenset((OutageKind.RUNTIME_DOWN,))
_NO_SYNC = frozenset((OutageKind.RUNTIME_DOWN, OutageKind.RUNTIME_NOT_READY))
_NO_RELIST = frozenset((OutageKind.RUNTIME_DOWN, OutageKind.PLEG_STALL))


class Window(NamedTuple):
    """One occurrence of an outage, monotonic."""

    start_ns: int
    end_ns: int
    outage: Outage


class Causes(NamedTuple):
    """Why a node is not ready, as far as its runtime goes."""

    runtime: tuple[str, ...]  # while there is one the sync loop rests
    network: tuple[str, ...]


HEALTHY = Causes((), ())


class RuntimeState:
    """The health of one node's runtime as its kubelet sees it."""

    __slots__ = ("_cleaned_ns", "_draws", "_held", "_node", "_outages", "_started_ns", "resume_ns")

    def __init__(self, node: NodeId, model: NodeModel, draws: Draws, now_ns: int) -> None:
        self._node = node
        self._draws = draws
        self._started_ns = now_ns
        self._cleaned_ns = now_ns  # the last round of the container garbage collection
        self._outages = self._those_of(model)
        self.resume_ns = 0  # when the sync loop goes on, 0 while it runs
        self._held: list[WatchEvent] | None = None  # of the pods watch

    def _those_of(self, model: NodeModel) -> tuple[Outage, ...]:
        return tuple(
            outage
            for index, outage in enumerate(model.outages)
            if self._draws.uniform(self._node, _STREAM_SHARE, index) < outage.share
        )

    def on_outages_changed(self, model: NodeModel, now_ns: int) -> None:
        """Take what is out of order from now on; a sync loop that rests learns its end again."""
        self._outages = self._those_of(model)
        if self.resume_ns:
            self.resume_ns = self._resumes_ns(now_ns)

    def causes(self, now_ns: int) -> Causes:
        """Return the errors as runtimeErrors and networkErrors list them."""
        windows = self._windows(now_ns)
        if not windows:
            return HEALTHY
        check_ns = self._tick(now_ns, CHECK_NS)
        runtime = []
        synced_ns = _last_good(windows, _NO_SYNC, check_ns, self._started_ns, CHECK_NS)
        if synced_ns < 0:
            runtime.append(NOT_CHECKED)
        elif now_ns - synced_ns >= RUNTIME_THRESHOLD_NS:
            runtime.append(DOWN)
        runtime += self._pleg_error(windows, now_ns)
        answered_ns = _last_good(windows, _UNANSWERED, check_ns, self._started_ns, CHECK_NS)
        if answered_ns < 0:
            return Causes(tuple(runtime), (NETWORK_UNKNOWN,))
        not_ready = _active(windows, OutageKind.RUNTIME_NOT_READY, answered_ns)
        if not_ready is not None:
            runtime.append(f"container runtime not ready: {_condition('RuntimeReady', not_ready)}")
        no_network = _active(windows, OutageKind.NETWORK_NOT_READY, answered_ns)
        if no_network is None:
            return Causes(tuple(runtime), ())
        text = f"container runtime network not ready: {_condition('NetworkReady', no_network)}"
        return Causes(tuple(runtime), (text,))

    def next_change_ns(self, now_ns: int) -> int:
        """Return an instant by which `causes` must be looked at again, 0 if there is none."""
        windows = self._windows(now_ns)
        due = []
        for window in windows:
            for edge_ns in (window.start_ns, window.end_ns):
                due += [self._tick_after(edge_ns, CHECK_NS), self._tick_after(edge_ns, RELIST_NS)]
            if window.outage.kind is OutageKind.RUNTIME_DOWN and now_ns < window.end_ns:
                due += [self._tick(now_ns, CONTAINER_GC_NS) + CONTAINER_GC_NS, window.end_ns]
            if window.outage.kind in _NO_SYNC:
                last_ns = self._tick(window.start_ns - 1, CHECK_NS)
                due.append(last_ns + RUNTIME_THRESHOLD_NS)
            if window.outage.kind in _NO_RELIST:
                last_ns = self._tick(window.start_ns - 1, RELIST_NS)
                due.append(last_ns + RELIST_THRESHOLD_NS + 1)
        due += [
            start_ns
            for index, outage in enumerate(self._outages)
            if (start_ns := self._next_start(outage, index, now_ns))
        ]
        due.append(self.resume_ns)
        return min((each for each in due if now_ns < each < NEVER), default=0)

    def answers(self, now_ns: int) -> bool:
        """Return whether the runtime answers the kubelet."""
        return _active(self._windows(now_ns), OutageKind.RUNTIME_DOWN, now_ns) is None

    def network_error(self, now_ns: int) -> str:
        """Return why pods without hostNetwork cannot be synced, "" if they can."""
        network = self.causes(now_ns).network
        return network[0] if network else ""

    def advance(self, now_ns: int) -> list[WatchEvent]:
        """Let the sync loop rest or go on, as is due; return what it now has to catch up with."""
        if not self.resume_ns:
            if self.causes(now_ns).runtime:
                self.resume_ns = self._resumes_ns(now_ns)
        elif now_ns >= self.resume_ns:
            held, self._held = self._held, None
            self.resume_ns = 0
            return held or []
        return []

    def holds(self, event: WatchEvent) -> bool:
        """Keep what the pods watch says if the sync loop rests."""
        if not self.resume_ns:
            return False
        if self._held is None:
            self._held = []
        self._held.append(event)
        return True

    def _resumes_ns(self, now_ns: int) -> int:
        """Return the first look of the paused sync loop after the errors are over."""
        at_ns = now_ns
        if any(
            each.end_ns >= NEVER and each.outage.kind is not OutageKind.NETWORK_NOT_READY
            for each in self._windows(now_ns)
        ):
            return NEVER
        while self.causes(at_ns).runtime and at_ns - now_ns < LOOK_AHEAD_NS:
            at_ns = self.next_change_ns(at_ns)
            if not at_ns:
                return NEVER
        share = self._draws.uniform(self._node, _STREAM_SKIP, at_ns)
        return at_ns + int(share * SKIP_MAX_NS)

    def failed_collections(self, now_ns: int) -> tuple[Reason, ...]:
        """Return which garbage collections were due and failed, images for the second time.

        Source: kubelet.go, StartGarbageCollection.
        """
        at_ns = self._tick(now_ns, CONTAINER_GC_NS)
        if at_ns <= self._cleaned_ns:
            return ()
        self._cleaned_ns = at_ns
        found = (Reason.CONTAINER_GC_FAILED, Reason.IMAGE_GC_FAILED)
        looks = at_ns == self._tick(at_ns, IMAGE_GC_NS) and not self.answers(at_ns - IMAGE_GC_NS)
        return () if self.answers(at_ns) else found[: 1 + looks]

    def arm(self, turn: Turn) -> None:
        """Set the timer of the next change, if there will be one."""
        due_ns = self.next_change_ns(turn.now_ns)
        if due_ns:
            turn.arm(due_ns, Timer.RUNTIME_STATE)

    def puts_off(self, timer: Timer, key: str, turn: Turn) -> bool:
        """Put a pod's timer off while the sync loop rests, or while the runtime does not answer."""
        if timer not in (Timer.POD_SYNC, Timer.RUNTIME):
            return False
        due_ns = self.resume_ns
        if timer is Timer.RUNTIME:
            due_ns = max(due_ns, self._answers_ns(turn.now_ns))
        if due_ns <= turn.now_ns:
            return False
        if due_ns >= NEVER:  # nobody knows the end of a fault: it is asked for as the loop does
            due_ns = turn.now_ns + SKIP_MAX_NS
        turn.arm(due_ns, timer, key)
        return True

    def _answers_ns(self, now_ns: int) -> int:
        """Return when the runtime answers relists: now, or at the end of its outage."""
        return max(
            (
                window.end_ns
                for window in self._windows(now_ns)
                if window.outage.kind in _NO_RELIST and window.start_ns <= now_ns < window.end_ns
            ),
            default=now_ns,
        )

    def _pleg_error(self, windows: tuple[Window, ...], now_ns: int) -> list[str]:
        """Source: generic.go, Healthy."""
        relist_ns = self._tick(now_ns, RELIST_NS)
        last_ns = _last_good(windows, _NO_RELIST, relist_ns, self._started_ns, RELIST_NS)
        if last_ns < 0:
            return ["PLEG is not healthy: pleg has yet to be successful"]
        elapsed_ns = now_ns - last_ns
        if elapsed_ns <= RELIST_THRESHOLD_NS:
            return []
        ago, threshold = format_duration(elapsed_ns), format_duration(RELIST_THRESHOLD_NS)
        text = f"pleg was last seen active {ago} ago; threshold is {threshold}"
        return [f"PLEG is not healthy: {text}"]

    def _tick(self, at_ns: int, period_ns: int) -> int:
        """Return the last tick at or before an instant."""
        return at_ns - (at_ns - self._started_ns) % period_ns

    def _tick_after(self, at_ns: int, period_ns: int) -> int:
        return self._tick(at_ns + period_ns - 1, period_ns)

    def _windows(self, now_ns: int) -> tuple[Window, ...]:
        """Return the occurrences that began by now and may still matter: the last two of each."""
        found = []
        for index, outage in enumerate(self._outages):
            first_ns = self._first(outage, index)
            if now_ns < first_ns:
                continue
            latest = (now_ns - first_ns) // outage.every_ns if outage.every_ns else 0
            found += [self._window(outage, index, n) for n in range(max(0, latest - 1), latest + 1)]
        return tuple(found)

    def _window(self, outage: Outage, index: int, occurrence: int) -> Window:
        if isinstance(outage, Happening):
            return Window(outage.since_ns, outage.until_ns, outage)
        start_ns = self._first(outage, index) + occurrence * outage.every_ns
        u = self._draws.uniform(self._node, _STREAM_FOR << 8 | index, occurrence)
        return Window(start_ns, start_ns + outage.duration.sample(u), outage)

    def _first(self, outage: Outage, index: int) -> int:
        if isinstance(outage, Happening):
            return outage.since_ns
        u = self._draws.uniform(self._node, _STREAM_FROM << 8 | index, 0)
        return self._started_ns + outage.start.sample(u)

    def _next_start(self, outage: Outage, index: int, now_ns: int) -> int:
        """Return when an outage begins next, 0 for never."""
        first_ns = self._first(outage, index)
        if now_ns < first_ns:
            return first_ns
        if not outage.every_ns:
            return 0
        return first_ns + ((now_ns - first_ns) // outage.every_ns + 1) * outage.every_ns


def _last_good(
    windows: tuple[Window, ...],
    kinds: frozenset[OutageKind],
    tick_ns: int,
    started_ns: int,
    period_ns: int,
) -> int:
    """Return the last tick at or before `tick_ns` that no outage covers, -1 if there is none."""
    again = True
    while again:
        again = False
        for window in windows:
            if window.outage.kind in kinds and window.start_ns <= tick_ns < window.end_ns:
                before_ns = window.start_ns - 1
                tick_ns = before_ns - (before_ns - started_ns) % period_ns
                again = True
        if tick_ns < started_ns:
            return -1
    return tick_ns


def _active(windows: tuple[Window, ...], kind: OutageKind, at_ns: int) -> Outage | None:
    found = (each for each in windows if each.start_ns <= at_ns < each.end_ns)
    return next((each.outage for each in found if each.outage.kind is kind), None)


def _condition(kind: str, outage: Outage) -> str:
    """Source: pkg/kubelet/container/runtime.go, RuntimeCondition.String."""
    reason, message = outage.shown
    return f"{kind}=false reason:{reason} message:{message}"
