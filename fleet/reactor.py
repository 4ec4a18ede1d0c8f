"""The reactor: time and bytes become inputs of kubelets, their effects bytes and timers.

    turn: due timers -> replies and watch events -> effects -> one flush

A turn runs at a 20 ms edge, or when the transport has filled the inbox. An exception inside one
kubelet quarantines that kubelet and marks the run; in tests it is raised again. The reactor records
how late each timer was: the instrument reports its own error.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, assert_never

from fleet.clock import NS_PER_S, Clock, Draws, TimerWheel
from fleet.effects import (
    ApiCall,
    Effect,
    Milestone,
    NodeId,
    Op,
    Outbox,
    PowerOff,
    Report,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.metrics import FleetCounts
from fleet.objects import EventType, NodeView, Pod
from fleet.wire.calls import Caller, build
from fleet.wire.decode_json import decode_list, decode_watch_event
from fleet.wire.messages import Request, Response, StreamOpened
from fleet.wire.replies import decode_reply
from fleet.wire.routes import ROUTES
from fleet.wire.watch import WATCH_RESOURCES, Next, Phase, Reflector

TIMERS_MAX = 2_000  # per turn; the rest is due at the next one
REPLIES_MAX = 2_000
CALL_TRIES_MAX = 10  # client-go/rest/with_retry.go: on 429 and 5xx with Retry-After
BUGS_SHOWN_MAX = 5
STORY_MAX = 1_000
NOBODY = NodeId(-1)
"""The owner of watches and timers that belong to no single kubelet."""

log = logging.getLogger(__name__)


class Wire(Protocol):
    """What the reactor asks of a transport; the simulation has its own."""

    def send(self, pool: int, request: Request, token: object) -> None:
        """Queue one request; the answer comes to the inbox with the token."""
        ...

    def cancel(self, pool: int, token: object) -> None:
        """Give a request up: nothing of it is delivered any more."""
        ...

    def flush(self) -> None:
        """Write what was queued."""
        ...

    def sweep(self, now_ns: int) -> None:
        """Look for what has timed out."""
        ...


class Retried(NamedTuple):
    """A call that a server asked us to send again later."""

    call: ApiCall
    tries: int


class Opening(NamedTuple):
    """One request of a reflector; what still comes of an earlier one is ignored."""

    reflector: Reflector
    number: int


class Entry:
    """What the reactor keeps of one kubelet."""

    __slots__ = ("caller", "kubelet", "pool", "reflectors", "story")

    def __init__(self, kubelet: VirtualKubelet, caller: Caller, pool: int) -> None:
        self.kubelet: VirtualKubelet | None = kubelet  # None once quarantined or removed
        self.caller = caller
        self.pool = pool
        self.reflectors: tuple[Reflector, ...] = ()
        self.story: deque[str] | None = None


class Reactor:
    """Owns the kubelets, their timers and the inbox of one process."""

    def __init__(
        self,
        clock: Clock,
        draws: Draws,
        *,
        raise_bugs: bool = False,
        story: frozenset[str] = frozenset(),
    ) -> None:
        self.clock = clock
        self.counts = FleetCounts()
        self.inbox: list[tuple[object, object]] = []
        self.wire: Wire | None = None  # set before the first kubelet is added
        self.observer: Wire | None = None  # fleet's own connection: Ready counts, shared watches
        self.on_observed: Callable[[WatchEvent], None] | None = None
        self.entries: list[Entry] = []
        self.by_name: dict[str, NodeId] = {}
        self._draws = draws
        self._wheel = TimerWheel()
        self._environments: list[Environment] = []
        self._retries: dict[str, Retried] = {}
        self._retry_seq = 0
        self._shared: list[Reflector] = []
        self._due_lease: dict[NodeId, int] = {}
        self._raise_bugs = raise_bugs
        self._story = story
        self._swept_ns = 0

    # ---- the fleet ----

    def add_environment(self, env: Environment) -> None:
        """Keep the wall clock of an environment."""
        self._environments.append(env)
        env.wall_offset_ns = self.clock.wall_ns() - self.clock.now_ns()

    def add(self, kubelet: VirtualKubelet, caller: Caller, pool: int) -> None:
        """Take a kubelet over and start it; its first requests leave with the next flush."""
        assert kubelet.node == len(self.entries), (kubelet.node, len(self.entries))
        entry = Entry(kubelet, caller, pool)
        if kubelet.name in self._story:
            entry.story = deque(maxlen=STORY_MAX)
        self.entries.append(entry)
        self.by_name[kubelet.name] = kubelet.node
        out: Outbox = []
        kubelet.start(self.clock.now_ns(), out)
        self._execute(out)

    def silence(self, node: NodeId) -> None:
        """Stop a kubelet: nothing more is sent for it, nothing taken. The Node stays."""
        entry = self.entries[node]
        if entry.kubelet is not None:
            entry.kubelet.stop()
        entry.kubelet = None
        for reflector in entry.reflectors:
            self._closed(reflector)
            reflector.stop()
        entry.reflectors = ()

    def static_pods_changed(self, env: Environment) -> None:
        """Tell the nodes of a profile that its static pods changed."""
        out: Outbox = []
        for entry in self.entries:
            if entry.kubelet is not None and entry.kubelet.env is env:
                entry.kubelet.on_static_pods_changed(self.clock.now_ns(), out)
        self._execute(out)

    def watch_shared(self, kind: WatchKind, label: str = "") -> None:
        """Open a watch for the whole fleet on the observer's connection.

        NODE events go to `on_observed`, and to the kubelets that have no watch of their own; PODS
        to the kubelet that their node name tells.
        """
        reflector = Reflector(NOBODY, kind, "", label)
        self._shared.append(reflector)
        self._open(reflector)

    # ---- one turn ----

    def turn(self) -> bool:
        """Handle what is due, then write once per connection. Returns whether more is waiting."""
        now_ns = self.clock.now_ns()
        out: Outbox = []
        more = self._expire(now_ns, out)
        more = self._drain(now_ns, out) or more
        self._execute(out)
        if now_ns - self._swept_ns >= NS_PER_S:
            self._sweep(now_ns)
        for wire in (self.wire, self.observer):
            if wire is not None:
                wire.flush()
        return more

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due, None when none is set."""
        return self._wheel.next_ns()

    def _sweep(self, now_ns: int) -> None:
        self._swept_ns = now_ns
        offset_ns = self.clock.wall_ns() - now_ns
        for env in self._environments:
            env.wall_offset_ns = offset_ns
        for wire in (self.wire, self.observer):
            if wire is not None:
                wire.sweep(now_ns)

    def _expire(self, now_ns: int, out: Outbox) -> bool:
        """Hand the timers that are due to their kubelets, leases first within one turn."""
        expired = self._wheel.expire(now_ns, TIMERS_MAX)
        record_lag = self.counts.timer_lag.record
        if len(expired) == TIMERS_MAX:
            expired.sort(key=_leases_first)
        for due_ns, _, node, timer, key in expired:
            record_lag((now_ns - due_ns) // 1000)
            if timer == Timer.RENEW_LEASE:
                self._due_lease[NodeId(node)] = due_ns
            elif timer == Timer.CALL_RETRY:
                self._retry(NodeId(node), key)
                continue
            entry = self.entries[node]
            kubelet = entry.kubelet
            if kubelet is None:
                continue
            if entry.story is not None:
                entry.story.append(f"{now_ns} timer {Timer(timer).name} {key}")
            try:
                kubelet.on_timer(Timer(timer), key, now_ns, out)
            except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
                self._quarantine(entry, error)
        return len(expired) == TIMERS_MAX

    def _drain(self, now_ns: int, out: Outbox) -> bool:
        """Hand what the transport brought to its owners."""
        inbox = self.inbox
        batch = inbox[:REPLIES_MAX]
        del inbox[:REPLIES_MAX]
        for token, message in batch:
            if type(token) is ApiCall:
                assert isinstance(message, Response), message
                self._on_response(token, message, 1, now_ns, out)
            elif type(token) is Opening:
                reflector = token.reflector
                if token.number == reflector.opens and reflector.phase is not Phase.STOPPED:
                    self._on_stream_safely(reflector, message, now_ns, out)
            elif type(token) is Retried:
                assert isinstance(message, Response), message
                self._on_response(token.call, message, token.tries, now_ns, out)
        return bool(inbox)

    def _on_response(
        self, call: ApiCall, response: Response, tries: int, now_ns: int, out: Outbox
    ) -> None:
        counts = self.counts
        took_us = (response.arrived_ns - response.sent_ns) // 1000
        counts.requests.record(ROUTES[call.op], response.code, took_us)
        entry = self.entries[call.node]
        kubelet = entry.kubelet
        if kubelet is None:
            return
        if response.retry_after_s >= 0 and tries < CALL_TRIES_MAX and _asks_again(response.code):
            self._retry_later(call, tries, now_ns + response.retry_after_s * NS_PER_S)
            return
        if call.op is Op.RENEW_LEASE and response.code == 200:
            self._count_renewal(kubelet, response)
        if entry.story is not None:
            entry.story.append(f"{now_ns} reply {call.op.name} {call.key} {response.code}")
        try:
            kubelet.on_reply(call, decode_reply(call.op, response), now_ns, out)
        except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
            self._quarantine(entry, error)

    def _count_renewal(self, kubelet: VirtualKubelet, response: Response) -> None:
        """Measure the interval as the API server sees it, and how late we sent the renewal."""
        counts = self.counts
        counts.renewals += 1
        before_ns = kubelet.lease.renewed_ns
        if before_ns:
            interval_ns = response.arrived_ns - before_ns
            if interval_ns > counts.lease_interval_ns_max:
                counts.lease_interval_ns_max = interval_ns
            if interval_ns > kubelet.env.model.lease_duration_s * NS_PER_S:
                counts.leases_missed += 1
        due_ns = self._due_lease.pop(kubelet.node, None)
        if due_ns is not None:
            counts.lease_late.record((response.sent_ns - due_ns) // 1000)

    # ---- watches ----

    def _on_stream_safely(
        self, reflector: Reflector, message: object, now_ns: int, out: Outbox
    ) -> None:
        """Keep what a bug in reading one watch harms to the node whose watch it is."""
        try:
            self._on_stream(reflector, message, now_ns, out)
        except Exception as error:  # noqa: BLE001
            if reflector.node == NOBODY:
                self.on_bug(error)
            else:
                self._quarantine(self.entries[reflector.node], error)

    def on_bug(self, error: Exception) -> None:
        """Mark the run for a bug that no single kubelet is to blame for, and go on."""
        if self._raise_bugs:
            raise error
        self.counts.bugs += 1
        if self.counts.bugs <= BUGS_SHOWN_MAX:
            log.error("a bug in fleet: %r", error, exc_info=error)

    def _on_stream(self, reflector: Reflector, message: object, now_ns: int, out: Outbox) -> None:
        if type(message) is bytes:
            found = reflector.on_chunk(message, decode_watch_event)
            self._deliver(reflector, found, now_ns, out)
            return
        row = ("WATCH", WATCH_RESOURCES[reflector.kind])
        if isinstance(message, StreamOpened):
            took_us = (message.arrived_ns - message.sent_ns) // 1000
            self.counts.requests.record(row, 200, took_us)
            reflector.is_open = True
            self.counts.watches_open += 1
            return
        assert isinstance(message, Response), message
        if reflector.phase is Phase.LIST:
            took_us = (message.arrived_ns - message.sent_ns) // 1000
            self.counts.requests.record(("LIST", row[1]), message.code, took_us)
            if message.code == 200:
                found = reflector.on_page(message.body, decode_list)
                self._deliver(reflector, found, now_ns, out)
                self._open(reflector)
                return
            later = reflector.on_list_failed(message, self._draws, now_ns)
        else:
            if message.code != 200:
                took_us = (message.arrived_ns - message.sent_ns) // 1000
                self.counts.requests.record(row, message.code, took_us)
            later = reflector.on_end(message, self._draws, now_ns)
        self._closed(reflector)
        self._reopen(reflector, later, now_ns)

    def _deliver(
        self,
        reflector: Reflector,
        found: list[tuple[EventType, object]],
        now_ns: int,
        out: Outbox,
    ) -> None:
        """Pass events on to the kubelet, or to whom a shared watch concerns."""
        kind = reflector.kind
        self.counts.watch_events += len(found)
        for event_type, record in found:
            if event_type is EventType.BOOKMARK:
                continue
            if event_type is EventType.ERROR:
                wire, pool = self._way(reflector)
                wire.cancel(pool, Opening(reflector, reflector.opens))
                reflector.opens += 1  # the close that follows an ERROR must not end the back-off
                code = record if isinstance(record, int) else 0
                later = reflector.on_error_event(code, self._draws, now_ns)
                self._closed(reflector)
                self._reopen(reflector, later, now_ns)
                return
            event = WatchEvent(kind, event_type, record, reflector.namespace, reflector.name)
            if reflector.node == NOBODY:
                self._deliver_shared(event, now_ns, out)
            else:
                self._input(self.entries[reflector.node], event, now_ns, out)

    def _deliver_shared(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        """Route an event of a shared watch by the node that it names."""
        if event.type is EventType.SYNCED:
            for entry in self.entries:
                if event.kind is WatchKind.PODS:
                    self._input(entry, event, now_ns, out)
        else:
            node = self.by_name.get(_node_name(event.record))
            if node is not None:
                entry = self.entries[node]
                if entry.kubelet is not None and entry.kubelet.env.light:
                    self._input(entry, event, now_ns, out)
        if event.kind is WatchKind.NODE and self.on_observed is not None:
            self.on_observed(event)

    def _input(self, entry: Entry, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        kubelet = entry.kubelet
        if kubelet is None:
            return
        if entry.story is not None:
            entry.story.append(f"{now_ns} watch {event.kind.name} {event.type.name}")
        try:
            kubelet.on_watch_event(event, now_ns, out)
        except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
            self._quarantine(entry, error)

    def _way(self, reflector: Reflector) -> tuple[Wire, int]:
        """Return the connection that a reflector uses."""
        if reflector.node == NOBODY:
            assert self.observer is not None
            return self.observer, 0
        assert self.wire is not None
        return self.wire, self.entries[reflector.node].pool

    def _open(self, reflector: Reflector) -> None:
        request = reflector.open(self._draws, self.clock.now_ns())
        if reflector.phase is Phase.LIST_STREAM or reflector.phase is Phase.LIST:
            owners = self.entries if reflector.node == NOBODY else [self.entries[reflector.node]]
            for entry in owners:
                if entry.kubelet is not None:
                    entry.kubelet.on_relist_started(reflector.kind)
        wire, pool = self._way(reflector)
        wire.send(pool, request, Opening(reflector, reflector.opens))

    def _closed(self, reflector: Reflector) -> None:
        """Count an open watch no longer."""
        if reflector.is_open:
            reflector.is_open = False
            self.counts.watches_open -= 1

    def _reopen(self, reflector: Reflector, later: Next, now_ns: int) -> None:
        """Ask again, now or after the back-off."""
        self.counts.watch_restarts += 1
        if not later.delay_ns:
            self._open(reflector)
            return
        key = f"watch/{reflector.kind}/{reflector.namespace}/{reflector.name}"
        self._wheel.set(now_ns + later.delay_ns, reflector.node, Timer.CALL_RETRY, key)

    def _find(self, node: NodeId, kind: WatchKind, namespace: str, name: str) -> Reflector | None:
        reflectors = self._shared if node == NOBODY else self.entries[node].reflectors
        for each in reflectors:
            if each.kind is kind and each.namespace == namespace and each.name == name:
                return each
        return None

    # ---- effects ----

    def _execute(self, out: Outbox) -> None:
        """Do what the kubelets asked for, in order; nothing else leaves a kubelet."""
        schedule = self._wheel.set
        for effect in out:
            if isinstance(effect, ApiCall):
                self._call(effect)
            elif isinstance(effect, SetTimer):
                schedule(effect.due_ns, effect.node, effect.timer, effect.key)
            else:
                self._execute_rare(effect)

    def _call(self, call: ApiCall) -> None:
        entry = self.entries[call.node]
        if entry.kubelet is None:
            return
        if entry.story is not None:
            entry.story.append(f"{self.clock.now_ns()} call {call.op.name} {call.key}")
        assert self.wire is not None
        self.wire.send(entry.pool, build(call, entry.caller), call)

    def _execute_rare(self, effect: Effect) -> None:
        match effect:
            case StartWatch(node, kind, namespace, name):
                entry = self.entries[node]
                if entry.kubelet is None:
                    return
                own = kind in (WatchKind.NODE, WatchKind.PODS)
                reflector = Reflector(node, kind, entry.kubelet.name if own else name, namespace)
                entry.reflectors = (*entry.reflectors, reflector)
                self._open(reflector)
            case StopWatch(node, kind, namespace, name):
                self._stop_watch(node, kind, namespace, name)
            case Report():
                self._count(effect)
            case PowerOff(node):
                self._power_off(node)
            case ApiCall() | SetTimer():
                raise AssertionError(effect)  # handled by the caller
            case _:
                assert_never(effect)

    def _stop_watch(self, node: NodeId, kind: WatchKind, namespace: str, name: str) -> None:
        reflector = self._find(node, kind, namespace, name)
        if reflector is None:
            return
        entry = self.entries[node]
        entry.reflectors = tuple(each for each in entry.reflectors if each is not reflector)
        assert self.wire is not None
        self.wire.cancel(entry.pool, Opening(reflector, reflector.opens))
        self._closed(reflector)
        reflector.stop()

    def _power_off(self, node: NodeId) -> None:
        """Let a machine fall silent: its watches end, and nothing more is sent."""
        assert self.wire is not None
        entry = self.entries[node]
        for reflector in entry.reflectors:
            self.wire.cancel(entry.pool, Opening(reflector, reflector.opens))
        self.silence(node)

    def _count(self, report: Report) -> None:
        counts = self.counts
        value_us = report.value_ns // 1000
        match report.milestone:
            case Milestone.REGISTERED:
                counts.registered += 1
                counts.node_start.record(value_us)
            case Milestone.NOT_READY:
                counts.not_ready += 1
            case Milestone.GONE:
                counts.gone += 1
            case Milestone.POD_ADDED:
                counts.pods_added += 1
            case Milestone.POD_RUNNING:
                counts.pods_running += 1
                counts.pod_start.record(value_us)
            case Milestone.POD_FAILED:
                counts.pods_failed += 1
            case Milestone.POD_REMOVED:
                counts.pods_removed += 1
            case Milestone.EVENT_DROPPED:
                counts.events_dropped += 1
            case Milestone.READY:
                counts.ready += 1
            case _:
                assert_never(report.milestone)

    # ---- second tries ----

    def _retry_later(self, call: ApiCall, tries: int, due_ns: int) -> None:
        """Send a call again when the server said so. Source: client-go/rest/with_retry.go."""
        self._retry_seq += 1
        key = f"call/{self._retry_seq}"
        self._retries[key] = Retried(call, tries + 1)
        self._wheel.set(due_ns, call.node, Timer.CALL_RETRY, key)

    def _retry(self, node: NodeId, key: str) -> None:
        if key.startswith("watch/"):
            _, kind, rest = key.split("/", 2)
            namespace, name = rest.rsplit("/", 1)
            reflector = self._find(node, WatchKind(int(kind)), namespace, name)
            if reflector is not None and reflector.phase is not Phase.STOPPED:
                self._open(reflector)
            return
        retried = self._retries.pop(key)
        entry = self.entries[node]
        if entry.kubelet is not None:
            assert self.wire is not None
            self.wire.send(entry.pool, build(retried.call, entry.caller), retried)

    def _quarantine(self, entry: Entry, error: Exception) -> None:
        """Take one kubelet out of the run; its story is kept and the run will fail."""
        if self._raise_bugs:
            raise error
        if entry.kubelet is None:
            return  # it is out already
        self.counts.quarantined += 1
        name = entry.kubelet.name
        log.error("node %s is quarantined after a bug in fleet: %r", name, error, exc_info=error)
        if entry.story is not None:
            log.error("story of %s:\n%s", name, "\n".join(entry.story))
        self.silence(entry.kubelet.node)


def _node_name(record: object) -> str:
    """Return the node that an object is about."""
    if isinstance(record, Pod):
        return record.node_name
    assert isinstance(record, NodeView), record
    return record.name


def _leases_first(entry: tuple[int, int, int, int, str]) -> tuple[bool, int, int]:
    return entry[3] != Timer.RENEW_LEASE, entry[0], entry[1]


def _asks_again(code: int) -> bool:
    return code == 429 or code >= 500
